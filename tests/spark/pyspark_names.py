"""PySpark's names, so that modules which import it can be tested without Spark: each is a class that does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MODULES = (
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.types",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.streaming.listener",
)


class _Named:
    """A class of PySpark."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take anything."""


class _Names(ModuleType):
    """A module that has any name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception if name.endswith("Exception") else _Named,), {})
        setattr(self, name, made)
        return made


@contextmanager
def pyspark_names() -> Iterator[None]:
    """Let modules import PySpark meanwhile, installed or not."""
    if find_spec("pyspark") is not None:
        yield
        return
    for name in MODULES:
        made: Any = _Names(name)
        sys.modules[name] = made
        made.__path__ = []
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
    try:
        yield
    finally:
        for name in MODULES:
            del sys.modules[name]
