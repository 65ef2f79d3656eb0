"""Offsets and message ids: the mapping between them, and the sparse index that speeds up the search."""
