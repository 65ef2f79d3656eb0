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
"""The bytes that are decompressed in one turn of the loop, some 10 ms of it. One batch may be larger than that."""


class DecompressionTurns:
    """The bytes that were decompressed in this turn of the loop, or converted of batches that waited together, and
    their bound.

    One object serves all partitions of an engine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def is_over(self) -> bool:
        """True if this turn of the loop has done its share of decompressing, 16 MiB: further batches have to wait for
        the next turn.
        """
        return self._bytes >= MOST_AT_ONCE

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once in the loop's next turn, for use when this one is over."""
        self._waiting[go_on] = None

    def add(self, size: int) -> None:
        """Count bytes that are decompressed or converted; a negative number takes counted ones back."""
        if not self._bytes:
            self._loop.call_soon(self._next)
        self._bytes += size

    def _next(self) -> None:
        self._bytes = 0
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting:
            go_on()


BATCH_MAY_INFLATE: Final = 4 << 20
"""The bytes that one batch may inflate to in compiled code. Larger ones go the ordinary way, which takes turns with
others for them.
"""


class DirectCodecs:
    """The codecs that the compiled writers of one engine call for compressed batches."""

    def __init__(self, turns: DecompressionTurns) -> None:
        self._turns = turns

    def inflated(self, batch: bytearray, codec: int, most: int) -> Buffer | None:
        """Return the decompressed records of a batch, and count their bytes in this turn of the loop. None if the
        ordinary path has to look at the batch: it is damaged, its records have more than `most` bytes, or this turn has
        inflated its share.
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
        """Compress the payload of an entry in a batch's codec, by Kafka's number; return Pulsar's number of that codec,
        and the compressed payload.
        """
        return transcode.deflated(codec, payload)
