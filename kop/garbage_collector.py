"""Python's garbage collector in processes through which many records go.

Owns: how often it looks for cycles.
Must not know: which objects there are.

Each record on its way is a container, which its reference count frees. Python's default, to look at the young
containers after 700 new ones, makes a tenth of the CPU of a Produce, and a third of that of a quick function.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 20_000
"""The number of new containers after which the collector looks at the young ones."""
_OLDER: Final = 20
"""The number of looks at a generation after which it looks at the next older one, too."""


def collect_seldom() -> None:
    """Let the collector look at young objects after 20,000 new ones, for as long as the process lives."""
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Let the collector look seldom, as `collect_seldom` does, until the block ends: the process is somebody else's."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
