"""A wait on the event loop for what another thread is about to do.

Owns: how often it is looked if that is done.
Must not know: what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kop import clock

LOOK_SECONDS: Final = 0.005
SEEN_SECONDS: Final = 2.0
"""The seconds that a worker waits to see in the topics what it knows to be there."""


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, and return True; False if it does not within so many seconds."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        if condition():
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False
