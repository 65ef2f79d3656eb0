"""Writers of one topic: which schemas are the same, and how those that are not are told."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from kop.mesh.file import draft_of
from kop.mesh.mesh_check import check

FIELD = descriptor_pb2.FieldDescriptorProto
REMEDY = ": let both write the same, or give each a topic of its own"


def told(first: dict[str, Any], second: dict[str, Any], **mesh: Any) -> list[str]:
    """What is said of two sources of one topic."""
    sources = [
        {"name": name, "format": "json", "output": "t", **given} for name, given in (("a", first), ("b", second))
    ]
    text = json.dumps({"name": "m", "sources": sources, **mesh})
    return [mistake.text.removesuffix(REMEDY) for mistake in check(draft_of(text, "mesh.yaml")).mistakes]


def of(value_format: str, schema: str, **more: str) -> dict[str, Any]:
    return {"valueFormat": value_format, "kopOptions": {"valueSchema": schema, **more}}


def record(*fields: tuple[str, Any], **more: Any) -> str:
    made = [{"name": name, "type": kind, "doc": "a field"} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": made, **more})


def descriptor(name: str, **fields: tuple[int, Any]) -> str:
    """A descriptor set of one file with a message and the enum that a field of it may have."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop")
    file.enum_type.add(name="Kind").value.add(name="SMALL", number=0)
    message = file.message_type.add(name="Order")
    for field, (number, kind) in fields.items():
        message.field.add(name=field, number=number, type=kind, label=FIELD.LABEL_OPTIONAL)
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (of("json", "id BIGINT, price DOUBLE"), of("json", "`price` double,  id: long NOT NULL COMMENT 'a, b'")),
        (of("json", "a STRUCT<b: INT, c: ARRAY<STRING>>"), of("json", "a struct<`b` integer,c:array< string >>")),
        ({"schema": "key STRING, id BIGINT, price DECIMAL(9, 2)"}, of("json", "id BIGINT, price DEC(9,2)")),
        ({"schema": "value STRUCT<id: INT>"}, {"schema": "id INT", "valueFormat": "json"}),
        ({"schema": "value STRING"}, of("json", "id INT")),
        (of("avro", record(("id", "long"))), of("avro", record(("id", {"type": "long"}), doc="orders", aliases=["O"]))),
        (
            of("avro", record(("id", "long"), namespace="shop")),
            of("avro", json.dumps({**json.loads(record(("id", "long"))), "name": "shop.Order"})),
        ),
        (of("avro", record(("id", "long"))), {"valueFormat": "avro"}),
        (of("json", "id INT"), of("json", '{"type": "object"}')),
        (
            of("json", '{"title": "a", "properties": {"title": {"type": "string"}}}'),
            of("json", '{"properties": {"title": {"type": "string", "description": "its name"}}}'),
        ),
        (
            of("json", '{"required": ["a", "b"], "properties": {"a": {"enum": [1, "x"], "type": ["null", "string"]}}}'),
            of("json", '{"required": ["b", "a"], "properties": {"a": {"enum": ["x", 1], "type": ["string", "null"]}}}'),
        ),
        (
            of("json", '{"anyOf": [{"type": "string", "default": "x"}, {"const": 1, "readOnly": true}]}'),
            of("json", '{"anyOf": [{"const": 1, "deprecated": true}, {"type": "string", "writeOnly": false}]}'),
        ),
        (
            of("protobuf", descriptor("a.proto", id=(1, FIELD.TYPE_INT64), price=(2, FIELD.TYPE_DOUBLE))),
            of(
                "protobuf",
                descriptor("b.proto", price=(2, FIELD.TYPE_DOUBLE), id=(1, FIELD.TYPE_INT64)),
                valueMessage="shop.Order",
            ),
        ),
        (of("json", "id @@"), of("json", "id INT")),
    ],
)
def test_what_means_the_same_is_the_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert told(first, second) == []


