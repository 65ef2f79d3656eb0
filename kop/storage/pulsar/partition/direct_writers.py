"""The compiled writers of one producer each (`kop/_native.pyi`), where there are any.

Owns: making them, with the numbers that the ordinary way goes by.
Must not know: when a writer may be used, and what to do with what it hands over (`direct_batches.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kop.compiled import compiled_only
from kop.pulsar_client.outgoing import Outgoing
from kop.records.transcode import ENTRY_ROOM
from kop.storage.idempotence import WINDOW
from kop.storage.pulsar.partition.decompression import DirectCodecs
from kop.storage.pulsar.partition.sequences import EPOCH_SHIFT

if TYPE_CHECKING:
    from kop._native import DirectBudget, DirectWriter


def direct_budget(most: int) -> DirectBudget | None:
    """Return a bound of `most` on the bytes of batches that compiled code holds; None without the compiled module."""
    native = compiled_only()
    if native is None:
        return None
    made: type[DirectBudget] = native.DirectBudget
    return made(most)


def direct_writer(
    number: int,
    name: bytes,
    outgoing: Outgoing,
    budget: DirectBudget,
    size_limit: object,
    codecs: DirectCodecs,
    most_inflated: int,
    max_size: int,
    epoch: int | None,
    next_sequence: int,
) -> DirectWriter | None:
    """Return a compiled writer for the producer with that number on its connection, and that name. None without the
    compiled module, or if `outgoing` is not compiled.

    `size_limit` tells by `surely_taken` how large an entry may be, `max_size` is the connection's limit. A compressed
    batch may inflate to `most_inflated` bytes. `epoch` is that of an idempotent producer, whose `next_sequence` is then
    given without the epoch; None for the broker's own producer.
    """
    native = compiled_only()
    if native is None or not isinstance(outgoing, native.Outgoing):
        return None
    made: type[DirectWriter] = native.DirectWriter
    room, base = max(max_size - ENTRY_ROOM, 0), 0 if epoch is None else epoch << EPOCH_SHIFT
    return made(
        number, name, outgoing, budget, size_limit, codecs, most_inflated, room, WINDOW, epoch, base, next_sequence
    )
