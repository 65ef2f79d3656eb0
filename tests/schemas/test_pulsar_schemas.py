"""The schemas of topics as Pulsar itself tells them, and records as its client wrote them there."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pulsar as client
import pyarrow as pa
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from support.pulsar import Pulsar

from kop.schemas.access import PulsarAccess
from kop.schemas.columns import SchemaSource, plan, reader_of
from kop.schemas.errors import SchemaError
from kop.schemas.pulsar import topic_schema, topic_schemas


class Order(Record):  # type: ignore[misc]
    id = Integer()


class Later(Record):  # type: ignore[misc]
    id = Integer()
    item = String(required_default=True)


Later.__name__ = "Order"


def read(pulsar: Pulsar, topic: str, column: str, *records: bytes) -> tuple[str, list[Any], dict[int, str]]:
    how = plan(SchemaSource(column, "auto", pulsar=PulsarAccess(pulsar.admin_url), topic=topic))
    values, failures = reader_of(how).read(pa.array(records, pa.binary()))
    return how.sql, values.to_pylist(), failures


def post(pulsar: Pulsar, topic: str, **schema: Any) -> None:
    path = topic.removeprefix("persistent://")
    url = f"{pulsar.admin_url}/admin/v2/schemas/{path}/schema"
    request = urllib.request.Request(url, json.dumps(schema).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


def test_versions_of_a_topic_s_schema_are_told_and_their_records_are_rows(pulsar: Pulsar) -> None:
    avro, text = pulsar.topic("typed-avro"), pulsar.topic("typed-json")
    with_client = client.Client(pulsar.service_url, logger=client.ConsoleLogger(client.LoggerLevel.Error))
    try:
        reader = with_client.create_reader(avro, client.MessageId.earliest)
        for record in (Order(id=5), Later(id=6, item="tea")):
            with_client.create_producer(avro, schema=AvroSchema(type(record))).send(record)
        with_client.create_producer(text, schema=JsonSchema(Later)).send(Later(id=7, item="x"))
        records = [reader.read_next(20_000).data() for _ in range(2)]
    finally:
        with_client.close()
    options = PulsarAccess(pulsar.admin_url)
    assert [(schema.kind, schema.version) for schema in topic_schemas(options, avro)] == [("AVRO", 0), ("AVRO", 1)]
    assert topic_schema(options, avro).version == 1
    assert json.loads(topic_schema(options, avro, 0).text)["name"] == "Order"
    sql, rows, failures = read(pulsar, avro, "value", *records, b"not avro")
    assert sql == "STRUCT<`id`: INT, `item`: STRING>"
    assert rows == [{"id": 5, "item": None}, {"id": 6, "item": "tea"}, None]
    assert failures.keys() == {2}
    assert read(pulsar, text, "value", b'{\n "id": 7,\n "item": "x"\n}')[1] == [{"id": 7, "item": "x"}]
    assert read(pulsar, text, "key", b"k")[:2] == ("STRING", ["k"])


def test_pairs_and_primitives_are_told(pulsar: Pulsar) -> None:
    pair, number, none = pulsar.topic("typed-pair"), pulsar.topic("typed-number"), pulsar.topic("typed-none")
    properties = {
        "key.schema.name": "k",
        "key.schema.type": "INT32",
        "key.schema.properties": "{}",
        "value.schema.name": "v",
        "value.schema.type": "STRING",
        "value.schema.properties": "{}",
        "kv.encoding.type": "SEPARATED",
    }
    post(pulsar, pair, type="KEY_VALUE", schema=json.dumps({"key": "", "value": ""}), properties=properties)
    post(pulsar, number, type="INT64", schema="", properties={})
    assert read(pulsar, pair, "key", b"\0\0\0\5") == ("INT", [5], {})
    assert read(pulsar, pair, "value", b"x") == ("STRING", ["x"], {})
    assert read(pulsar, number, "value", b"\0" * 7 + b"\1")[:2] == ("BIGINT", [1])
    with pytest.raises(SchemaError, match=f"Pulsar has no schema for {none}"):
        topic_schema(PulsarAccess(pulsar.admin_url), none)
    with pytest.raises(SchemaError, match="no version 7 of a schema"):
        topic_schema(PulsarAccess(pulsar.admin_url), number, 7)
