"""Record batches made by Kafka's own Java code (conformance/vectors), header by header and record by record.

Owns: equality with what Kafka's own reader sees in them, over every codec and its levels, and what we refuse.
Must not know: who stores them. test_record_vectors.py has Kafka's answers to batches that clients send.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from kop.errors import ErrorCode, PeerError
from kop.records.batch import check_produced, iter_batches, iter_records, read_header

FILE = Path(__file__).parents[2] / "conformance" / "vectors" / "batches.jsonl.gz"
LIMIT = 1 << 20

with gzip.open(FILE, "rt", encoding="utf-8") as _lines:
    VECTORS = [json.loads(line) for line in _lines]


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.mark.parametrize("vector", [v for v in VECTORS if not v["name"].startswith("magic-")], ids=lambda v: v["name"])
def test_headers_and_records_are_what_java_sees(vector: dict[str, Any]) -> None:
    raw = base64.b64decode(vector["bytes"])
    batches = list(iter_batches(raw))
    assert len(batches) == len(vector["batches"])
    for (pos, header), java in zip(batches, vector["batches"], strict=True):
        assert header.size == java["size"]
        assert (header.magic, header.codec, header.crc) == (java["magic"], java["codec_id"], java["crc"])
        assert header.log_append_time == (java["timestamp_type"] == "LogAppendTime")
        assert (header.base_offset, header.last_offset, header.next_offset) == (
            java["base_offset"],
            java["last_offset"],
            java["next_offset"],
        )
        assert (header.leader_epoch, header.record_count) == (java["leader_epoch"], java["count"])
        assert header.max_timestamp == java["max_timestamp"]
        assert (header.producer_id, header.producer_epoch) == (java["producer_id"], java["producer_epoch"])
        assert header.base_sequence == java["base_sequence"]
        if header.producer_id >= 0 and header.record_count:
            assert header.last_sequence == java["last_sequence"]
        assert (header.transactional, header.control) == (java["transactional"], java["control"])
        assert header.delete_horizon == ("delete_horizon" in java)
        batch = raw[pos : pos + header.size]
        records = list(iter_records(batch, max_bytes=LIMIT)) if header.record_count else []
        assert len(records) == len(java["records"])
        for ours, theirs in zip(records, java["records"], strict=True):
            assert (ours.offset, ours.timestamp) == (theirs["offset"], theirs["timestamp"])
            assert ours.key == data(theirs["key"])
            if "value_length" in theirs:
                value = ours.value or b""
                assert (len(value), zlib.crc32(value)) == (theirs["value_length"], theirs["value_crc32"])
            else:
                assert ours.value == data(theirs["value"])
            headers = [(key.encode(), data(value)) for key, value in theirs.get("headers", [])]
            assert list(ours.headers) == headers


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["name"].startswith("magic-")], ids=lambda v: v["name"])
def test_old_formats_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as refused:
        check_produced(base64.b64decode(vector["bytes"]), max_message_bytes=LIMIT, zstd_allowed=True)
    assert refused.value.code in {ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_flipped_byte_behind_the_crc_is_noticed(codec: str) -> None:
    raw = base64.b64decode(next(v for v in VECTORS if v["name"] == f"{codec}-3")["bytes"])
    check_produced(raw, max_message_bytes=LIMIT, zstd_allowed=True)
    assert read_header(raw).record_count == 3
    for position in range(17, len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 0x10
        with pytest.raises(PeerError) as refused:
            check_produced(damaged, max_message_bytes=LIMIT, zstd_allowed=True)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
