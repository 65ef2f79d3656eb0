"""The compiled module `kop._native`, where it was built from the sources that stand beside it.

Owns: the number of those sources, and whether a build is of them.
Must not know: what the functions of the module do. Each room that uses some has their readable twins in Python.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from types import ModuleType
from typing import Final

FORMAT: Final = 22
"""The version of the interface of the compiled module: raised with each change of a function's arguments or results, so
that a build of other sources is not used.
"""
_AGAIN: Final = "install kop again (pip install .; in a clone: make clean run, data stays)"


def compiled(instead: ModuleType) -> ModuleType:
    """Return the compiled module; or `instead`, the module with the same functions in Python, if it was not built, or
    was built from other sources.
    """
    return compiled_only() or instead


def compiled_only() -> ModuleType | None:
    """Return the compiled module, for what has no readable twin; None if it was not built, or built from other
    sources.
    """
    native = _built()
    return native if native is not None and getattr(native, "FORMAT", None) == FORMAT else None


def missing() -> str | None:
    """Return one line for an operator why no compiled code is used, and what to do; None if it is used."""
    native = _built()
    if native is None and shutil.which("cargo") is None:
        return f"no compiled code was built, for want of cargo: install Rust, then {_AGAIN}"
    if native is None:
        return f"no compiled code was built, though cargo is there: {_AGAIN}; pip's option -v shows why a build fails"
    if getattr(native, "FORMAT", None) != FORMAT:
        return f"{native.__file__} was built from other sources: {_AGAIN}"
    return None


def _built() -> ModuleType | None:
    try:
        native = import_module("kop._native")
    except ImportError:
        return None
    return native if native.__file__ is not None else None  # the folder of the Rust sources counts as a package
