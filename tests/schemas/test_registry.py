"""What a registry with Confluent's API is asked: the form of Protobuf's schemas, and what schemas refer to."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from conformance.stub_registry import StubRegistry
from kop.schemas import confluent
from kop.schemas.access import RegistryAccess
from kop.schemas.columns import SchemaSource, plan, reader_of
from kop.schemas.confluent import ConfluentRegistry, frame
from kop.schemas.errors import SchemaError, UnknownSchemaError
from kop.schemas.protobuf import ProtobufSchema
from kop.schemas.writing import plan_writing, writer_of

F = descriptor_pb2.FieldDescriptorProto


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as stub:
        yield stub


def source(registry: StubRegistry, how: str, column: str = "value", **more: Any) -> SchemaSource:
    return SchemaSource(column, how, registry=RegistryAccess(registry.url), subject=f"orders-{column}", **more)


def read(how: SchemaSource, *records: bytes) -> tuple[list[Any], dict[int, str]]:
    values, failures = reader_of(plan(how)).read(pa.array(records, pa.binary()))
    return values.to_pylist(), failures


def file(name: str, message: str, *fields: tuple[str, int, str], imports: tuple[str, ...] = ()) -> Any:
    """A file with one message of fields (name, type, name of the type)."""
    made = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=imports)
    kind = made.message_type.add(name=message)
    for number, (field, type_, named) in enumerate(fields, 1):
        kind.field.add(name=field, number=number, type=F.Type.ValueType(type_), label=1, type_name=named or None)
    return made


ID = ("id", F.TYPE_INT64, "")
MONEY = file("shop/money.proto", "Money", ("cents", F.TYPE_INT64, ""))
LINE = file("line.proto", "Line", ID, ("price", F.TYPE_MESSAGE, ".shop.Money"), imports=("shop/money.proto",))
ORDER = file("order.proto", "Order", ID, ("line", F.TYPE_MESSAGE, ".shop.Line"), imports=("line.proto",))
ROW = {"id": 7, "line": {"id": 1, "price": {"cents": 5}}}
RECORD = b"\0\x08\x07\x12\x06\x08\x01\x12\x02\x08\x05"


def text(*files: Any) -> str:
    """The descriptor of a file, or a set of several, in base64."""
    made = files[0] if len(files) == 1 else descriptor_pb2.FileDescriptorSet(file=files)
    return base64.b64encode(made.SerializeToString()).decode()


def reference(name: str, subject: str, version: int = 1) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def test_protobuf_is_asked_for_as_a_descriptor_since_a_registry_shows_text(registry: StubRegistry) -> None:
    number = registry.add("orders-value", text(file("order.proto", "Order", ID)), "PROTOBUF")
    for path in ("/schemas/ids/1", "/subjects/orders-value/versions/1?format=serialized"):
        _, answer = registry.answer("GET", path, {})
        assert answer["schema"].splitlines() == [
            'syntax = "proto3";',
            "package shop;",
            "message Order {",
            "  int64 id = 1;",
            "}",
        ]
    registry.requests.clear()
    assert read(source(registry, "protobuf"), frame(number) + b"\0\x08\x07") == ([{"id": 7}], {})
    assert registry.requests == [
        "GET /subjects/orders-value/versions/latest",
        "GET /schemas/ids/1?format=serialized",
        "GET /schemas/ids/1",
        "GET /schemas/ids/1?format=serialized",
    ]
    with pytest.raises(SchemaError, match="a registry that knows format=serialized"):
        ProtobufSchema('syntax = "proto3";')


def test_a_descriptor_or_a_set_is_told_by_its_fields(registry: StubRegistry) -> None:
    nameless = file("", "Order", ID)
    nameless.ClearField("name")
    one_set = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[MONEY]).SerializeToString()).decode()
    for schema, first in ((text(nameless), "shop.Order"), (one_set, "shop.Money"), (text(MONEY, LINE), "shop.Line")):
        assert ProtobufSchema(schema).message().full_name == first


def test_what_protobuf_imports_is_found_by_its_references(registry: StubRegistry) -> None:
    registry.add("money", text(MONEY), "PROTOBUF")
    registry.add("line", text(LINE), "PROTOBUF", [reference("shop/money.proto", "money")])
    number = registry.add("orders-value", text(ORDER), "PROTOBUF", [reference("line.proto", "line")])
    assert read(source(registry, "auto", message="shop.Order"), frame(number) + RECORD) == ([ROW], {})
    assert "GET /subjects/money/versions/1?deleted=true" in registry.requests
    registry.add("orders-value", text(ORDER), "PROTOBUF")
    with pytest.raises(SchemaError, match=r"imports line\.proto, which none of its references is"):
        plan(source(registry, "protobuf"))


def test_what_a_json_schema_refers_to_is_found_by_its_references(registry: StubRegistry) -> None:
    money = {"$id": "http://shop/money.json", "type": "object", "properties": {"cents": {"type": "integer"}}}
    line = {
        "$id": "http://shop/line.json",
        "definitions": {"a b": {"type": "boolean"}},
        "properties": {"price": {"$ref": "money.json"}, "ok": {"$ref": "#/definitions/a%20b"}},
    }
    order = {
        "$id": "http://shop/order.json",
        "definitions": {"note": {"type": "string"}},
        "properties": {"line": {"$ref": "line.json"}, "note": {"$ref": "http://shop/order.json#/definitions/note"}},
    }
    registry.add("money", json.dumps(money), "JSON")
    registry.add("line", json.dumps(line), "JSON", [reference("http://shop/money.json", "money")])
    number = registry.add("orders-value", json.dumps(order), "JSON", [reference("http://shop/line.json", "line")])
    rows = read(source(registry, "auto"), frame(number) + b'{"line": {"price": {"cents": 5}, "ok": true}, "note": "x"}')
    assert rows == ([{"line": {"price": {"cents": 5}, "ok": True}, "note": "x"}], {})
    for wrong, told in (
        ("other.json", "the JSON Schema refers to other.json, which is none of its references"),
        ("line.json#/definitions/none", "refers to line.json#/definitions/none, which is not there"),
        ("line.json#line", "write the path, such as #/definitions/line"),
    ):
        changed = order | {"properties": {"line": {"$ref": wrong}}}
        registry.add("orders-value", json.dumps(changed), "JSON", [reference("http://shop/line.json", "line")])
        with pytest.raises(SchemaError, match=told):
            plan(source(registry, "json"))


def test_a_reference_that_is_not_there_is_told_by_its_name(registry: StubRegistry) -> None:
    good = registry.add("orders-value", '"long"')
    number = registry.add("orders-value", '"shop.Line"', references=[reference("shop.Line", "line")])
    with pytest.raises(UnknownSchemaError, match=r"schema 2 refers to shop\.Line, and .* subjects/line/versions/1"):
        ConfluentRegistry(RegistryAccess(registry.url)).of_subject("orders-value")
    rows, failures = read(source(registry, "avro", version=1), frame(number) + b"\x0e", frame(good) + b"\x0e")
    assert rows == [None, 7]
    assert failures[0].startswith("schema 2 is not known: schema 2 refers to shop.Line, and the registry has nothing")


LINE_KIND = pa.struct([("id", pa.int64()), ("price", pa.struct([("cents", pa.int64())]))])
KIND = pa.struct([("id", pa.int64()), ("line", LINE_KIND)])


def test_the_imports_of_a_set_are_registered_under_their_names(registry: StubRegistry) -> None:
    how = source(registry, "protobuf", text=text(MONEY, LINE, ORDER))
    with pytest.raises(UnknownSchemaError, match=r"the registry has nothing at subjects/shop%2Fmoney\.proto"):
        plan_writing(how, KIND, register=False)
    made = plan_writing(how, KIND, register=True)
    assert registry.subjects == {"shop/money.proto": [1], "line.proto": [2], "orders-value": [3]}
    assert registry.schemas[0]["references"] == []
    assert registry.schemas[1]["references"] == [reference("shop/money.proto", "shop/money.proto")]
    assert registry.schemas[2]["references"] == [reference("line.proto", "line.proto")]
    (data,) = writer_of(made)(pa.array([ROW], KIND)).to_pylist()
    assert data == frame(3) + RECORD
    assert plan_writing(how, KIND, register=False) == made
    assert len(registry.schemas) == 3
    assert read(source(registry, "protobuf"), data) == ([ROW], {})
    registry.requests.clear()
    with pytest.raises(SchemaError, match=r"shop\.Line is in line\.proto, which the schema imports"):
        plan_writing(replace(how, message="shop.Line"), LINE_KIND, register=True)
    with pytest.raises(SchemaError, match=r"imports shop/money\.proto, .* protoc --include_imports"):
        plan_writing(replace(how, text=text(LINE, ORDER)), KIND, register=True)
    assert registry.requests == []


def test_a_schema_that_refers_to_others_is_written_by_or_refused(registry: StubRegistry) -> None:
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "line", "type": "Line"}]}
    kind = pa.struct([("line", pa.struct([("id", pa.int64())]))])
    for register in (True, False):
        for how, schema in (("avro", order), ("json", {"properties": {"line": {"$ref": "line.json#/x"}}})):
            with pytest.raises(SchemaError, match=r"let valueSchema have all of its types in it.*[Ll]ine") as caught:
                plan_writing(source(registry, how, text=json.dumps(schema)), kind, register=register)
            assert "by the version that orders-value has" in str(caught.value)
    assert registry.requests == []
    registry.add("line", json.dumps(line))
    number = registry.add("orders-value", json.dumps(order), references=[reference("shop.Line", "line")])
    made = plan_writing(source(registry, "avro"), kind, register=False)
    (data,) = writer_of(made)(pa.array([{"line": {"id": 7}}], kind)).to_pylist()
    assert data == frame(number) + b"\x0e"


@pytest.mark.parametrize("how", ["avro", "protobuf"])
def test_records_of_one_schema_and_of_several_are_rows_in_their_order(how: str, registry: StubRegistry) -> None:
    two = file("order.proto", "Other", ID)
    two.message_type.add(name="Order").field.add(name="id", number=1, type=F.TYPE_INT64, label=1)
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    text_of, kind = (json.dumps(order), "AVRO") if how == "avro" else (text(two), "PROTOBUF")
    first = registry.add("orders-value", text_of, kind)
    order["fields"] = [{"name": "more", "type": "int"}, {"name": "id", "type": "long"}]
    two.message_type[1].field.add(name="more", number=2, type=F.TYPE_INT64, label=1)
    second = registry.add("other", json.dumps(order) if how == "avro" else text(two), kind)
    a, b = (b"\x0e", b"\x02\x10") if how == "avro" else (b"\2\2\x08\x07", b"\2\2\x08\x08\x10\x01")
    a, b = frame(first) + a, frame(second) + b
    message = {} if how == "avro" else {"message": "shop.Order"}
    reader = reader_of(plan(source(registry, how, version=1, **message)))

    def rows(*records: bytes | None) -> tuple[list[Any], set[int]]:
        column = pa.array([b"before", *records, b"behind"], pa.binary()).slice(1, len(records))
        values, failures = reader.read(column)
        return [row and row["id"] for row in values.to_pylist()], set(failures)

    assert rows(a, None, a) == ([7, None, 7], set())
    assert rows(None, a, b, None, a) == ([None, 7, 8, None, 7], set())
    assert rows(a, a[:4], a[:5], b"", b"\1" + a[1:], b"x", a) == ([7, None, None, None, None, None, 7], {1, 2, 3, 4, 5})
    assert rows(b"", a, b"", b) == ([None, 7, None, 8], {0, 2})
    assert rows(a, a[:-1]) == ([7, None], {1})
    assert rows(None) == ([None], set())
    assert rows() == ([], set())
    if how == "protobuf":  # the same id and another message of the file
        assert rows(a, frame(first) + b"\0\x08\x07") == ([7, None], {1})


@pytest.fixture
def answers() -> Iterator[tuple[str, list[bytes]]]:
    """A server's URL, and what it sends to each connection in turn; the last one stays."""
    to_send: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(to_send.pop(0) if len(to_send) > 1 else to_send[0])

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", to_send
        finally:
            server.shutdown()
            thread.join()


