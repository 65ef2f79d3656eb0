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
"""The start of a reader at the first entry that is kept."""
LATEST = Position(2**63 - 1, 2**63 - 1)
"""The start of a reader behind the last entry."""
DUPLICATE = Position(-1, -1)
"""The position in a receipt for an entry that deduplication dropped: an earlier copy is stored somewhere."""


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
    """The time at which the broker took the entry, in ms since 1970; 0 if it does not say."""
    num_messages: int
    """The number of messages in the entry, by its metadata (1 if it is no batch)."""
    metadata: memoryview
    payload: memoryview
    damaged: str = ""
    """The reason if the entry cannot be read, with empty metadata and payload; an empty text otherwise."""


Receipt: TypeAlias = tuple[int, int, int, int, int]
"""The type of a broker's receipt for an entry: producer id, sequence id, highest sequence id (0 if it does not say),
ledger and entry, both -1 if deduplication dropped the entry.
"""
Message: TypeAlias = tuple[int, int, int, int | None, int, int, memoryview, memoryview, str]
"""The type of a received message: consumer id, ledger, entry; then as in `Entry` index, broker_timestamp, num_messages,
metadata, payload, damaged. Of a damaged one whose index cannot be read either, num_messages is 0.
"""
Received: TypeAlias = list[Receipt] | Message | bytes
"""The type of an item of a read: receipts of one producer, a message, or another command as a serialized
BaseCommand.
"""


def position_in(received: Sequence[Received], at: int) -> Position:
    """Return the position of the message at place `at` among the items of one read."""
    message = cast(Message, received[at])
    return Position(message[1], message[2])


class Auth(Protocol):
    """A source of credentials, by which the client proves its identity."""

    method: str
    """The name of the authentication method in Pulsar, such as "token"."""

    async def data(self) -> bytes:
        """Return fresh credentials; called for every connection and whenever a broker asks again."""
        ...
