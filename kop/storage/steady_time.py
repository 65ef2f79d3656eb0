"""The clock by which an engine forgets idempotent producers: it does not jump, and is not the same in another process.

Owns: that clock, and how far the wall clock is ahead of it.
Must not know: what the time is for.
"""

from __future__ import annotations

from kop import clock


def steady_ms() -> int:
    """Return the ms of a clock that never jumps; its zero is an unknown moment."""
    return clock.monotonic_ns() // 1_000_000


def wall_ahead_ms() -> int:
    """Return the ms by which the wall clock is ahead of `steady_ms` now. Added to a time of `steady_ms`, it gives a
    time that another process understands.
    """
    return clock.wall_ms() - steady_ms()
