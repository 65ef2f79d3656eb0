"""Bodies of Produce requests, well-formed ones and the same with damage."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

from crc32c import crc32c

from kop.records.batch import HEADER_SIZE, Record, build
from kop.records.compression import Codec
from kop.varints import varint_bytes

NOW = int(time.time() * 1000)
"""Of this moment, or upkeep would forget producers at moments of its own."""
VALUES = [None, b"", b"xxx", b"x" * 200]


def request(version: int, topics: list[tuple[Any, list[tuple[int, bytes | None]]]], acks: int = -1) -> bytes:
    """The body of a Produce; a topic is a name, or the 16 bytes of an id from version 13 on."""
    flexible = version >= 9

    def count(number: int) -> bytes:
        return varint_bytes(number + 1) if flexible else struct.pack(">i", number)

    tags = b"\0" if flexible else b""
    parts = [b"" if version < 3 else b"\0" if flexible else b"\xff\xff", struct.pack(">hi", acks, 30_000)]
    parts.append(count(len(topics)))
    for name, partitions in topics:
        if version >= 13:
            parts.append(name)
        else:
            raw = name.encode()
            parts += [varint_bytes(len(raw) + 1) if flexible else struct.pack(">h", len(raw)), raw]
        parts.append(count(len(partitions)))
        for index, records in partitions:
            parts.append(struct.pack(">i", index))
            if records is None:
                parts.append(b"\0" if flexible else b"\xff\xff\xff\xff")
            else:
                parts += [count(len(records)), records]
            parts.append(tags)
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)


def any_batch(rng: random.Random, sequences: dict[int, int]) -> bytes:
    """A batch that is right, or nearly so."""
    count = rng.choice([1, 1, 2, 5, 40])
    base = rng.choice([NOW, NOW, NOW, -1, 0, NOW - 10**9, NOW + 10**7])
    producer = rng.choice([-1, -1, 5, 6])
    records = [
        Record(i, base + (i if base >= 0 else 0), rng.choice([None, b"", b"key"]), rng.choice(VALUES))
        for i in range(count)
    ]
    sequence = sequences.get(producer, 0) if rng.random() < 0.9 else rng.randrange(50)
    if producer >= 0:
        sequences[producer] = sequence + count
    made = build(
        records,
        codec=rng.choice([0, 0, 0, Codec.GZIP, Codec.LZ4, Codec.ZSTD]),
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
        log_append_time=rng.random() < 0.03,
        transactional=rng.random() < 0.03,
        control=rng.random() < 0.03,
    )
    if rng.random() < 0.1 and len(made) > HEADER_SIZE:
        made[rng.randrange(HEADER_SIZE, len(made))] ^= 1 << rng.randrange(8)
        struct.pack_into(">I", made, 17, _crc(made) if rng.random() < 0.8 else 0)
    if rng.random() < 0.1:
        made[rng.randrange(HEADER_SIZE)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.7:
            struct.pack_into(">I", made, 17, _crc(made))
    if rng.random() < 0.03:
        made = made + made
    if rng.random() < 0.03:
        made = made[: rng.randrange(len(made))]
    return bytes(made)


def _crc(batch: bytearray) -> int:
    return crc32c(memoryview(batch)[21:])


def any_body(rng: random.Random, version: int, names: list[Any], sequences: dict[int, int]) -> bytes:
    topics = [
        (
            rng.choice(names),
            [
                (rng.choice([0, 0, 1, 2, 9, -1]), None if rng.random() < 0.05 else any_batch(rng, sequences))
                for _ in range(rng.choice([0, 1, 1, 1, 3]))
            ],
        )
        for _ in range(rng.choice([0, 1, 1, 1, 2]))
    ]
    body = bytearray(request(version, topics, rng.choice([-1, -1, -1, 1, 0, 2])))
    if rng.random() < 0.25:
        body[rng.randrange(min(len(body), 60) if rng.random() < 0.7 else len(body))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.05:
        del body[rng.randrange(len(body)) :]
    if rng.random() < 0.03:
        body += b"\0"
    return bytes(body)
