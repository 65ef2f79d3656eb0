"""The C allocator of this process, told that large buffers come and go.

Owns: mallopt and malloc_trim of glibc; on any other C library all of this does nothing.
Must not know: who allocates.

With glibc's defaults a large buffer is mapped, faulted in page by page and unmapped again, or the top of the heap is:
six times the CPU of a 1 MiB Produce in the gateway, four times that of encoding the rows of a PySpark task.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_log = logging.getLogger(__name__)


@cache
def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        libc = None
    if libc is None or not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        _log.debug("not on glibc: the allocator is left as it is")
        return None
    return libc


@cache
def keep_large_buffers() -> None:
    """Take buffers of up to 32 MiB from the heap, and let that keep up to 64 MiB that are free. Once a process."""
    if (libc := _libc()) is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        libc.mallopt(_M_TOP_PAD, 1 << 20)


def share_arenas() -> None:
    """Let all threads share two arenas. To be called before the first thread is started."""
    if (libc := _libc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Return free memory to the system. It takes milliseconds, so it is for idle moments."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)
