"""Decompressing produced batches, and converting those that waited together, a few at a time.

Owns: how many bytes are decompressed and converted before the loop has its turn; which compressed batches compiled code
may take, by the same codecs as the ordinary path has.
Must not know: entries, producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kop.errors import KopError
from kop.records import transcode
from kop.records.batch import Buffer
from kop.records.validation import inflated

MOST_AT_ONCE: Final = 16 << 20
"""Bytes, some 10 ms of the loop. One batch may be larger than that."""


class DecompressionTurns:
    """Counts what is decompressed in one turn of the loop, and of batches that waited together what is converted.

    One object serves all partitions of an engine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def is_over(self) -> bool:
        """True if this turn of the loop has decompressed its share: further batches have to wait for the next turn."""
        return self._bytes >= MOST_AT_ONCE

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in the next turn, once. For use where this one is over."""
        self._waiting[go_on] = None

    def add(self, size: int) -> None:
        """Count bytes that are decompressed or converted; a negative number takes back some that were counted."""
        if not self._bytes:
            self._loop.call_soon(self._next)
        self._bytes += size

    def _next(self) -> None:
        self._bytes = 0
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting:
            go_on()


BATCH_MAY_INFLATE: Final = 4 << 20
"""Bytes that one batch may inflate to. Larger ones go the ordinary way, which takes turns with others for them."""


class DirectCodecs:
    """What the compiled writers of one engine ask for compressed batches."""

    def __init__(self, turns: DecompressionTurns) -> None:
        self._turns = turns

    def inflated(self, batch: bytearray, codec: int, most: int) -> Buffer | None:
        """Return the records of a compressed batch. None where the ordinary path has to look at it: they are damaged,
        more than `most` bytes, or this turn of the loop has inflated its share.
        """
        if self._turns.is_over:
            return None
        try:
            records = inflated(batch, codec, most)
        except KopError:
            return None
        self._turns.add(len(records))
        return records

    def deflated(self, codec: int, payload: bytes) -> tuple[int, bytes]:
        """Return the payload of an entry in a batch's codec, and Pulsar's number of that codec."""
        return transcode.deflated(codec, payload)
