"""The values that callers of the client hand in and get back.

Owns: positions, entries and the interface of authentication.
Must not know: sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

Buffer: TypeAlias = bytes | bytearray | memoryview
Access = Literal["shared", "exclusive", "exclusive_with_fencing", "wait_for_exclusive"]


class Position(NamedTuple):
    """The place of an entry: a ledger's id and the entry's number in it. Pulsar's 2^64-1 is -1 here."""

    ledger: int
    entry: int


EARLIEST = Position(-1, -1)
"""A start of a reader: the first entry that is kept."""
LATEST = Position(2**63 - 1, 2**63 - 1)
"""A start of a reader: behind the last entry."""
DUPLICATE = Position(-1, -1)
"""A receipt which says that deduplication dropped the entry: an earlier copy is stored somewhere."""


class TxnId(NamedTuple):
    """The name of a Pulsar transaction: the number of its coordinator, and its number there."""

    most: int
    least: int


@dataclass(slots=True)
class Entry:
    """One entry as the broker sent it, its checksum verified.

    `metadata` is the serialized MessageMetadata and `payload` what follows it, as stored (maybe compressed, maybe one
    chunk of a message). Both are read-only views of bytes that are this entry's alone, or that a reader lends
    (`borrow`).
    """

    position: Position
    index: int | None
    """The broker's index of the entry's last message; None from a broker that does not send it."""
    broker_timestamp: int
    """When the broker took the entry, in ms since 1970; 0 where it does not say."""
    num_messages: int
    """Messages in the entry, by its metadata (1 where that is no batch)."""
    metadata: memoryview
    payload: memoryview
    damaged: str = ""
    """Why the entry cannot be read; then metadata and payload are empty."""


Receipt: TypeAlias = tuple[int, int, int, int, int]
"""What a broker says of an entry that it took: producer id, sequence id, highest sequence id (0 where it does not say),
ledger and entry, both -1 where deduplication dropped the entry."""
Message: TypeAlias = tuple[int, int, int, int | None, int, int, memoryview, memoryview, str]
"""A message as it came: consumer id, ledger, entry; then as in `Entry` index, broker_timestamp, num_messages, metadata,
payload, damaged. Of a damaged one whose index cannot be read either, num_messages is 0."""
Received: TypeAlias = list[Receipt] | Message | bytes
"""Receipts of one producer, a message, or another command as a serialized BaseCommand."""


def position_in(received: Sequence[Received], at: int) -> Position:
    """Return the position of the message at place `at` of what a read brought."""
    message = cast(Message, received[at])
    return Position(message[1], message[2])


class Auth(Protocol):
    """How the client proves who it is."""

    method: str
    """Pulsar's name of the method, such as "token"."""

    async def data(self) -> bytes:
        """Return fresh credentials; called for every connection and whenever a broker asks again."""
        ...


__all__ = [
    "DUPLICATE",
    "EARLIEST",
    "LATEST",
    "Access",
    "Auth",
    "Buffer",
    "Entry",
    "Message",
    "Position",
    "Receipt",
    "Received",
    "TxnId",
    "position_in",
]
