"""Pauses in the work on long lists of a request, so that the event loop serves other clients meanwhile.

Must not know: what the lists hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

_ITEMS = 100


async def with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; after every hundredth of them the event loop first runs what else is due."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS == 0:
            await asyncio.sleep(0)
