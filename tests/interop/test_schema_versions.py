"""Typed columns of topics in Pulsar, as a task of PySpark reads them through a gateway: the same records are the same
rows, whoever wrote them, and in which version of the schema.
"""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar as native
import pyarrow as pa
import pytest
from interop.interop_kit import Interop
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from conformance.stub_registry import StubRegistry
from kop.client.offsets import LATEST
from kop.client.read_client import ReadClient
from kop.spark.fetching import ReadSettings, read_range
from kop.spark.given import OptionError
from kop.spark.options import batch_options
from kop.spark.planning import OffsetRange
from kop.spark.sink_columns import SinkColumns
from kop.spark.typed_columns import plan_columns, plan_writes
from kop.spark.write_options import write_options

pytestmark = pytest.mark.pulsar
VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "schemas" / "schema_vectors.json").read_text())


class First(Record):  # type: ignore[misc]
    id = Integer()
    rank = Integer()


class Second(Record):  # type: ignore[misc]
    """The same bytes are another row by the first one."""

    rank = Integer()
    id = Integer()


class Third(Record):  # type: ignore[misc]
    item = String(required_default=True)
    rank = Integer()
    id = Integer()


VERSIONS: tuple[Any, ...] = (First, Second, Third)
ROWS: list[dict[str, Any]] = [
    {"item": None, "rank": 1, "id": 5},
    {"item": None, "rank": 2, "id": 6},
    {"item": "tea", "rank": 3, "id": 7},
    {"item": None, "rank": 4, "id": 8},
]
"""The rows of a record of the first version, one of the second, one of the third, and one of the first again."""
for version in VERSIONS:
    version.__name__ = "Order"


def records() -> list[Record]:
    made = []
    for row, version in zip(ROWS, (*VERSIONS, First), strict=True):
        fields = [field["name"] for field in version.schema()["fields"]]
        made.append(version(**{name: row[name] for name in fields}))
    return made


def read(gateway: PulsarGateway, topic: str, **options: str) -> list[dict[str, Any]]:
    """The rows of partition 0."""
    asked = batch_options({"kafka.bootstrap.servers": gateway.bootstrap, "subscribe": topic} | options)
    plan = plan_columns(asked)
    assert plan is not None
    fetch = replace(asked.fetch, schemas=plan.schema_versions)
    settings = ReadSettings(fetch, headers=False, fail_on_data_loss=True, poll_timeout_ms=100_000)
    client = ReadClient(asked.connection.settings, 100_000)
    try:
        topic_id = client.topics({topic})[topic].topic_id
        end = client.list_offsets({(topic, 0): LATEST}, 0)[topic, 0]
        batches = list(read_range(client, OffsetRange(topic, topic_id, 0, 0, end), settings))
    finally:
        client.close()
    maker = plan.make()
    return [row for batch in batches for row in maker.add(batch).to_pylist()]


def values(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


def of_pulsar(interop: Interop, **more: str) -> dict[str, str]:
    return {"valueFormat": "auto", "pulsar.admin.url": interop.pulsar.admin_url, "mode": "PERMISSIVE"} | more


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_versions_that_pulsar_s_client_wrote_are_the_same_rows(interop: Interop, kind: Any) -> None:
    topic = interop.create(interop.name())
    interop.produce(topic, [{"value": b"\x02"}])  # so that the gateway follows the end of the log
    for record in records():
        with_schema = interop.native.create_producer(interop.partition(topic), schema=kind(type(record)))
        with_schema.send(record)
        with_schema.close()
    wait_until(lambda: interop.ends(topic)[1] >= 5, "what was sent beside the gateway")
    interop.known(topic, interop.other)
    for gateway in (interop.gateway, interop.other):  # out of memory, and out of Pulsar
        more = "true" if gateway is interop.other else "false"
        rows = read(gateway, topic, **of_pulsar(interop, includeMetadata=more))
        assert values(rows) == [None, *ROWS]
        assert [row["decodeError"] is None for row in rows] == [False, True, True, True, True]
        assert "schemaVersion" not in rows[0]
    if kind is AvroSchema:
        own = read(interop.gateway, topic, **of_pulsar(interop, schemaVersion="0"))
        assert values(own) == [None, *({name: row[name] for name in ("id", "rank")} for row in ROWS)]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_versions_of_pairs_of_key_and_value_are_the_same_rows(interop: Interop, encoding: str) -> None:
    topic = interop.create(interop.name())
    properties = {"key.schema.name": "k", "key.schema.type": "INT32", "key.schema.properties": "{}"}
    properties |= {"value.schema.name": "v", "value.schema.type": "AVRO", "value.schema.properties": "{}"}
    properties |= {"kv.encoding.type": encoding}
    url = f"{interop.pulsar.admin_url}/admin/v2/schemas/{interop.pulsar.namespace}/{topic}/schema"
    for version in VERSIONS:
        schema = json.dumps({"key": "", "value": version.schema()})
        body = json.dumps({"type": "KEY_VALUE", "schema": schema, "properties": properties}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).close()
    messages: list[tuple[dict[str, Any], bytes]] = []
    for number, record in enumerate(records()):
        key, value = number.to_bytes(4, "big"), AvroSchema(type(record)).encode(record)
        fields: dict[str, Any] = {"schema_version": (number % 3).to_bytes(8, "big")}
        if encoding == "SEPARATED":
            fields |= {"partition_key": b64encode(key).decode(), "partition_key_b64_encoded": True}
        else:
            value = b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))
        messages.append((fields, value))
    interop.send_made(interop.partition(topic), *messages)
    wait_until(lambda: interop.ends(topic)[1] >= 4, "what was sent beside the gateway")
    rows = read(interop.gateway, topic, **of_pulsar(interop, keyFormat="auto"))
    if encoding == "INLINE":
        assert values(rows) == [{"key": number, "value": row} for number, row in enumerate(ROWS)]
    else:
        assert [(row["key"], row["value"]) for row in rows] == list(enumerate(ROWS))
    assert [row["decodeError"] for row in rows] == [None] * 4


