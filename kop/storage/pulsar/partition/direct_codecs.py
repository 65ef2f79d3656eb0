"""What compiled writers ask for compressed batches: the same codecs as the ordinary path has.

Owns: which compressed batches compiled code may take, and their share of a turn of the loop.
Must not know: entries, producers.
"""

from __future__ import annotations

from typing import Final

from kop.errors import KopError
from kop.records import transcode
from kop.records.batch import Buffer
from kop.records.validation import inflated
from kop.storage.pulsar.partition.decompression_turns import DecompressionTurns

BATCH_MAY_INFLATE: Final = 4 << 20
"""Bytes that one batch may inflate to. Larger ones go the ordinary way, which takes turns with others for them."""


class DirectCodecs:
    """The codecs of one engine."""

    def __init__(self, turns: DecompressionTurns) -> None:
        self._turns = turns

    def inflated(self, batch: bytearray, codec: int, most: int) -> Buffer | None:
        """The records of a compressed batch. None where the ordinary path has to look at it: they are damaged, more
        than `most` bytes, or this turn of the loop has inflated its share.
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
        """The payload of an entry in a batch's codec, and Pulsar's number of that codec."""
        return transcode.deflated(codec, payload)
