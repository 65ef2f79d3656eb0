"""Which of the twins does the work: the compiled `kop._native`, or `kop.records._pure` where that was not built.

Owns: the choice.
Must not know: what the twins do.
"""

from __future__ import annotations

from types import ModuleType

from kop.compiled import compiled
from kop.records import _pure


def chosen() -> ModuleType:
    """The compiled twin, or the plain one; see `kop.compiled`."""
    return compiled(_pure)