def encoded(interop: Interop, topic: str, kind: str, rows: pa.Array) -> list[bytes]:
    """The values that a sink makes of rows by the schema of the topic."""
    asked = {"kafka.bootstrap.servers": interop.gateway.bootstrap, "topic": topic, "valueFormat": kind}
    options = write_options(asked | {"pulsar.admin.url": interop.pulsar.admin_url}, streaming=False)
    columns = SinkColumns.of([("value", "")], topic, plan_writes(options, {"value": rows.type}))
    batch: list[bytes] = columns.batch(pa.RecordBatch.from_arrays([rows], ["value"])).column("value").to_pylist()
    return batch


@pytest.mark.parametrize("kind", ["avro", "json", "int64"])
def test_what_is_written_by_a_topic_s_schema_is_read_by_pulsar_s_client(interop: Interop, kind: str) -> None:
    topic = interop.create(interop.name())
    schemas = {"avro": AvroSchema(Second), "json": JsonSchema(Second), "int64": None}
    if kind == "int64":
        url = f"{interop.pulsar.admin_url}/admin/v2/schemas/{interop.pulsar.namespace}/{topic}/schema"
        body = json.dumps({"type": "INT64", "schema": "", "properties": {}}).encode()
        urllib.request.urlopen(
            urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=30
        ).close()
        rows = pa.array([7, -8], pa.int64())
    else:
        interop.native.create_producer(interop.partition(topic), schema=schemas[kind]).close()
        rows = pa.array([{"rank": 1, "id": 5}, {"rank": None, "id": 6}])
        rows = rows.cast(pa.struct([("rank", pa.int32()), ("id", pa.int32())]))
        with pytest.raises(OptionError, match="the column value: item is no field"):
            encoded(interop, topic, kind, pa.array([{"item": "tea"}]))
        other = {"avro": "json", "json": "avro"}[kind]
        with pytest.raises(OptionError, match=f"the column value: set the format to {kind}: the schema of .* is"):
            encoded(interop, topic, other, rows)
    values = encoded(interop, topic, "auto" if kind == "int64" else kind, rows)
    interop.produce(topic, [{"value": value} for value in values])
    assert [row["value"] for row in read(interop.gateway, topic, **of_pulsar(interop))] == rows.to_pylist()
    if kind != "int64":
        reader = interop.native.create_reader(interop.partition(topic), native.MessageId.earliest, schema=schemas[kind])
        got = [reader.read_next(20_000).value() for _ in range(2)]
        assert [{"rank": record.rank, "id": record.id} for record in got] == rows.to_pylist()


@pytest.mark.parametrize(("group", "wanted"), [("avro", "avro"), ("json_schema", "json"), ("protobuf", "protobuf")])
def test_versions_that_confluent_s_serializers_wrote_are_rows(interop: Interop, group: str, wanted: str) -> None:
    topic = interop.create(interop.name())
    written = VECTORS[group]["records"][:3]
    interop.produce(topic, [{"value": bytes.fromhex(record["data"])} for record in written])
    with StubRegistry() as registry:
        registry.schemas = VECTORS[group]["schemas"]
        registry.subjects = {f"{topic}-value": [1, 2, 3]}
        asked = {"valueFormat": wanted, "schema.registry.url": registry.url}
        asked |= {"valueMessage": "shop.Order"} if wanted == "protobuf" else {}
        rows = values(read(interop.gateway, topic, **asked))
    last = written[-1]["row"]
    assert [row.keys() for row in rows] == [last.keys()] * 3
    same = last.keys() & written[0]["row"].keys()
    assert [{name: row[name] for name in same} for row in rows] == [{name: rows[0][name] for name in same}] * 3
    assert [row["id"] for row in rows] == [5, 5, 5]
    assert [row["more"] for row in rows] == [{"protobuf": 0.0}.get(wanted), 1.5, {"avro": None}.get(wanted, 1.5)]
