"""The transcoder makes of fixed input what it always made: retries are deduplicated across versions by it."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from records.make_transcode_vectors import FILE
from records.transcode_kit import TWINS, read, using

from kop.records import transcode
from kop.records.batch import read_header

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text())
pytestmark = pytest.mark.parametrize("twin", TWINS)


def hexed(case: dict[str, Any], name: str) -> bytes:
    return bytes.fromhex(case[name])


@pytest.mark.parametrize("case", VECTORS["to_pulsar"], ids=lambda case: case["name"])
def test_batch_to_entries(twin: ModuleType, case: dict[str, Any]) -> None:
    batch = hexed(case, "batch")
    with using(twin):
        made = transcode.to_entries(
            batch,
            read_header(batch),
            producer_name="kop-1",
            sequence_base=2**33,
            publish_time=1_700_000_000_009,
            max_size=case["max_size"],
        )
        assert made == [
            (hexed(entry, "metadata"), hexed(entry, "payload"), entry["messages"], entry["first"])
            for entry in case["entries"]
        ]
        records = []
        for entry in made:
            back = transcode.to_batch(entry.metadata, entry.payload, base_offset=entry.first, log_append_time=None)
            records += read(back)[1]
    assert records == read(batch)[1]


@pytest.mark.parametrize("case", VECTORS["to_kafka"], ids=lambda case: case["name"])
def test_entry_to_batch(twin: ModuleType, case: dict[str, Any]) -> None:
    with using(twin):
        made = transcode.to_batch(
            hexed(case, "metadata"),
            hexed(case, "payload"),
            base_offset=10**12,
            log_append_time=case["log_append_time"],
        )
    assert made == hexed(case, "batch")
