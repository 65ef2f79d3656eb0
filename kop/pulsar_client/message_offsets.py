"""The Kafka offsets of a message, found by its message id. Pulsar's admin REST is asked.

Owns: message ids as text, and the two ways in which entries have offsets: the broker's index, and the id itself.
Must not know: Kafka, what the offsets are for.
"""

from __future__ import annotations

from typing import NamedTuple

from kop.pulsar_client.admin import Admin
from kop.pulsar_client.packed import MOST_MESSAGES, fits, pack
from kop.pulsar_client.types import Position


class MessageOffsetError(ValueError):
    """A text that is no message id, or a message that has no offset; the error's text says why."""


class MessageId(NamedTuple):
    """A message id: ledger, entry and place in the batch, which is -1 for the whole entry."""

    ledger: int
    entry: int
    batch: int = -1

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read LEDGER:ENTRY or LEDGER:ENTRY:BATCH-INDEX, as Pulsar's tools print it; without an index it is the id of
        the whole entry. MessageOffsetError if the text is neither.
        """
        parts = text.split(":")
        if len(parts) not in {2, 3} or not all(part.removeprefix("-").isdecimal() for part in parts):
            raise MessageOffsetError(f"a message id is LEDGER:ENTRY or LEDGER:ENTRY:BATCH-INDEX, not {text!r}")
        ledger, entry, *batch = map(int, parts)
        return cls(ledger, entry, max(batch[0], -1) if batch else -1)


class EntryOffsets(NamedTuple):
    """An entry, and the offsets of its first and its last message."""

    ledger: int
    entry: int
    base: int
    last: int


async def entry_offsets(admin: Admin, topic: str, ledger: int, entry: int, *, packed: bool) -> EntryOffsets:
    """Return the offsets of an entry of a plain topic or one partition.

    `packed`: the offset is made of the message id, else it is the broker's index. MessageOffsetError if the entry has
    no offsets, PulsarError if it cannot be read.
    """
    head = await admin.entry(topic, ledger, entry)
    count = head.num_messages or 1
    if packed:
        if not fits(Position(ledger, entry)) or count > MOST_MESSAGES:
            raise MessageOffsetError(f"the entry {ledger}:{entry} with {count} messages has no packed offsets")
        base = pack(Position(ledger, entry))
        return EntryOffsets(ledger, entry, base, base + count - 1)
    if head.index is None:
        raise MessageOffsetError(
            "the Pulsar broker keeps no entry index: see `kop serve --store pulsar://...`, which says what to set"
        )
    return EntryOffsets(ledger, entry, head.index - count + 1, head.index)


async def message_offsets(admin: Admin, topic: str, message: MessageId, *, packed: bool) -> tuple[int, int]:
    """Return the first and the last Kafka offset of a message; of its whole entry if the id names no place in it.

    MessageOffsetError if there is no such offset, PulsarError if the entry cannot be read.
    """
    place = await entry_offsets(admin, topic, message.ledger, message.entry, packed=packed)
    if message.batch < 0:
        return place.base, place.last
    if message.batch > place.last - place.base:
        entry, count = f"{message.ledger}:{message.entry}", place.last - place.base + 1
        raise MessageOffsetError(f"the entry {entry} has {count} messages, {message.batch} is not among them")
    return place.base + message.batch, place.base + message.batch
