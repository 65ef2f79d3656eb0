"""What the Python suites assert alike: sample records and looks at the stored batches.

Must not know: any client library.
"""

from __future__ import annotations

import rawlog
from suite import Run, eventually, same

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# (key, value, headers): nothing, emptiness, bytes that are no text, repeated names, a null and an empty header value.
ODD_RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (None, b"no key", []),
    (b"", b"empty key", []),
    (b"null value", None, []),
    (b"empty value", b"", []),
    (None, None, []),
    (bytes(range(256)), bytes(reversed(range(256))), []),
    (b"headers", b"h", [("a", b"1"), ("a", b"2"), ("b", bytes(range(256))), ("null", None), ("empty", b"")]),
    ("kluč".encode(), "значение 値".encode(), [("ключ", "значение".encode())]),
]


def values(count: int, size: int = 100) -> list[bytes]:
    """`count` values that compress well and can be told apart."""
    return [f"{i:08d} ".encode() + b"abcdefgh" * (size // 8) for i in range(count)]


def stored(run: Run, topic: str, partition: int = 0) -> list[rawlog.Batch]:
    """The batches of a partition as the server holds them."""
    return rawlog.batches(*run.plain, topic, partition)


def check_codec(run: Run, topic: str, codec: str) -> None:
    """Every stored batch carries the bits of this codec: the client did compress, the server did not undo it."""
    batches = stored(run, topic)
    assert batches, "nothing is stored"
    same({b.codec for b in batches}, {codec}, "codec bits of the stored batches")
    same({b.magic for b in batches}, {2}, "magic of the stored batches")


def check_idempotent(run: Run, topic: str, records: int, partition: int = 0) -> None:
    """One producer id, and sequences that follow each other without a hole, as offsets do."""
    batches = stored(run, topic, partition)
    same(sum(b.count for b in batches), records, "records stored")
    same({(b.producer_id >= 0, b.producer_epoch) for b in batches}, {(True, 0)}, "(has producer id, epoch)")
    same(len({b.producer_id for b in batches}), 1, "producer ids")
    sequence = offset = 0
    for batch in batches:
        same((batch.base_sequence, batch.base_offset), (sequence, offset), "(sequence, offset)")
        sequence += batch.count
        offset += batch.count


def check_log_append_time(run: Run, topic: str) -> None:
    """The batches say that their time is the server's."""
    same({b.log_append_time for b in stored(run, topic)}, {True}, "LogAppendTime bit of the stored batches")


def wait_stored(run: Run, topic: str, records: int, partition: int = 0, seconds: float = 10) -> None:
    """acks=0 says nothing: wait until the records are there."""
    eventually(lambda: sum(b.count for b in stored(run, topic, partition)) >= records, seconds)


def check_split(parts: list[set[int]], partitions: int) -> bool:
    """Whether members share all partitions, each with one owner, evenly to within one."""
    sizes = sorted(len(part) for part in parts)
    union = set().union(*parts)
    return sum(sizes) == partitions == len(union) and sizes[-1] - sizes[0] <= 1
