"""The messages from which outputs were made: the headers that tell them, for many outputs at once.

Owns: the names of these headers, and what is in them: the topic, and the id of the message as Pulsar's clients read it.
Must not know: record batches, who writes the outputs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from kop.client.batches import HeaderRun
from kop.varints import varint_bytes

TOPIC_HEADER: Final = "__pfn_input_topic__"
ID_HEADER: Final = "__pfn_input_msg_id__"
_NAMES: Final = (TOPIC_HEADER.encode(), ID_HEADER.encode())
ENTRY_BITS: Final = 28
"""The number of lower bits of an offset that stand for the entry in an id of Pulsar, the others for the ledger."""
BLOCK: Final = 128
"""The number of offsets in a row that have ids that differ in their lowest seven bits alone."""


def message_id(index: int, offset: int) -> bytes:
    """Return an id as Pulsar's `MessageId.deserialize` reads it: a protobuf of ledger, entry and partition."""
    numbers = offset >> ENTRY_BITS, offset & (1 << ENTRY_BITS) - 1, index
    return b"".join(bytes([field << 3]) + varint_bytes(number) for field, number in enumerate(numbers, 1))


def headers(topic: str, index: int, offset: int) -> list[tuple[str, bytes]]:
    """Return the headers of an output that was made from a message of a partition."""
    return [(TOPIC_HEADER, topic.encode()), (ID_HEADER, base64.urlsafe_b64encode(message_id(index, offset)))]


def header_runs(topic: str, index: int, offsets: Sequence[int]) -> Iterator[HeaderRun]:
    """Yield the headers, as `headers` makes them, for outputs of many messages of a partition, whose offsets ascend.

    Ids of one block of 128 offsets differ in one byte, the lowest of the entry. So the rest is made once a block, and
    base64 is made of all ids of one size together.
    """
    name = topic.encode()
    start = 0
    for (at, size), blocks in groupby(_blocks(index, offsets), lambda block: block[0]):
        padding = bytes(-size % 3)
        parts, counts = zip(*[((made + padding) * count, count) for _, made, count in blocks], strict=True)
        count = sum(counts)
        raw = bytearray(b"".join(parts))
        raw[at :: size + len(padding)] = _lowest(offsets[start : start + count], raw[at] & 0x80)
        ids = bytearray(base64.urlsafe_b64encode(raw))
        id_size = len(ids) // count
        for place in range(id_size - len(padding), id_size):
            ids[place::id_size] = b"=" * count
        values = bytearray((name + bytes(id_size)) * count)
        for place in range(id_size):
            values[len(name) + place :: len(name) + id_size] = ids[place::id_size]
        yield HeaderRun(count, _NAMES, (len(name), id_size), values)
        start += count


def _blocks(index: int, offsets: Sequence[int]) -> Iterator[tuple[tuple[int, int], bytes, int]]:
    """Yield for each block of offsets: where in the id the lowest byte of the entry is and how many bytes the entry
    takes, the id of the block, and how many offsets the block has.
    """
    first, last = offsets[0], offsets[-1]
    if last - first == len(offsets) - 1:
        counts = [
            (block, min(last, block * BLOCK + BLOCK - 1) - max(first, block * BLOCK) + 1)
            for block in range(first // BLOCK, last // BLOCK + 1)
        ]
    else:
        counts = [(block, len(list(some))) for block, some in groupby(offsets, lambda offset: offset // BLOCK)]
    for block, count in counts:
        made = message_id(index, block * BLOCK)
        yield (2 + len(varint_bytes(block * BLOCK >> ENTRY_BITS)), len(made)), made, count


def _lowest(offsets: Sequence[int], more: int) -> bytes:
    """Return the lowest seven bits of each offset, with the bit that says that more follow."""
    bits = bytes(range(more, more + BLOCK))
    first = offsets[0] % BLOCK
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return (bits * (len(offsets) // BLOCK + 2))[first : first + len(offsets)]
    return bytes([bits[offset % BLOCK] for offset in offsets])
