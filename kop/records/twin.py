"""Which of the twins does the work: the compiled `kop._native`, or `kop.records._pure` where that was not built.

Owns: the choice.
Must not know: what the twins do.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from kop.records import _pure


def chosen() -> ModuleType:
    """The compiled twin; the plain one where it was not built, or built from sources of another format."""
    try:
        native = import_module("kop._native")
    except ImportError:
        return _pure
    return native if getattr(native, "FORMAT", None) == _pure.FORMAT else _pure
