"""Control batches against those of Kafka's own codec (conformance/vectors)."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from kop.errors import ErrorCode, PeerError
from kop.records.batch import build, read_header
from kop.records.markers import EndMarker, build_marker, read_marker
from kop.records.record import Record

FILE = Path(__file__).parents[2] / "conformance" / "vectors" / "batches.jsonl.gz"


def kafkas(name: str) -> bytes:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        (vector,) = [row for row in map(json.loads, lines) if row["name"] == name]
    return base64.b64decode(vector["bytes"])


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_kafkas_byte_for_byte(commit: bool) -> None:
    raw = kafkas("control-commit" if commit else "control-abort")
    ours = build_marker(9, 1, commit=commit, coordinator_epoch=5, timestamp=1_700_000_000_000, offset=12)
    assert ours.hex() == raw.hex()
    assert read_marker(raw) == EndMarker(commit, 5)


def test_other_control_records_are_no_markers() -> None:
    batch = build([Record(0, 1, b"\0\0\0\2", b"\0\0\0\0\0\0")], control=True)
    assert read_marker(batch) is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b"\0" * 6), (b"\0\0\0", b"\0" * 6), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0" * 5)]
)
def test_malformed_ones_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(PeerError) as refused:
        read_marker(build([Record(0, 1, key, value)], control=True, transactional=True))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_of_records_is_no_marker() -> None:
    batch = build([Record(0, 1, b"\0\0\0\1", b"\0" * 6)])
    assert not read_header(batch).control
    with pytest.raises(PeerError):
        read_marker(batch)
