"""Time and chance: the only module that asks the system for either.

Owns: the clocks and the sources of random numbers. Everybody calls them by this module's name (`clock.monotonic()`), so
that a simulation puts others in their place. Waiting is the event loop's, whose time a simulated loop gives.
Must not know: who asks.
"""

from __future__ import annotations

import random
import secrets
import time
import uuid
from typing import Final

monotonic = time.monotonic
"""Returns seconds of a clock that never goes back; it begins anywhere."""
monotonic_ns = time.monotonic_ns
"""Returns nanoseconds of the clock of `monotonic`."""
perf_counter = time.perf_counter
"""Returns seconds of the finest clock, for durations."""
wall_ns = time.time_ns
"""Returns nanoseconds since the epoch. They jump when somebody sets the clock."""
chance: Final = random.Random()
"""Numbers that spread load, and that nobody need be unable to guess."""
new_chance = random.Random
"""Returns a source of such numbers of its own."""
uuid4 = uuid.uuid4
"""A function that returns a random UUID."""
token_hex = secrets.token_hex
"""Returns a name that nobody guesses, of so many random bytes."""
randbits = secrets.randbits
"""Returns a number of so many random bits that nobody guesses."""


def wall() -> float:
    """Return seconds since the epoch."""
    return wall_ns() / 1e9


def wall_ms() -> int:
    """Return milliseconds since the epoch."""
    return wall_ns() // 1_000_000
