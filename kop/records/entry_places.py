"""The entries of Pulsar that keep the records of a partition, as an answer of Fetch names them to a client that asks.

Owns: the number of the tagged field, and its layout.
Must not know: requests and answers, how entries are read, who asks.

Kafka's protocol has no field for them. A Fetch request asks by the tagged field TAG in its body, whatever that holds.
In the answer each partition that lies in Pulsar then has a field of the same number, with what `pack_places` makes.
Servers that do not know the field step over it (KIP-482), and give none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

TAG: Final = 10_000
_LAYOUT: Final = struct.Struct(">qqqqb")
_MOST: Final = 2**63 - 1


class PlacedEntry(NamedTuple):
    """An entry of Pulsar: the records from `base_offset` on are its messages, up to the base offset of the next one."""

    base_offset: int
    ledger: int
    entry: int
    publish_time: int
    """The time at which its producer sent it, by the producer's clock, in ms since the epoch."""
    batched: bool
    """True if its messages are numbered within it, from 0 at `base_offset` on; else it is one message without a
    number.
    """


def pack_places(places: Iterable[PlacedEntry]) -> bytes:
    """Encode entries as the tagged field of a Fetch answer; a time that is too large for it is cut to the largest."""
    return b"".join(
        [_LAYOUT.pack(base, ledger, entry, min(time, _MOST), batched) for base, ledger, entry, time, batched in places]
    )


def unpack_places(field: bytes) -> list[PlacedEntry]:
    """Decode the tagged field of a Fetch answer: return the entries in the order of their offsets. ValueError for a
    field of another layout.
    """
    if len(field) % _LAYOUT.size:
        raise ValueError(f"{len(field)} bytes are not entries of {_LAYOUT.size} bytes each")
    return [
        PlacedEntry(b, ledger, entry, time, flag != 0) for b, ledger, entry, time, flag in _LAYOUT.iter_unpack(field)
    ]
