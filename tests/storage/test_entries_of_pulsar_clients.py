"""What Pulsar's own clients and its compaction stored in a real Pulsar (conformance/vectors/pulsar), read by a gateway.

Owns: equality with what was sent, for each client, codec and way to put messages into entries; what is refused, by
name.
Must not know: how a message holds a record (tests/records), a running Pulsar.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from records.transcode_kit import TWINS, read, using

from kop.errors import ErrorCode
from kop.pulsar_client import Entry, Position
from kop.pulsar_client.outage import Outage
from kop.records import transcode
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.offsets import mapping
from kop.storage.pulsar.reading.batches import Batch, Converter

FILE = Path(__file__).parents[2] / "conformance" / "vectors" / "pulsar" / "entries.jsonl.gz"

with gzip.open(FILE, "rt", encoding="utf-8") as _lines:
    VECTORS: list[dict[str, Any]] = [json.loads(line) for line in _lines]

pytestmark = pytest.mark.parametrize("twin", TWINS)


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def converted(vector: dict[str, Any]) -> tuple[list[Batch], Faults]:
    """The topic from offset 0 on, as a reader of what is stored makes it."""
    faults = Faults(lambda: 0.0, Outage())
    places = mapping.offset_mapping("index", faults)
    converter = Converter("t-0", 0, places, append_time=False, count=faults.count, max_message_bytes=1 << 20)
    batches: list[Batch] = []
    for number, stored in enumerate(vector["entries"]):
        metadata, payload = (memoryview(base64.b64decode(stored[name])) for name in ("metadata", "payload"))
        view = transcode.parse_entry(metadata)
        entry = Entry(Position(7, number), stored["index"], 1, view.num_messages, metadata, payload)
        batches += converter.feed(places.place(entry))
    return batches, faults


def records(batches: list[Batch]) -> list[tuple[object, ...]]:
    """All that is in the batches, whose offsets have to follow one another."""
    expected = 0
    inside: list[tuple[object, ...]] = []
    for batch in batches:
        assert batch.base == expected, "no offset is left out, and none comes twice"
        expected = batch.last + 1
        if batch.error is None:
            header, in_batch = read(batch.data)
            assert (header.base_offset, header.last_offset) == (batch.base, batch.last)
            inside += [(each.offset, each.timestamp, each.key, each.value, sorted(each.headers)) for each in in_batch]
    return inside


def sent(vector: dict[str, Any]) -> list[tuple[object, ...]]:
    """What the vector says that readers get. A client's properties are a map, so their order is its own."""
    return [
        (
            each["offset"],
            each["timestamp"],
            data(each["key"]),
            data(each["value"]),
            sorted((name.encode(), value.encode()) for name, value in each["headers"].items()),
        )
        for each in vector["records"]
    ]


def test_what_was_sent_is_read_or_refused_by_name(twin: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    for vector in VECTORS:
        caplog.clear()
        with using(twin):
            batches, faults = converted(vector)
        assert records(batches) == sent(vector), vector["name"]
        errors = [batch.error for batch in batches if batch.error is not None]
        assert bool(errors) == bool(vector["refused"]), vector["name"]
        for error, line in zip(errors, caplog.messages, strict=True):
            assert error.code is ErrorCode.CORRUPT_MESSAGE
            assert vector["refused"] in error.message
            assert error.message in line
        counts = {"entries_unreadable/not_decoded": len(errors)} if errors else {}
        assert faults.counts == counts, vector["name"]
