"""`store` is each engine in turn."""

from __future__ import annotations

from storage.conftest import store

__all__ = ["store"]
