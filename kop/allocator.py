"""The allocator and the garbage collector, told what a broker does: many short-lived buffers, few cycles.

Owns: mallopt and malloc_trim (on glibc, elsewhere they are left out), the collector's thresholds.
Must not know: who allocates.

With glibc's defaults each such buffer is mapped, faulted in page by page and unmapped again: six times the CPU of a
1 MiB Produce. So they come from the heap; what the heap then keeps is given back when the broker is idle.
"""

from __future__ import annotations

import ctypes
import gc
import logging

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_COLLECT_EVERY = 20_000
"""Containers more than before from which on the young ones are looked at. Python's 700 are ten batches: a tenth of the
CPU of a Produce went into looking at objects that a reference count frees anyway."""

log = logging.getLogger(__name__)


def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    except OSError:
        return None


def tune() -> None:
    """Keep large buffers in the heap, and threads in few arenas. To be called before the first thread is started."""
    libc = _libc()
    if libc is None:
        log.debug("not on glibc: the allocator is left as it is")
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    libc.mallopt(_M_TOP_PAD, 1 << 20)
    libc.mallopt(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Return free memory to the system. Milliseconds, so for idle moments."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def started() -> None:
    """Exclude all present objects from garbage collection, since they stay, and look at later ones less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 20)