@pytest.mark.parametrize(
    ("first", "second", "mistake"),
    [
        (of("json", "id INT"), of("avro", record(("id", "int"))), "avro of it, and json of a"),
        (of("json", "id INT, p INT"), of("json", "id INT, p DOUBLE"), "json with p DOUBLE of it, and json with p INT"),
        (of("json", "id INT, p INT"), of("json", "id INT"), "json without p of it, and json with p INT of a"),
        (of("json", "id INT"), of("json", "ID INT"), "json without id of it, and json with id INT of a"),
        ({"schema": "id INT"}, {"schema": "id LONG"}, "json with id BIGINT of it, and json with id INT of a"),
        (
            of("avro", record(("a", "int"), ("b", "int"))),
            of("avro", record(("b", "int"), ("a", "int"))),
            "avro of b, a of it, and avro of a, b of a",
        ),
        (
            of("avro", record(("at", {"type": "long", "logicalType": "timestamp-millis"}))),
            of("avro", record(("at", ["null", "long"]))),
            "avro with at null or long of it, and avro with at long as timestamp-millis of a",
        ),
        (of("avro", '"int"'), of("avro", '"long"'), "avro of another schema of it, and avro of a"),
        (
            of("json", '{"properties": {"id": {"type": "string"}}}'),
            of("json", '{"properties": {"id": {"type": "integer"}}}'),
            "json with id integer of it, and json with id string of a",
        ),
        (
            of("json", '{"$defs": {"title": {"type": "string"}}, "$ref": "#/$defs/title"}'),
            of("json", '{"$defs": {"title": {"type": "integer"}}, "$ref": "#/$defs/title"}'),
            "json of another schema of it, and json of a",
        ),
        (
            of("json", '{"patternProperties": {"description": {"type": "string"}}}'),
            of("json", '{"patternProperties": {"description": {"type": "integer"}}}'),
            "json of another schema of it, and json of a",
        ),
        (
            of("json", '{"const": {"title": 1, "required": [1, 2]}}'),
            of("json", '{"const": {"title": 1, "required": [2, 1]}}'),
            "json of another schema of it, and json of a",
        ),
        (
            of("json", '{"prefixItems": [{"type": "string"}, {}]}'),
            of("json", '{"prefixItems": [{}, {"type": "string"}]}'),
            "json of another schema of it, and json of a",
        ),
        (
            of("protobuf", descriptor("a.proto", id=(1, FIELD.TYPE_INT64))),
            of("protobuf", descriptor("a.proto", id=(2, FIELD.TYPE_INT64))),
            "protobuf with id int64 = 2 of it, and protobuf with id int64 = 1 of a",
        ),
    ],
)
def test_what_differs_is_told_by_its_first_field(first: dict[str, Any], second: dict[str, Any], mistake: str) -> None:
    (text,) = told(first, second)
    assert text.startswith(f"source b: output: t gets {mistake}")


def test_a_schema_may_be_that_of_the_mesh_or_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(record(("id", "int")))
    shared = {"valueFormat": "avro", "valueSchema": record(("id", "int"))}
    assert told({}, of("avro", f"@{path}"), kopOptions=shared) == []
    path.write_text(record(("id", "long")))
    (text,) = told({}, of("avro", f"@{path}"), kopOptions=shared)
    assert "avro with id long of it, and avro with id int of a" in text


def test_a_function_is_compared_by_format_and_by_the_class_that_it_names() -> None:
    def of_class(name: str, more: str) -> str:
        return f"- {{name: {name}, className: f, py: f.py, inputs: [in], output: t, outputSchemaType: json{more}}}\n"

    def mistakes(text: str) -> list[str]:
        return [mistake.text for mistake in check(draft_of(text, "mesh.yaml")).mistakes]

    named = of_class("a", ", outputTypeClassName: m.A")
    source = "sources: [{name: s, format: json, output: t, valueFormat: json}]\n"
    assert mistakes(f"name: m\n{source}functions:\n{named}{of_class('b', '')}") == []
    other = of_class("c", ", outputTypeClassName: m.C")
    (text,) = mistakes(f"name: m\nfunctions:\n{named}{of_class('b', '')}{other}")
    assert text.startswith("function c: output: t gets json of m.C of it, and json of m.A of a")
