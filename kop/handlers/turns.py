"""Long lists in requests, handled so that other clients have their turn.

Must not know: what is in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

_ITEMS = 100


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; after every hundred of them whatever else is due runs first."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS == 0:
            await asyncio.sleep(0)
