"""The compiled module `kop._native`, where it was built from the sources that stand beside it.

Owns: the number of those sources, and the look whether a build is of them.
Must not know: what the functions of the module do. Each room that uses some has their readable twins in Python.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

FORMAT: Final = 7
"""Number of all functions of the module, of their arguments and results: raised with each change of one of them."""


def compiled(instead: ModuleType) -> ModuleType:
    """The compiled module; `instead`, the readable twin, where it was not built, or built from other sources."""
    try:
        native = import_module("kop._native")
    except ImportError:
        return instead
    return native if getattr(native, "FORMAT", None) == FORMAT else instead
