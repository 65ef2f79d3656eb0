"""Writes transcode_vectors.json: what the transcoder made of fixed input when its format was laid down.

Deduplication and stored topics rest on it, so a difference is a fault of the transcoder. The file is written again only
to add cases: cd tests && python -m records.make_transcode_vectors
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records.transcode_kit import NATIVE, native_batch, properties

from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import transcode
from kop.records.batch import Record, build, read_header

FILE = Path(__file__).parent / "transcode_vectors.json"
NOW = 1_700_000_000_000

RECORDS: dict[str, Sequence[Record]] = {
    "text": [Record(0, NOW, b"key", b"value", ((b"a", b"1"), (b"b", b"")))],
    "nulls": [Record(0, NOW, None, None), Record(1, NOW + 1, b"", b"")],
    "binary": [Record(0, NOW, b"\xff\x00\x01", b"\x00", ((b"h", b"\xff"), (b"\xfe", b"x")))],
    "duplicate and null headers": [
        Record(0, NOW, b"k", b"v", ((b"a", b"1"), (b"b", None), (b"a", b"2"), (b"c", "ü".encode())))
    ],
    "reserved names": [Record(0, NOW, b"k", b"v", ((b"__kop_headers", b"x"), (b"entry.format", b"kafka")))],
    "as many headers as are shown": [Record(0, NOW, b"k", b"v", tuple((b"%d" % n, b"") for n in range(1000)))],
    "more headers than are shown": [Record(0, NOW, b"k", b"v", tuple((b"%d" % n, b"") for n in range(1001)))],
    "timestamps": [
        Record(index, time, None, b"") for index, time in enumerate((NOW, 0, -1, -(2**40), 1, 2**62, NOW - 5))
    ],
}


def spread(count: int) -> list[Record]:
    """Records of many sizes, some larger than a piece."""
    records = []
    for index in range(count):
        headers = ((b"n", b"%d" % index), (b"n", b"x")) if index % 3 == 0 else ()
        value = bytes([index % 256]) * (index * 37 % 300)
        records.append(Record(index, NOW + index * 7 % 50, b"\x80" * (index % 5) or None, value, headers))
    return records


def to_pulsar(name: str, records: Sequence[Record], max_size: int) -> dict[str, Any]:
    batch = bytes(build(records))
    made = transcode.to_entries(
        batch, read_header(batch), producer_name="kop-1", sequence_base=2**33, publish_time=NOW + 9, max_size=max_size
    )
    entries = [
        {"metadata": e.metadata.hex(), "payload": e.payload.hex(), "messages": e.num_messages, "first": e.first}
        for e in made
    ]
    return {"name": name, "batch": batch.hex(), "max_size": max_size, "entries": entries}


def to_kafka(name: str, entry: tuple[bytes, bytes], log_append_time: int | None = None) -> dict[str, Any]:
    batch = transcode.to_batch(*entry, base_offset=10**12, log_append_time=log_append_time)
    return {
        "name": name,
        "metadata": entry[0].hex(),
        "payload": entry[1].hex(),
        "log_append_time": log_append_time,
        "batch": batch.hex(),
    }


def native_entries() -> dict[str, tuple[bytes, bytes]]:
    single = pb.SingleMessageMetadata
    stub = single(compacted_out=True, partition_key="k")
    metadata = pb.MessageMetadata(
        **NATIVE, partition_key="k", event_time=5, properties=properties(("b", "1"), ("a", "2"))
    )
    nothing = pb.MessageMetadata(**NATIVE, null_value=True, ordering_key=b"\x00")
    return {
        "batch": native_batch(
            [
                (single(partition_key="k", event_time=NOW), b"v"),
                (single(partition_key="/wA=", partition_key_b64_encoded=True), b""),
                (single(null_value=True, ordering_key=b"o"), b""),
                (single(properties=properties(("b", "2"), ("a", "1"), ("b", "3"))), b"w"),
            ]
        ),
        "compacted": native_batch([(stub, b""), (single(partition_key="l", event_time=NOW), b"v"), (stub, b"")]),
        "all compacted": native_batch([(stub, b""), (stub, b"")]),
        "single": (metadata.SerializeToString(), b"value"),
        "single null": (nothing.SerializeToString(), b""),
        "marker": (pb.MessageMetadata(**NATIVE, marker_type=21).SerializeToString(), b""),
    }


def main() -> None:
    written = {
        "to_pulsar": [to_pulsar(name, records, 5 << 20) for name, records in RECORDS.items()]
        + [to_pulsar("split", spread(40), 1200), to_pulsar("split into ones", spread(5), 800)],
        "to_kafka": [to_kafka(name, entry) for name, entry in native_entries().items()]
        + [to_kafka("log append time", native_entries()["batch"], NOW + 77)],
    }
    FILE.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
