"""Typed columns of a read and a write, as options ask for them; without PySpark."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from conformance.stub_registry import StubRegistry
from kop.records.arrow import schema
from kop.schemas import confluent
from kop.schemas.confluent import frame
from kop.schemas.errors import SchemaError
from kop.spark.decoding import RecordDecodeError
from kop.spark.exactly_once import SinkError
from kop.spark.given import OptionError
from kop.spark.options import batch_options
from kop.spark.sink_columns import SinkColumns
from kop.spark.typed_columns import TypedPlan, plan_columns, plan_writes
from kop.spark.write_options import write_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as stub:
        stub.add("orders-value", ORDER)
        yield stub


def planned(**options: Any) -> TypedPlan:
    named = {"subscribe": "orders"} | {name.replace("__", "."): str(value) for name, value in options.items()}
    made = plan_columns(batch_options(SERVERS | named))
    assert made is not None
    return made


def rows(*values: bytes | None, key: bytes | None = b"k") -> pa.RecordBatch:
    count = len(values)
    columns = [
        [key] * count,
        values,
        ["orders"] * count,
        [3] * count,
        range(7, 7 + count),
        [datetime(2026, 1, 31, tzinfo=UTC)] * count,
        [0] * count,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def test_bad_records_are_told_with_their_place(registry: StubRegistry) -> None:
    good, bad = frame(1) + b"\x0e", frame(2) + b"\x0e"
    strict = planned(valueFormat="avro", schema__registry__url=registry.url, keyFormat="string")
    assert strict.declared == {"value": "STRUCT<`id`: BIGINT>", "key": "STRING"}
    made = pickle.loads(pickle.dumps(strict)).make()
    taken = made.add(rows(good, None))
    assert taken.schema.names == schema().names
    assert taken.select(["key", "value"]).to_pylist() == [{"key": "k", "value": {"id": 7}}, {"key": "k", "value": None}]
    with pytest.raises(RecordDecodeError) as caught:
        made.add(rows(good, good, bad, key=b"\xff"))
    assert str(caught.value) == (
        "set mode to PERMISSIVE to go on with null, or let the query begin behind it: the record of topic orders "
        "partition 3 offset 7 is bad; key: it is no UTF-8"
    )
    with pytest.raises(RecordDecodeError, match="partition 3 offset 8 is bad; value: schema 2 is not known"):
        made.add(rows(good, bad))
    permissive = planned(
        valueFormat="avro", schema__registry__url=registry.url, keyFormat="string", mode="PERMISSIVE"
    ).make()
    permitted = permissive.add(rows(good, bad, good[:-1], good)).select(["value", "decodeError"]).to_pylist()
    assert [row["value"] for row in permitted] == [{"id": 7}, None, None, {"id": 7}]
    assert [row["decodeError"] is None for row in permitted] == [True, False, False, True]
    assert permitted[2]["decodeError"] == "value: by schema 1 it is cut short"
    both = permissive.add(rows(bad, key=b"\xff")).column("decodeError")[0].as_py()
    assert "; " in both
    assert "key: it is no UTF-8" in both


PROTOBUF = descriptor_pb2.FileDescriptorProto(name="o.proto", syntax="proto3")
PROTOBUF.message_type.add(name="Order").field.add(name="id", number=1, type=3, label=1)
RECORDS = {
    "avro": (ORDER, "AVRO", b"\x0e"),
    "json": (json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}), "JSON", b'{"id": 7}'),
    "protobuf": (base64.b64encode(PROTOBUF.SerializeToString()).decode(), "PROTOBUF", b"\0\x08\x07"),
}
"""Of each format a schema, its kind, and a record whose id is 7."""


@pytest.mark.parametrize("how", RECORDS)
def test_a_bad_record_is_told_with_its_place_and_schema_and_no_other_goes_with_it(
    how: str, registry: StubRegistry
) -> None:
    schema, kind, record = RECORDS[how]
    number = registry.add("orders-value", schema, kind)
    good = frame(number) + record
    behind = good + (b"\0\0" if how != "json" else b"{}")
    asked = {"valueFormat": how, "schema.registry.url": registry.url}
    strict = plan_columns(batch_options(SERVERS | {"subscribe": "orders"} | asked))
    assert strict is not None
    for bad in (good[:-1], behind, frame(99) + record, b"\1" + good[1:], good[:3], b""):
        with pytest.raises(RecordDecodeError, match="topic orders partition 3 offset 8 is bad; value: ") as caught:
            strict.make().add(rows(good, bad, good))
        wanted = "schema 99 is not known" if bad.startswith(frame(99)) else f"by schema {number} "
        assert (wanted in str(caught.value)) == bad.startswith(b"\0\0\0\0")
    permissive = plan_columns(batch_options(SERVERS | {"subscribe": "orders", "mode": "PERMISSIVE"} | asked))
    assert permissive is not None
    made = permissive.make().add(rows(good, good[:-1], good, behind, frame(99) + record, good))
    assert [value and value["id"] for value in made.column("value").to_pylist()] == [7, None, 7, None, None, 7]
    assert [text is None for text in made.column("decodeError").to_pylist()] == [True, False, True, False, False, True]


def test_a_registry_that_is_down_fails_the_task_and_makes_no_record_bad(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent, "ATTEMPTS", 1)
    later = registry.add("orders-value", ORDER.replace("long", "int"))
    made = planned(valueFormat="avro", schema__registry__url=registry.url, schemaVersion=1, mode="PERMISSIVE").make()
    assert made.add(rows(frame(1) + b"\x0e")).column("value").to_pylist() == [{"id": 7}]
    registry.down = True
    with pytest.raises(SchemaError, match=r"set schema.registry.url .*the registry is down"):
        made.add(rows(frame(1) + b"\x0e", frame(later) + b"\x0e"))
    assert made.add(rows(frame(1) + b"\x0e")).column("value").to_pylist() == [{"id": 7}]
    registry.down = False
    assert made.add(rows(frame(later) + b"\x0e")).column("value").to_pylist() == [{"id": 7}]


def test_a_schema_that_comes_later_does_not_change_the_columns(registry: StubRegistry) -> None:
    made = planned(valueFormat="avro", schema__registry__url=registry.url)
    more = json.loads(ORDER)
    more["fields"].append({"name": "more", "type": "int"})
    number = registry.add("orders-value", json.dumps(more))
    assert made.make().add(rows(frame(number) + b"\x0e\x02")).column("value").to_pylist() == [{"id": 7}]
    later = planned(valueFormat="avro", schema__registry__url=registry.url)
    assert later.declared["value"] == "STRUCT<`id`: BIGINT, `more`: INT>"
    assert planned(valueFormat="avro", schema__registry__url=registry.url, schemaVersion=1) == made
    with pytest.raises(OptionError, match=r"leave .schema\(\) out: the column value has the type"):
        made.of_types({"value": pa.string()})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"valueFormat": "avro"}, "set schema.registry.url or pulsar.admin.url"),
        ({"valueFormat": "xml"}, "set valueFormat to another value"),
        ({"valueFormat": "auto", "valueSchema": "x INT"}, "set valueFormat to avro, json or protobuf"),
        ({"valueSchema": "x INT"}, "set valueFormat to the format of valueSchema"),
        ({"valueMessage": "M"}, "set valueFormat to the format of valueMessage, or leave valueMessage out"),
        ({"valueFormat": "string", "valueSubject": "s"}, "set valueFormat to the format of valueSubject"),
        ({"schemaVersion": "1"}, "set valueFormat to the format of schemaVersion"),
        ({"valueFormat": "string", "schemaVersion": "latest"}, "set valueFormat to the format of schemaVersion"),
        ({"keyFormat": "string", "keyMessage": "M"}, "set keyFormat to the format of keyMessage"),
        ({"keySchemaVersion": "3"}, "set keyFormat to the format of keySchemaVersion"),
        ({"valueFormat": "string", "mode": "x"}, "set mode to another value"),
        ({"mode": "PERMISSIVE"}, "set decoder to module:function or valueFormat"),
        ({"valueFormat": "json", "valueSchema": "x INT", "schemaVersion": "1"}, "one of them is the schema"),
        ({"valueFormat": "json", "valueSchema": "x INT", "decoder": "a:b", "decoderSchema": "x INT"}, "not both"),
        ({"valueFormat": "avro", "schema.registry.url": "http://a", "pulsar.admin.url": "http://b"}, "set one of"),
        ({"schema.registry.url": "http://a"}, "bytes have no schema"),
        ({"valueFormat": "string", "schema.registry.bearer.auth.token": "s3cret"}, "set schema.registry.url as well"),
        ({"valueFormat": "avro", "valueSchema": "@/no/such/file"}, "cannot be read"),
        ({"valueFormat": "json", "valueSchema": "x INT not null"}, "leave NOT NULL out of valueSchema"),
        ({"valueFormat": "avro", "valueSchema": "{}", "valueMessage": "M"}, "only Protobuf has messages"),
        ({"valueFormat": "avro", "valueSchema": "{}"}, "where a type has to be"),
        ({"valueFormat": "protobuf", "valueSchema": "?"}, "in base64"),
    ],
)
def test_options_that_do_not_go_together_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told) as caught:
        plan_columns(batch_options(SERVERS | {"subscribe": "orders"} | options))
    assert "s3cret" not in str(caught.value)


def test_several_topics_want_a_subject(registry: StubRegistry) -> None:
    asked = {"subscribe": "orders,others", "valueFormat": "avro", "schema.registry.url": registry.url}
    with pytest.raises(OptionError, match=r"set valueSubject to the subject .* there is more than one topic"):
        plan_columns(batch_options(SERVERS | asked))
    made = plan_columns(batch_options(SERVERS | asked | {"valueSubject": "orders-value"}))
    assert made is not None
    with pytest.raises(OptionError, match="the column value: the registry has nothing at subjects/others-value"):
        plan_columns(batch_options(SERVERS | asked | {"subscribe": "others"}))


def test_a_schema_may_be_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(ORDER)
    assert planned(valueFormat="avro", valueSchema=f"@{file}").declared["value"] == "STRUCT<`id`: BIGINT>"


KIND = pa.struct([("id", pa.int64())])


def test_what_is_written_has_its_schema_s_id(registry: StubRegistry) -> None:
    asked = {"topic": "orders", "valueFormat": "avro", "schema.registry.url": registry.url}
    options = write_options(SERVERS | asked, streaming=False)
    plans = plan_writes(options, {"value": KIND})
    columns = SinkColumns.of([("key", "string"), ("value", "struct<id:bigint>")], "orders", plans)
    batch = pa.RecordBatch.from_arrays([pa.array(["k", None]), pa.array([{"id": 7}, None], KIND)], ["key", "value"])
    made = pickle.loads(pickle.dumps(columns)).batch(batch)
    assert made.column("value").to_pylist() == [frame(1) + b"\x0e", None]
    with pytest.raises(SinkError, match="the column value: id is null, which its schema does not take"):
        columns.batch(pa.RecordBatch.from_arrays([pa.array(["k"]), pa.array([{"id": None}], KIND)], ["key", "value"]))
    with pytest.raises(SinkError, match="the column value is missing, and valueFormat is set"):
        SinkColumns.of([("key", "string")], "orders", plans)
    narrow = write_options(SERVERS | asked | {"valueSchema": ORDER.replace("long", "string")}, streaming=False)
    registry.add("orders-value", ORDER.replace("long", "string"))
    with pytest.raises(OptionError, match="the column value: id has the type INT"):
        plan_writes(narrow, {"value": pa.struct([("id", pa.int32())])})
    registry.refusals["orders-value"] = (409, "READER_FIELD_MISSING")
    with pytest.raises(OptionError, match=r"the column value: .*READER_FIELD_MISSING"):
        plan_writes(write_options(SERVERS | asked | {"registerSchema": "true"}, streaming=False), {"value": KIND})
    with pytest.raises(OptionError, match="nothing is registered"):
        write_options(SERVERS | {"registerSchema": "true"}, streaming=False)


KEY = pa.struct([("customer", pa.int64())])


@pytest.mark.parametrize("how", ["avro", "json", "protobuf"])
def test_a_key_has_a_schema_of_its_own(how: str, registry: StubRegistry) -> None:
    asked = {"topic": "orders", "keyFormat": how, "schema.registry.url": registry.url}
    with pytest.raises(OptionError, match="the column key: the registry has nothing at subjects/orders-key"):
        plan_writes(write_options(SERVERS | asked, streaming=False), {"key": KEY})
    asked |= {"registerSchema": "true"}
    if how == "protobuf":
        with pytest.raises(OptionError, match="the column key: name the schema of the message"):
            plan_writes(write_options(SERVERS | asked, streaming=False), {"key": KEY})
        file = descriptor_pb2.FileDescriptorProto(name="key.proto", syntax="proto3")
        file.message_type.add(name="Key").field.add(name="customer", number=1, type=3, label=1)
        asked |= {"keySchema": base64.b64encode(file.SerializeToString()).decode()}
    plans = plan_writes(write_options(SERVERS | asked, streaming=False), {"key": KEY})
    assert list(registry.subjects) == ["orders-value", "orders-key"]
    columns = SinkColumns.of([("key", "struct<customer:bigint>"), ("value", "string")], "orders", plans)
    keys = pa.array([{"customer": 7}, None, {"customer": 7}], KEY)
    made = columns.batch(pa.RecordBatch.from_arrays([keys, pa.array(["a", "b", None])], ["key", "value"]))
    first, none, last = made.column("key").to_pylist()
    assert first.startswith(frame(2))
    assert (none, last) == (None, first)
    assert made.column("value").to_pylist() == [b"a", b"b", None]
    read = planned(keyFormat=how, valueFormat="string", schema__registry__url=registry.url).make()
    assert read.add(rows(b"a", key=first)).select(["key", "value"]).to_pylist() == [
        {"key": {"customer": 7}, "value": "a"}
    ]
    with pytest.raises(SinkError, match="the column key is missing, and keyFormat is set"):
        SinkColumns.of([("value", "string")], "orders", plans)


def test_key_and_value_are_registered_each_under_its_subject(registry: StubRegistry) -> None:
    asked = {"topic": "clicks", "keyFormat": "avro", "valueFormat": "avro", "schema.registry.url": registry.url}
    options = write_options(SERVERS | asked | {"registerSchema": "true"}, streaming=False)
    plans = plan_writes(options, {"key": pa.int64(), "value": KIND})
    assert registry.subjects == {"orders-value": [1], "clicks-key": [2], "clicks-value": [3]}
    assert registry.schemas[1]["schema"] == '"long"'
    columns = SinkColumns.of([("key", "bigint"), ("value", "struct<id:bigint>")], "clicks", plans)
    made = columns.batch(
        pa.RecordBatch.from_arrays([pa.array([-1, None]), pa.array([{"id": 7}, None], KIND)], ["key", "value"])
    )
    assert made.column("key").to_pylist() == [frame(2) + b"\1", None]
    assert made.column("value").to_pylist() == [frame(3) + b"\2\x0e", None]
    registry.add("clicks-key", '"string"')
    with pytest.raises(OptionError, match="the column key: the column has the type BIGINT, and its schema is string"):
        plan_writes(write_options(SERVERS | asked, streaming=False), {"key": pa.int64(), "value": KIND})
    older = write_options(SERVERS | asked | {"keySchemaVersion": "1"}, streaming=False)
    assert plan_writes(older, {"key": pa.int64(), "value": KIND})["key"].before == plans["key"].before
    registry.refusals["clicks-key"] = (409, "INCOMPATIBLE")
    with pytest.raises(OptionError, match=r"the column key: .*INCOMPATIBLE"):
        plan_writes(options, {"key": pa.int64(), "value": KIND})


def test_rows_of_several_topics_want_a_subject_of_each_column(registry: StubRegistry) -> None:
    asked = {"keyFormat": "avro", "valueFormat": "avro", "schema.registry.url": registry.url, "registerSchema": "true"}
    kinds = {"key": pa.int64(), "value": KIND}
    with pytest.raises(OptionError, match="set keySubject to the subject whose schema the column key has"):
        plan_writes(write_options(SERVERS | asked | {"valueSubject": "v"}, streaming=False), kinds)
    plan_writes(write_options(SERVERS | asked | {"valueSubject": "v", "keySubject": "k"}, streaming=False), kinds)
    assert registry.subjects == {"orders-value": [1], "k": [2], "v": [3]}
