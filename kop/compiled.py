"""The compiled module `kop._native`, where it was built from the sources that stand beside it.

Owns: the number of those sources, and whether a build is of them.
Must not know: what the functions of the module do. Each room that uses some has their readable twins in Python.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

FORMAT: Final = 18
"""Number of all functions of the module, of their arguments and results: raised with each change of one of them."""


def compiled(instead: ModuleType) -> ModuleType:
    """The compiled module; `instead`, the readable twin, where it was not built, or built from other sources."""
    return compiled_only() or instead


def compiled_only() -> ModuleType | None:
    """The compiled module, for what has no readable twin; None where it was not built, or built from other sources."""
    native = _built()
    return native if native is not None and _format_of(native) == FORMAT else None


def missing() -> str | None:
    """Why no compiled code is used, in one line for an operator; None where it is."""
    native = _built()
    if native is None:
        return "it was not built: install kop where cargo is found, or a wheel of this platform"
    if _format_of(native) != FORMAT:
        return f"{native.__file__} was built from other sources: install kop again (pip install .)"
    return None


def _built() -> ModuleType | None:
    try:
        return import_module("kop._native")
    except ImportError:
        return None


def _format_of(native: ModuleType) -> object:
    return getattr(native, "FORMAT", None)
