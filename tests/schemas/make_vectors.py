"""Makes vectors.json beside this file: records as confluent-kafka's serializers and pulsar-client write them.

Needs an environment of its own, and registers with the stub registry of this checkout:

    pip install 'confluent-kafka[avro,json,protobuf,schemaregistry]==2.16.1' 'pulsar-client[avro]==3.13.0'
    PYTHONPATH=. python tests/schemas/make_vectors.py

Each group has the schemas of a registry (the first has id 1) and records with the rows that they are.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
)

from conformance.stub_registry import StubRegistry

TOPIC = "orders"
VALUE = SerializationContext(TOPIC, MessageField.VALUE)
AT = datetime(2026, 1, 31, 12, 30, 0, 123000, tzinfo=UTC)

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
FIRST: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "item", "type": ["null", "string"]},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "labels", "type": {"type": "map", "values": "string"}},
    {"name": "either", "type": ["null", "int", "string"]},
    {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
]
SECOND = [{"name": "more", "type": ["null", "double"], "default": None}, *FIRST]
THIRD = [field for field in SECOND if field["name"] != "item"] + [{"name": "ok", "type": "boolean", "default": True}]
ORDER: dict[str, Any] = {
    "id": 5,
    "item": "Grüntee",
    "price": Decimal("-12.30"),
    "at": AT,
    "day": date(2026, 1, 31),
    "state": "PAID",
    "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 300}],
    "labels": {"x": "y"},
    "either": "text",
    "ref": UUID(int=7),
    "raw": b"\0\1\2",
}


def shown(value: Any) -> Any:
    """A value as the vectors have it, and the tests make of what they read."""
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)


def avro(registry: StubRegistry, client: SchemaRegistryClient) -> list[dict[str, Any]]:
    records = []
    for version, fields in enumerate((FIRST, SECOND, THIRD), 1):
        schema = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
        more = {} if version == 1 else {"more": 1.5} if version == 2 else {"more": None, "ok": False}
        value = ORDER | more
        data = AvroSerializer(client, schema)(value, VALUE)
        row = {field["name"]: value[field["name"]] for field in fields} | {
            "either": {"member0": None, "member1": "text"}
        }
        records.append({"version": version, "data": data.hex(), "row": shown(row)})
    return records


def avro_with_references(registry: StubRegistry, client: SchemaRegistryClient) -> list[dict[str, Any]]:
    client.register_schema("line", Schema(json.dumps(LINE | {"namespace": "shop"}), "AVRO"))
    text = json.dumps(
        {"type": "record", "name": "Basket", "namespace": "shop", "fields": [{"name": "line", "type": "shop.Line"}]}
    )
    schema = Schema(text, "AVRO", [SchemaReference("shop.Line", "line", 1)])
    row = {"line": {"sku": "a", "count": 2}}
    return [{"version": 1, "data": AvroSerializer(client, schema)(row, VALUE).hex(), "row": row}]


def json_schema(registry: StubRegistry, client: SchemaRegistryClient) -> list[dict[str, Any]]:
    records = []
    properties: dict[str, Any] = {
        "id": {"type": "integer"},
        "item": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "labels": {"type": "object", "additionalProperties": {"type": "number"}},
    }
    row: dict[str, Any] = {
        "id": 5,
        "item": "Grüntee",
        "at": "2026-01-31T12:30:00.123Z",
        "lines": [{"sku": "a"}],
        "labels": {"x": 1.5},
    }
    for version in (1, 2, 3):
        if version == 2:
            properties |= {"more": {"type": "number"}}
            row |= {"more": 1.5}
        if version == 3:
            properties = {name: kind for name, kind in properties.items() if name != "item"}
            row = {name: value for name, value in row.items() if name != "item"}
        text = json.dumps({"title": "Order", "type": "object", "properties": properties})
        data = JSONSerializer(text, client, lambda value, _: value)(row, VALUE)
        at = str(datetime.fromisoformat(row["at"]))
        records.append({"version": version, "data": data.hex(), "row": row | {"at": at}})
    return records


def order_file(version: int) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"order{version}.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Line").field.add(name="sku", number=1, type=9, label=1)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Detail")
    line.field.add(name="note", number=1, type=9, label=1)
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order.field.add(name="id", number=1, type=3 if version > 1 else 5, label=1)
    order.field.add(name="lines", number=2, type=11, type_name=".shop.Line", label=3)
    order.field.add(name="labels", number=3, type=11, type_name=".shop.Order.LabelsEntry", label=3)
    order.field.add(name="at", number=4, type=11, type_name=".google.protobuf.Timestamp", label=1)
    order.field.add(name="state", number=5, type=14, type_name=".shop.Order.State", label=1)
    order.field.add(name="detail", number=6, type=11, type_name=".shop.Order.Detail", label=1)
    if version > 1:
        order.field.add(name="more", number=7, type=1, label=1)
    if version > 2:
        del order.field[4]
        order.field.add(name="big", number=8, type=4, label=1)
    return file


def protobuf(registry: StubRegistry, client: SchemaRegistryClient) -> list[dict[str, Any]]:
    records = []
    for version in (1, 2, 3):
        pool = descriptor_pool.DescriptorPool()
        from google.protobuf import timestamp_pb2

        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        pool.AddSerializedFile(order_file(version).SerializeToString())
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
        message: Any = kind(id=5, labels={"x": 1})
        message.lines.add(sku="a")
        message.at.FromDatetime(AT.replace(tzinfo=None))
        row: dict[str, Any] = {"id": 5, "lines": [{"sku": "a"}], "labels": {"x": 1}, "at": str(AT), "detail": None}
        if version < 3:
            message.state = 1
            row["state"] = "PAID"
        if version > 1:
            message.more = 1.5
            row["more"] = 1.5
        if version > 2:
            message.big = 2**64 - 1
            row["big"] = str(2**64 - 1)
        data = ProtobufSerializer(kind, client, {"use.deprecated.format": False})(message, VALUE)
        records.append({"version": version, "data": data.hex(), "row": row})
    detail = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order.Detail"))
    data = ProtobufSerializer(detail, client, {"use.deprecated.format": False})(detail(note="hi"), VALUE)
    records.append({"version": 3, "message": "shop.Order.Detail", "data": data.hex(), "row": {"note": "hi"}})
    return records


class Line(Record):  # type: ignore[misc]
    sku = String()
    count = Integer()


class First(Record):  # type: ignore[misc]
    id = Long()
    item = String()
    price = Double()
    lines = Array(Line())
    labels = Map(String())
    raw = Bytes()


class Second(Record):  # type: ignore[misc]
    id = Long()
    item = String()
    price = Double()
    lines = Array(Line())
    labels = Map(String())
    raw = Bytes()
    more = Float()


class Third(Record):  # type: ignore[misc]
    id = Long()
    price = Double()
    lines = Array(Line())
    labels = Map(String())
    more = Float()
    ok = Boolean(default=True)


def pulsar(kind: Any) -> list[dict[str, Any]]:
    records = []
    for version, record in enumerate((First, Second, Third)):
        values: dict[str, Any] = {"id": 5, "price": 1.25, "labels": {"x": "y"}}
        row: dict[str, Any] = values | {"lines": [{"sku": "a", "count": 2}]}
        if version < 2:
            values |= {"item": "Grüntee"} | ({} if kind is JsonSchema else {"raw": b"\0\1"})
            row |= shown({"item": "Grüntee", "raw": values.get("raw")})
        if version:
            values |= {"more": 0.5}
            row |= {"more": 0.5}
        if version == 2:
            values |= {"ok": False}
            row |= {"ok": False}
        record.__name__ = "Order"
        made = record(lines=[Line(sku="a", count=2)], **values)
        schema = kind(record)
        data = schema.encode(made)
        text = schema.schema_info().schema()
        records.append({"version": version, "schema": text, "data": data.hex(), "row": row})
    return records


def main() -> None:
    groups: dict[str, Any] = {}
    for make in (avro, avro_with_references, json_schema, protobuf):
        with StubRegistry() as registry:
            client = SchemaRegistryClient({"url": registry.url})
            records = make(registry, client)
            groups[make.__name__] = {
                "schemas": registry.schemas,
                "subjects": registry.subjects,
                "records": records,
            }
    groups["pulsar_avro"] = {"records": pulsar(AvroSchema)}
    groups["pulsar_json"] = {"records": pulsar(JsonSchema)}
    path = Path(__file__).with_name("vectors.json")
    path.write_text(json.dumps(groups, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
