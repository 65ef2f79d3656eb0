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
"""A function that returns seconds of a clock that never goes back; it begins anywhere."""
monotonic_ns = time.monotonic_ns
"""A function that returns nanoseconds of the clock of `monotonic`."""
perf_counter = time.perf_counter
"""A function that returns seconds of the system's finest clock, for measuring durations."""
wall_ns = time.time_ns
"""A function that returns nanoseconds since the epoch, which jump if somebody sets the clock."""
chance: Final = random.Random()
"""The random numbers that spread load; they need not be hard to guess."""
new_chance = random.Random
"""A function that returns a further source of random numbers like `chance`."""
uuid4 = uuid.uuid4
"""A function that returns a random UUID."""
token_hex = secrets.token_hex
"""A function that returns a text of so many random bytes, in hex, that nobody can guess."""
randbits = secrets.randbits
"""A function that returns a number of so many random bits that nobody can guess."""


def wall() -> float:
    """Return seconds since the epoch."""
    return wall_ns() / 1e9


def wall_ms() -> int:
    """Return milliseconds since the epoch."""
    return wall_ns() // 1_000_000
