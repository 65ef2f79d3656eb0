"""The C allocator of this process, told that large buffers come and go.

Owns: mallopt and malloc_trim of glibc; on any other C library all of this does nothing.
Must not know: who allocates.

glibc's defaults give the memory of a large buffer back to the system when the buffer is freed, and the next buffer has
to fault in its pages again. That makes a Produce of 1 MiB take six times as much CPU in the gateway, and encoding the
rows of a PySpark task four times as much.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_LARGEST_INT: Final = 2**31 - 1
"""The largest value of a C int, which mallopt takes."""

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
def keep_large_buffers(free_bytes: int = 64 << 20) -> None:
    """Make buffers of up to 32 MiB come from the heap, and make the heap keep up to `free_bytes` of free memory; do
    nothing without glibc.

    It holds for the whole process. A process whose large buffers come and go by the gigabyte, as those of a cache do
    when topics are deleted, pays for fresh pages again and again if it keeps less than that.
    """
    if (libc := _libc()) is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, min(free_bytes, _LARGEST_INT))
        libc.mallopt(_M_TOP_PAD, 1 << 20)


def share_arenas(arenas: int = 2) -> None:
    """Make all threads share this number of malloc's arenas; do nothing without glibc. To be called before the first
    thread is started.
    """
    if (libc := _libc()) is not None:
        libc.mallopt(_M_ARENA_MAX, arenas)


def resident_bytes(pid: int | str = "self") -> int:
    """Return the bytes of the machine's memory that a process, by default this one, has now; 0 if the system does not
    tell.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def give_back() -> None:
    """Return free memory to the system; do nothing without glibc. It takes milliseconds, so it is for idle moments."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)
