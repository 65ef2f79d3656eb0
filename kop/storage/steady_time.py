"""The clock by which an engine forgets idempotent producers: it does not jump, and is not the same in another process.

Owns: that clock, and how far the wall clock is ahead of it.
Must not know: what the time is for.
"""

from __future__ import annotations

from kop import clock


def steady_ms() -> int:
    """Return milliseconds since a moment of which nothing is known, whatever becomes of the wall clock."""
    return clock.monotonic_ns() // 1_000_000


def wall_ahead_ms() -> int:
    """Return what turns a time of `steady_ms` into one that another process understands, as the wall clock goes now."""
    return clock.wall_ms() - steady_ms()