CUT_SHORT = b"HTTP/1.1 %s\r\nContent-Length: 100\r\n\r\n{"
NO_HTTP = b"SSH-2.0-OpenSSH\r\n"


def test_an_answer_that_is_cut_short_is_asked_for_again(answers: tuple[str, list[bytes]]) -> None:
    url, to_send = answers
    good = json.dumps({"schema": '"int"'}).encode()
    to_send += [CUT_SHORT % b"200 OK", CUT_SHORT % b"404 Not Found", NO_HTTP]
    to_send.append(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(good), good))
    assert ConfluentRegistry(RegistryAccess(url)).by_id(1).text == '"int"'


@pytest.mark.parametrize("answer", [CUT_SHORT % b"200 OK", CUT_SHORT % b"422 No", NO_HTTP])
def test_a_registry_that_never_answers_as_a_whole_is_told(
    answer: bytes, answers: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent, "ATTEMPTS", 1)
    answers[1].append(answer)
    with pytest.raises(SchemaError, match=r"set schema.registry.url to a registry that answers.* fails"):
        ConfluentRegistry(RegistryAccess(answers[0])).by_id(1)


def test_options_of_a_registry_that_cannot_be_are_told(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"set schema.registry.url to http://HOST:PORT"):
        ConfluentRegistry(RegistryAccess("http://127.0.0.1:port")).by_id(1)
    empty = tmp_path / "ca.pem"
    empty.write_text("no certificate")
    for path in (empty, tmp_path / "none.pem", tmp_path):
        with pytest.raises(SchemaError, match=r"set schema.registry.ssl.ca.location to a file .*: "):
            ConfluentRegistry(RegistryAccess("https://127.0.0.1:1", ca_file=str(path)))
