"""Columns of formats without a registry, of Pulsar's schemas, and what a registry refuses."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from conformance.stub_registry import StubRegistry
from kop.schemas import columns, pulsar
from kop.schemas.access import PulsarAccess, RegistryAccess
from kop.schemas.columns import ColumnPlan, SchemaSource, plan, reader_of
from kop.schemas.confluent import ConfluentRegistry, Schema
from kop.schemas.errors import SchemaError, UnknownSchemaError
from kop.schemas.primitives import PRIMITIVES
from kop.schemas.pulsar import PulsarSchema
from kop.schemas.types import in_sql
from kop.schemas.writing import plan_writing, writer_of

TOPIC = "persistent://public/default/t"
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a b", "type": "int"}]})


def read(how: ColumnPlan, *records: bytes | None) -> tuple[list[Any], dict[int, str]]:
    values, failures = reader_of(how).read(pa.array(records, pa.binary()))
    values.validate(full=True)
    assert values.type.equals(how.kind)
    return values.to_pylist(), failures


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as stub:
        yield stub


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[PulsarSchema]:
    """The versions that Pulsar has of the topic's schema; the last of the list is the latest."""
    schemas: list[PulsarSchema] = []
    monkeypatch.setattr(
        columns,
        "topic_schema",
        lambda options, topic, version: next(s for s in reversed(schemas) if version in (None, s.version)),
    )
    monkeypatch.setattr(columns, "topic_schemas", lambda options, topic: list(schemas))
    return schemas


def of_pulsar(how: str = "auto", column: str = "value") -> SchemaSource:
    return SchemaSource(column, how, pulsar=PulsarAccess("http://127.0.0.1:1"), topic=TOPIC)


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]})


def test_records_that_do_not_tell_their_version_are_read_by_the_one_they_fit(told: list[PulsarSchema]) -> None:
    first, second = (
        record(("a", "int")),
        record(("a", "int"), ("b", ["null", "int"])).replace("}]}", ', "default": null}]}'),
    )
    told += [PulsarSchema("AVRO", first, {}, 0), PulsarSchema("AVRO", second, {}, 1)]
    reader = reader_of(plan(of_pulsar()))

    def rows(*records: bytes) -> tuple[list[Any], dict[int, str]]:
        values, failures = reader.read(pa.array(records, pa.binary()))
        return values.to_pylist(), failures

    assert rows(b"\x0e", b"\x0e\x02\x02", b"\x0e\x00") == (
        [{"a": 7, "b": None}, {"a": 7, "b": 1}, {"a": 7, "b": None}],
        {},
    )
    assert rows(b"\x0e\x02", b"\x0e")[1] == {0: "it fits no version of its schema; by version 1 it is cut short"}
    told.append(PulsarSchema("AVRO", record(("a", "int"), ("b", ["null", "int"]), ("c", "string")), {}, 2))
    assert rows(b"\x0e\x00\x02x", b"\x0e") == ([{"a": 7, "b": None}] * 2, {})
    told.append(PulsarSchema("AVRO", record(("a", ["int", "string"])), {}, 3))  # a: the branch 1, of one byte
    assert rows(b"\xff", b"\x02\x02x")[1].keys() == {0, 1}
    values, failures = rows(b"\x00\x02", b"\x02\x00")
    assert values == [{"a": 1, "b": None}, None]
    assert failures == {1: "version 1 and 3 of its schema cannot be resolved: a is string, which cannot be read as int"}


def test_a_record_that_fits_two_versions_as_other_rows_is_bad(told: list[PulsarSchema]) -> None:
    told += [PulsarSchema("AVRO", record(("a", "bytes")), {}, 0), PulsarSchema("AVRO", record(("a", "string")), {}, 1)]
    told.insert(0, PulsarSchema("AVRO", record(("n", "int")), {}, 2))
    rows, failures = read(plan(of_pulsar()), b"\x02\xff", b"\x02x", b"\x00")
    assert rows == [None, {"a": "x"}, None]
    assert failures[0] == "version 0 of its schema cannot be resolved: a text of it is no UTF-8"
    assert failures[2].startswith("version 2 and 0 and 1 of its schema cannot be resolved: a is not in it")
    told[0] = PulsarSchema("AVRO", record(("a", ["null", "string"])), {}, 2)
    rows, failures = read(plan(of_pulsar()), b"\x02\x00")
    assert rows == [None]
    assert failures == {0: "it fits the versions 2 and 0 and 1 of its schema, and is another row by each"}


