"""Meshes on Spark: each component is one streaming query, whose tasks call the functions and write by themselves."""
