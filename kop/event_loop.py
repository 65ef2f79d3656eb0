"""The event loop of the gateway: uvloop's, or asyncio's own if uvloop is not to be had.

Owns: the choice.
Must not know: what runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

new: Callable[[], asyncio.AbstractEventLoop]
"""A function that makes an event loop, for `asyncio.Runner(loop_factory=new)`."""
try:
    import uvloop

    new = uvloop.new_event_loop
except ImportError:
    new = asyncio.new_event_loop


def is_fast() -> bool:
    """Return True if the loop is uvloop's."""
    return new is not asyncio.new_event_loop