def test_a_row_with_nan_is_the_same_by_two_versions_that_fit(told: list[PulsarSchema]) -> None:
    """Also below a list, a map and a struct; 0 and -0 are not the same."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "f", "type": "float"}]}
    fields = [("x", "double"), ("l", {"type": "array", "items": "float"}), ("m", {"type": "map", "values": inner})]
    told += [PulsarSchema("AVRO", record(*fields, ("s", kind)), {}, at) for at, kind in enumerate(("bytes", "string"))]
    small = struct.pack("<f", math.nan)
    data = struct.pack("<d", math.nan) + b"\x02" + small + b"\0\x02\x02k" + small + b"\0\x02x"
    (row,), failures = read(plan(of_pulsar()), data)
    assert failures == {}
    assert str(row) == "{'x': nan, 'l': [nan], 'm': [('k', {'f': nan})], 's': 'x'}"


def test_a_version_whose_record_holds_itself_is_read_without_that_field(told: list[PulsarSchema]) -> None:
    holds = {"type": "array", "items": "R"}
    told += [PulsarSchema("AVRO", record(("a", "string"), ("next", holds), ("last", "string")), {}, 0)]
    told += [PulsarSchema("AVRO", record(("a", "string"), ("last", "string")), {}, 1)]
    first = b"\x02a\x02\x02b\0\x02c\0\x02d"
    rows, failures = read(plan(of_pulsar()), first, b"\x02a\x02d", first[:-1], b"\x02\xff\0\x02d")
    assert rows == [{"a": "a", "last": "d"}] * 2 + [None, None]
    assert failures.keys() == {2, 3}
    assert all(reason.startswith("it fits no version of its schema") for reason in failures.values())
    told[1] = PulsarSchema("AVRO", record(("a", "string"), ("n", "int")), {}, 1)
    rows, failures = read(plan(of_pulsar()), first, b"\x02a\x04")
    assert rows == [None, {"a": "a", "n": 2}]
    assert failures == {
        0: "version 0 of its schema cannot be resolved: n is not in it, and the reader's schema has no default"
    }


def by_version(how: ColumnPlan, *records: tuple[bytes | None, int | None]) -> tuple[list[Any], dict[int, str]]:
    """The rows of records that name these versions."""
    versions = pa.array([version for _, version in records], pa.int64())
    values, failures = reader_of(how).read(pa.array([record for record, _ in records], pa.binary()), versions)
    values.validate(full=True)
    return values.to_pylist(), failures


def test_records_are_read_by_the_version_that_they_name(told: list[PulsarSchema]) -> None:
    told += [
        PulsarSchema("AVRO", record(("b", "long"), ("a", "int")), {}, 0),
        PulsarSchema("AVRO", record(("a", "int"), ("b", "int")), {}, 1),  # which the same bytes fit
        PulsarSchema("JSON", record(("a", "int")), {}, 2),
        PulsarSchema("AVRO", record(("a", "int")), {}, 3),
        PulsarSchema("AVRO", record(("a", "int"), ("b", "long")), {}, 4),
    ]
    how = plan(of_pulsar())
    both = b"\x02\x04"
    assert by_version(how, (both, 0), (None, 0), (both, 1), (both, 4)) == (
        [{"a": 2, "b": 1}, None, {"a": 1, "b": 2}, {"a": 1, "b": 2}],
        {},
    )
    values, failures = by_version(
        how, (both, 4), (both, 2), (b"\x02", 3), (b"\x02", 4), (both, 9), (both, None), (both, 0)
    )
    assert values == [{"a": 1, "b": 2}, None, None, None, None, None, {"a": 2, "b": 1}]
    assert failures == {
        1: "version 2 of its schema cannot be read: it is JSON",
        2: "version 3 of its schema cannot be resolved: b is not in it, and the reader's schema has no default",
        3: "by version 4 of its schema it is cut short",
        4: "version 9 of its schema is not known",
        5: "it fits the versions 0 and 1 and 4 of its schema, and is another row by each",
    }


def test_a_version_that_comes_later_is_asked_for_and_one_that_is_known_is_not(
    told: list[PulsarSchema], monkeypatch: pytest.MonkeyPatch
) -> None:
    told.append(PulsarSchema("AVRO", record(("a", "int")), {}, 0))
    how = plan(of_pulsar())
    asked: list[str] = []
    refused: list[str] = []

    def schemas(access: PulsarAccess, topic: str) -> list[PulsarSchema]:
        asked.append(topic)
        if refused:
            raise SchemaError(refused[0])
        if not told:
            raise UnknownSchemaError(f"Pulsar has no schema for {topic}")
        return list(told)

    monkeypatch.setattr(columns, "topic_schemas", schemas)
    reader = reader_of(how)

    def rows(*records: tuple[bytes, int]) -> list[Any]:
        versions = pa.array([version for _, version in records], pa.int64())
        values, _ = reader.read(pa.array([data for data, _ in records], pa.binary()), versions)
        return values.to_pylist()

    assert rows((b"\x02", 0)) == [{"a": 1}]
    assert asked == []
    assert rows((b"\x02\x04", 1), (b"\x02", 0)) == [None, {"a": 1}]
    told.append(PulsarSchema("AVRO", record(("b", "int"), ("a", "int")), {}, 1))
    assert rows((b"\x02\x04", 1), (b"\x02", 0)) == [{"a": 2}, {"a": 1}]
    assert rows((b"\x02\x04", 1)) == [{"a": 2}]
    assert asked == [TOPIC] * 2
    told.clear()
    assert rows((b"\x02", 7)) == [None]
    refused.append("set pulsar.admin.url and pulsar.auth to what is right")
    with pytest.raises(SchemaError, match=r"set pulsar\.admin\.url"):  # no record is bad for that
        rows((b"\x02", 7), (b"\x02", 0))
    assert rows((b"\x02", 0)) == [{"a": 1}]


def test_pairs_and_primitives_are_read_by_the_version_that_they_name(told: list[PulsarSchema]) -> None:
    first, second = (replace(pair("INLINE"), version=number) for number in (0, 1))
    told += [first, replace(second, text=second.text.replace('"int"', '"long"'))]
    told.append(PulsarSchema("AVRO", AVRO, {}, 2))
    how = plan(replace(of_pulsar(), version=1))
    whole = b"\0\0\0\4\0\0\0\5" + b"\0\0\0\5\x80\x80\x80\x80\x20"  # beyond what an int holds
    small = b"\0\0\0\4\0\0\0\5" + b"\0\0\0\1\x0e"
    values, failures = by_version(how, (whole, 1), (small, 0), (whole, 0), (small, 2), (small, 1))
    assert values == [
        {"key": 5, "value": {"a b": 2**32}},
        {"key": 5, "value": {"a b": 7}},
        None,
        None,
        {"key": 5, "value": {"a b": 7}},
    ]
    assert failures.keys() == {2, 3}
    assert failures[3] == "its key: version 2 of its schema cannot be read: it is AVRO"
    told.append(replace(pair("SEPARATED"), version=3))
    told.append(PulsarSchema("INT32", version=4))
    told.append(PulsarSchema("FLOAT", version=5))
    number = plan(replace(of_pulsar(), version=4))
    assert by_version(number, (b"\0\0\0\5", 4), (b"\0\0\0\5", 5), (b"\0\0\0\5", None)) == (
        [5, None, 5],
        {1: "version 5 of its schema cannot be read: it is FLOAT"},
    )
    key = plan(replace(of_pulsar(column="key"), version=3))
    assert by_version(key, (b"\0\0\0\5", 3), (b"\0\0\0\5", 0)) == (
        [5, None],
        {1: "version 0 of its schema cannot be read: its keys are in the messages"},
    )


@pytest.mark.parametrize(
    ("name", "data", "row"),
    [
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\x01\x00", 256),
        ("INT32", b"\xff\xff\xff\xff", -1),
        ("INT64", struct.pack(">q", 2**40), 2**40),
        ("FLOAT", struct.pack(">f", 0.5), 0.5),
        ("DOUBLE", struct.pack(">d", 0.1), 0.1),
        ("BYTES", b"", b""),
        ("TIMESTAMP", struct.pack(">q", 1500), datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        ("INSTANT", struct.pack(">qi", 1, 500_000_000), datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        ("LOCAL_DATE", struct.pack(">q", -1), date(1969, 12, 31)),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 10**9), datetime(1970, 1, 2, 0, 0, 1)),  # noqa: DTZ001
        ("LOCAL_TIME", struct.pack(">q", 5), 5),
        ("STRING", "ä".encode(), "ä"),
    ],
)
def test_pulsar_s_primitives_are_columns(name: str, data: bytes, row: Any, told: list[PulsarSchema]) -> None:
    told.append(PulsarSchema(name))
    how = plan(of_pulsar())
    bad = {"STRING": b"\xff", "BYTES": None}.get(name, data + b"\0")
    rows, failures = read(how, data, None, bad, data)
    assert rows == [row, None, None, row]
    assert set(failures) == ({2} if bad is not None else set())
    assert in_sql(PRIMITIVES[name][0]) == how.sql


def pair(encoding: str) -> PulsarSchema:
    properties = {"key.schema.type": "INT32", "value.schema.type": "AVRO", "kv.encoding.type": encoding}
    return PulsarSchema("KEY_VALUE", json.dumps({"key": "", "value": json.loads(AVRO)}), properties)


def test_pairs_of_key_and_value_are_columns(told: list[PulsarSchema]) -> None:
    told.append(pair("INLINE"))
    how = plan(of_pulsar())
    assert how.sql == "STRUCT<`key`: INT, `value`: STRUCT<`a b`: INT>>"
    good = b"\0\0\0\4\0\0\0\5" + b"\0\0\0\1\x0e"
    half = b"\xff\xff\xff\xff" + b"\0\0\0\1\x0e"
    rows, failures = read(how, good, half, good[:-1], good + b"x", b"\0\0\0\1\5" + good[8:], None, b"", good)
    row = {"key": 5, "value": {"a b": 7}}
    assert rows == [row, row | {"key": None}, None, None, None, None, None, row]
    assert set(failures) == {2, 3, 4, 6}
    assert failures[4] == "its key: it has 1 bytes, which is not the size of its type"
    assert plan(of_pulsar(column="key")).format == "string"
    told.append(pair("SEPARATED"))
    assert read(plan(of_pulsar(column="key")), b"\0\0\0\5") == ([5], {})
    assert read(plan(of_pulsar()), b"\x0e") == ([{"a b": 7}], {})
    with pytest.raises(SchemaError, match="set the format to auto"):
        plan(of_pulsar("avro"))


def test_formats_that_are_not_pulsar_s_are_told(told: list[PulsarSchema]) -> None:
    told.append(PulsarSchema("JSON", AVRO))
    with pytest.raises(SchemaError, match="set the format to json"):
        plan(of_pulsar("avro"))
    assert read(plan(of_pulsar("json")), b'{"a b": 5}') == ([{"a b": 5}], {})
    told.append(PulsarSchema("PROTOBUF", "x"))
    with pytest.raises(SchemaError, match="is PROTOBUF, which is not read"):
        plan(of_pulsar())
    with pytest.raises(SchemaError, match=r"pulsar\.admin\.url"):
        pulsar.topic_schema(PulsarAccess("ftp://nowhere"), TOPIC)


def test_schemas_may_be_given(registry: StubRegistry) -> None:
    with pytest.raises(SchemaError, match="a column cannot have the type duration"):
        plan(SchemaSource("value", "json", "n INTERVAL DAY TO SECOND")).of_type(pa.struct([("n", pa.duration("us"))]))
    how = plan(SchemaSource("value", "avro", AVRO))
    assert how.sql == "STRUCT<`a b`: INT>"
    assert read(how, b"\x0e", b"\x0e\x00") == ([{"a b": 7}, None], {1: "there are 1 bytes behind it"})
    ddl = plan(SchemaSource("value", "json", "n INT"))
    assert ddl.sql == "STRUCT<n INT>"
    kind = pa.struct([pa.field("n", pa.int32(), nullable=False)])
    assert read(ddl.of_type(kind), b'{"n": 5}') == ([{"n": 5}], {})
    with pytest.raises(SchemaError, match="has the type STRUCT<`a b`: INT> by its schema, not INT"):
        how.of_type(pa.int32())
    number = registry.add("other", AVRO.replace('"int"', '"int", "default": 1'))
    own = plan(SchemaSource("value", "avro", AVRO.replace("int", "long"), registry=RegistryAccess(registry.url)))
    assert read(own, b"\0\0\0\0" + bytes([number]) + b"\x0e") == ([{"a b": 7}], {})


def test_a_registry_s_words_are_the_error(registry: StubRegistry) -> None:
    client = ConfluentRegistry(RegistryAccess(registry.url))
    with pytest.raises(UnknownSchemaError, match="Subject 'none' not found"):
        client.of_subject("none")
    registry.refusals["s"] = (409, "incompatible: READER_FIELD_MISSING_DEFAULT_VALUE")
    with pytest.raises(SchemaError, match=r"compatibility.*READER_FIELD_MISSING"):
        client.register("s", Schema("AVRO", AVRO))
    registry.refusals["s"] = (422, "Invalid schema")
    with pytest.raises(SchemaError, match="422: Invalid schema"):
        client.register("s", Schema("AVRO", AVRO))
    registry.add("s", AVRO)
    assert client.of_subject("s").version == 1
    asked = len(registry.requests)
    assert client.of_subject("s", 1) == client.of_subject("s", 1)
    assert client.by_id(1) == client.by_id(1)
    assert len(registry.requests) == asked + 1
    for wrong in ("nonsense", "file:///etc/passwd", "http://me:secret@host", ""):
        with pytest.raises(SchemaError, match="http://HOST:PORT") as caught:
            ConfluentRegistry(RegistryAccess(wrong))
        assert "secret" not in str(caught.value)


def test_a_registry_that_is_down_is_asked_again_and_then_told(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    registry.down = True
    client = ConfluentRegistry(RegistryAccess(f"http://127.0.0.1:1,{registry.url}", user_info="me:secret"))
    with pytest.raises(SchemaError, match=r"set schema.registry.url .*the registry is down") as caught:
        client.by_id(1)
    assert len(registry.requests) == 4
    assert "secret" not in str(caught.value)


KIND = pa.struct([("a b", pa.int32())])


def test_what_a_write_registers_is_what_it_writes_by(registry: StubRegistry) -> None:
    source = SchemaSource("value", "avro", registry=RegistryAccess(registry.url), subject="s")
    with pytest.raises(UnknownSchemaError):
        plan_writing(source, KIND, register=False)
    made = plan_writing(SchemaSource("value", "avro", AVRO, registry=source.registry, subject="s"), KIND, register=True)
    assert writer_of(made)(pa.array([{"a b": 7}, None], KIND)).to_pylist() == [b"\0\0\0\0\1\x0e", None]
    assert plan_writing(source, KIND, register=False) == plan_writing(
        SchemaSource("value", "auto", registry=source.registry, subject="s"), KIND, register=False
    )
    other = SchemaSource("value", "avro", AVRO.replace("int", "long"), registry=source.registry, subject="s")
    with pytest.raises(UnknownSchemaError, match="Schema not found"):
        plan_writing(other, KIND, register=False)
    assert plan_writing(other, KIND, register=True).before == b"\0\0\0\0\2"
    by_type = SchemaSource("value", "json", registry=source.registry, subject="j")
    (data,) = writer_of(plan_writing(by_type, KIND, register=True))(pa.array([{"a b": 7}], KIND)).to_pylist()
    assert read(plan(by_type), data) == ([{"a b": 7}], {})


def test_json_and_texts_are_written_without_a_schema() -> None:
    made = plan_writing(SchemaSource("value", "json"), KIND, register=False)
    assert writer_of(made)(pa.array([{"a b": 7}, {"a b": None}, None], KIND)).to_pylist() == [b'{"a b":7}', b"{}", None]
    texts = plan_writing(SchemaSource("value", "string"), pa.string(), register=False)
    assert writer_of(texts)(pa.array(["ä", None])).to_pylist() == ["ä".encode(), None]
    with pytest.raises(SchemaError, match="cast it"):
        plan_writing(SchemaSource("value", "string"), KIND, register=False)


def written(source: SchemaSource, kind: pa.DataType, *rows: Any) -> list[bytes | None]:
    made = plan_writing(source, kind, register=False)
    encoded: list[bytes | None] = writer_of(made)(pa.array(rows, kind)).to_pylist()
    return encoded


@pytest.mark.parametrize("name", PRIMITIVES)
def test_what_is_written_by_pulsar_s_primitives_is_read(name: str, told: list[PulsarSchema]) -> None:
    told.append(PulsarSchema(name))
    kind = PRIMITIVES[name][0]
    moment = (
        datetime(1969, 12, 31, 23, 59, 58, 250_000, tzinfo=kind.tz and UTC) if pa.types.is_timestamp(kind) else None
    )
    value = moment or {"bool": True, "date32[day]": date(1969, 12, 30), "string": "ä", "binary": b"\0"}.get(
        str(kind), -2
    )
    encoded = written(of_pulsar(), kind, value, None, value)
    assert read(plan(of_pulsar()), *encoded) == ([value, None, value], {})
    if name == "INT32":
        assert encoded[0] == b"\xff\xff\xff\xfe"
        assert written(of_pulsar(), pa.int16(), 5) == [b"\0\0\0\5"]
        with pytest.raises(SchemaError, match="the column has the type BIGINT, and its schema is INT32: cast it"):
            written(of_pulsar(), pa.int64())


def test_columns_are_written_by_the_schema_of_pulsar_s_topic(told: list[PulsarSchema]) -> None:
    told += [PulsarSchema("AVRO", AVRO, {}, 0), PulsarSchema("AVRO", AVRO.replace("int", "long"), {}, 1)]
    assert written(of_pulsar("avro"), KIND, {"a b": 7}, None) == [b"\x0e", None]
    with pytest.raises(SchemaError, match="c is no field of R"):
        written(of_pulsar(), pa.struct([("c", pa.int32())]))
    assert written(of_pulsar(column="key"), pa.string(), "k") == [b"k"]
    kind = pa.struct([("key", pa.int32()), ("value", KIND)])
    told.append(pair("INLINE"))
    rows = [{"key": 5, "value": {"a b": 7}}, None, {"key": None, "value": {"a b": 7}}, {"key": 5, "value": None}]
    assert read(plan(of_pulsar()), *written(of_pulsar(), kind, *rows)) == (rows, {})
    with pytest.raises(SchemaError, match="has to be a struct of key and value"):
        written(of_pulsar(), KIND)
    told.append(pair("SEPARATED"))
    assert written(of_pulsar(), KIND, {"a b": 7}) == [b"\x0e"]
    assert written(of_pulsar(column="key"), pa.int32(), 5) == [b"\0\0\0\5"]
    told.append(PulsarSchema("PROTOBUF", "x"))
    with pytest.raises(SchemaError, match=r"set the format to bytes: .* is PROTOBUF"):
        written(of_pulsar(), KIND)


def test_json_is_written_by_the_fields_of_pulsar_s_schema(told: list[PulsarSchema]) -> None:
    day = {"type": "int", "logicalType": "date"}
    told.append(PulsarSchema("JSON", record(("day", day), ("item", ["null", "string"]))))
    kind = pa.struct([("day", pa.int32()), ("item", pa.string())])
    assert written(of_pulsar("json"), kind, {"day": 5, "item": None}, None) == [b'{"day":5}', None]
    for fields, wrong in (
        ([("day", pa.date32())], "day has the type DATE"),
        ([("day", pa.int32()), ("more", pa.int32())], "more is no field"),
        ([("item", pa.string())], "day is missing"),
    ):
        with pytest.raises(SchemaError, match=wrong):
            written(of_pulsar("json"), pa.struct(fields))
