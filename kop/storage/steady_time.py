"""The clock by which an engine forgets idempotent producers: it does not jump, and is not the same in another process.

Owns: that clock, and how far the wall clock is ahead of it.
Must not know: what the time is for.
"""

from __future__ import annotations

import time


def steady_ms() -> int:
    """Return milliseconds since a moment of which nothing is known, whatever becomes of the wall clock."""
    return time.monotonic_ns() // 1_000_000


def wall_ahead_ms() -> int:
    """Return what turns a time of `steady_ms` into one that another process understands, as the wall clock goes now."""
    return time.time_ns() // 1_000_000 - steady_ms()
