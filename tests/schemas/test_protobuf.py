"""Protobuf's messages: types, versions, message indexes, damaged records, and what is written."""

from __future__ import annotations

import base64
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass

from kop.schemas import protobuf_writing
from kop.schemas.errors import BadRecordError, SchemaError, UnresolvableError
from kop.schemas.protobuf import (
    ProtobufReader,
    ProtobufSchema,
    arrow_type,
    native_schema,
    read_indexes,
    write_indexes,
)

F = descriptor_pb2.FieldDescriptorProto


def file_of(**fields: tuple[int, int] | tuple[int, int, str]) -> descriptor_pb2.FileDescriptorProto:
    """A file with a message M of fields NAME=(number, type[, name of the type]); `_` at the end makes one repeated."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_UINT64, label=1)
    message.nested_type.add(name="Inner").field.add(name="z", number=1, type=F.TYPE_SINT32, label=1)
    kind = message.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=5)
    for name, (number, type_, *more) in fields.items():
        label = F.LABEL_REPEATED if name.endswith("_") else F.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=F.Type.ValueType(type_), label=label)
        if more:
            message.field[-1].type_name = more[0]
    return file


def text(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def message(file: descriptor_pb2.FileDescriptorProto, name: str = "p.M") -> Any:
    return ProtobufSchema(text(file)).message(name)


WIDE = file_of(
    i=(1, F.TYPE_INT32),
    u=(2, F.TYPE_UINT32),
    l=(3, F.TYPE_INT64),
    ul=(4, F.TYPE_UINT64),
    f=(5, F.TYPE_FLOAT),
    d=(6, F.TYPE_DOUBLE),
    b=(7, F.TYPE_BOOL),
    s=(8, F.TYPE_STRING),
    raw=(9, F.TYPE_BYTES),
    kind=(10, F.TYPE_ENUM, ".p.M.Kind"),
    inner=(11, F.TYPE_MESSAGE, ".p.M.Inner"),
    inners_=(12, F.TYPE_MESSAGE, ".p.M.Inner"),
    at=(13, F.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
    m_=(14, F.TYPE_MESSAGE, ".p.M.Entry"),
    n_=(15, F.TYPE_SINT64),
)


def value() -> Any:
    made: Any = GetMessageClass(message(WIDE))()
    made.i, made.u, made.l, made.ul = -1, 2**32 - 1, -(2**63), 2**64 - 1
    made.f, made.d, made.b, made.s, made.raw, made.kind = 0.5, 1e300, True, "ä", b"\0", 5
    made.inner.z = -3
    made.inners_.add(z=1)
    made.inners_.add()
    made.at.seconds, made.at.nanos = -1, 500_000_000
    made.m_["k"] = 2**64 - 1
    made.n_.extend([1, -1])
    return made


ROW = {
    "i": -1,
    "u": 2**32 - 1,
    "l": -(2**63),
    "ul": Decimal(2**64 - 1),
    "f": 0.5,
    "d": 1e300,
    "b": True,
    "s": "ä",
    "raw": b"\0",
    "kind": "SOME",
    "inner": {"z": -3},
    "inners_": [{"z": 1}, {"z": 0}],
    "m_": [("k", Decimal(2**64 - 1))],
    "n_": [1, -1],
}


def rows(values: pa.Array) -> list[Any]:
    values.validate(full=True)
    return values.to_pylist()


def test_each_type_is_a_column_and_is_written_as_it_was() -> None:
    kind = message(WIDE)
    data = value().SerializeToString(deterministic=True)
    values, failures = ProtobufReader(kind, kind).decode([data, b"", data])
    assert failures == {}
    first, empty, last = rows(values)
    at = first.pop("at")
    assert (first, at.isoformat()) == (ROW, "1969-12-31T23:59:59.500000+00:00")
    assert last["ul"] == ROW["ul"]
    assert empty["inner"] is empty["at"] is None
    assert (empty["i"], empty["s"], empty["kind"], empty["inners_"], empty["m_"]) == (0, "", "NONE", [], [])
    write = protobuf_writing.encoder(kind, arrow_type(kind))
    assert write(values.take(pa.array([0, None, 2]))) == [data, None, data]


def test_damaged_records_are_told_and_their_neighbours_are_right() -> None:
    kind, chance = message(WIDE), random.Random(1)
    reader, cls = ProtobufReader(kind, kind), GetMessageClass(kind)
    data = value().SerializeToString()
    good = rows(reader.decode([data])[0])[0]
    bad = [data[:-1], data + b"\xff", data + b"\xc8\x01\x01", data[:-1] + b"\xff"]
    for _ in range(150):
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        bad.append(bytes(flipped))
    for number, damaged in enumerate(bad):
        values, failures = reader.decode([data, damaged, data])
        assert rows(values.take([0, 2])) == [good, good]
        assert set(failures) <= {1}
        assert number > 3 or failures
        if not failures:
            cls.FromString(damaged)  # the library takes it, too


def test_bad_records_among_many_are_told_by_their_rows() -> None:
    file = file_of(
        s=(1, F.TYPE_STRING),
        at=(2, F.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
        none=(3, F.TYPE_MESSAGE, ".p.M.Empty"),
        kind=(4, F.TYPE_ENUM, ".p.M.Kind"),
    )
    file.syntax = "proto2"  # which takes any bytes as a text
    file.message_type[0].nested_type.add(name="Empty")
    kind = message(file)
    cls: Any = GetMessageClass(kind)
    records = [cls(s=str(row), none={}).SerializeToString() for row in range(1000)]
    late = cls()
    late.at.seconds = 2**62
    bad = {
        0: (b"\x08", "it is malformed, or cut short"),
        255: (b"\x0a\x02\xff\xff", "a text of it is no UTF-8"),
        256: (late.SerializeToString(), f"a time of it is {2**62} s, beyond what a column holds"),
        258: (b"\xa8\x06\x01", "it has a field 101, which its schema has not"),
        999: (b"\x0a\x01\xff", "a text of it is no UTF-8"),
    }
    for row, (data, _) in bad.items():
        records[row] = data
    values, failures = ProtobufReader(kind, kind).decode(records)
    assert failures == {row: reason for row, (_, reason) in bad.items()}
    good: list[dict[str, Any]] = [{"s": str(row), "at": None, "none": {}, "kind": None} for row in range(1000)]
    assert rows(values) == [None if row in bad else good[row] for row in range(1000)]
    assert ProtobufReader(kind, kind).decode([])[0].to_pylist() == []


def test_versions_are_read_by_their_numbers() -> None:
    old = file_of(i=(1, F.TYPE_INT32), s=(2, F.TYPE_STRING), gone=(3, F.TYPE_BOOL), old=(4, F.TYPE_INT32))
    new = file_of(renamed=(1, F.TYPE_INT64), s=(2, F.TYPE_BYTES), more=(5, F.TYPE_DOUBLE), old=(4, F.TYPE_INT32))
    data = GetMessageClass(message(old))(i=-5, s="a", gone=True, old=7).SerializeToString()
    values, failures = ProtobufReader(message(old), message(new)).decode([data])
    assert (rows(values), failures) == ([{"renamed": -5, "s": b"a", "more": 0.0, "old": 7}], {})


@pytest.mark.parametrize("at", ["", "inner", "inners_", "at", "deep"])
def test_a_field_that_the_schema_has_not_is_told_at_any_depth(at: str) -> None:
    file = file_of(
        inner=(1, F.TYPE_MESSAGE, ".p.M.Inner"),
        inners_=(2, F.TYPE_MESSAGE, ".p.M.Inner"),
        at=(3, F.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
        deep=(4, F.TYPE_MESSAGE, ".p.M.Deep"),
    )
    deep = file.message_type[0].nested_type.add(name="Deep")
    deep.field.add(name="inner", number=1, type=F.TYPE_MESSAGE, label=1, type_name=".p.M.Inner")
    deep.field.add(name="gone", number=9, type=F.TYPE_INT32, label=1)
    numbers = {"inner": b"\x0a", "inners_": b"\x12", "at": b"\x1a", "deep": b"\x22\x05\x0a"}

    def record(extra: bytes) -> bytes:
        return numbers[at] + b"\x03" + extra if at else extra

    kind = message(file)
    strange, known = record(b"\xa8\x06\x01"), record(b"\x08\x82\x00")
    reader = ProtobufReader(kind, kind)
    values, failures = reader.decode([strange, b"", known if at else b""])
    assert failures == {0: "it has a field 101, which its schema has not"}
    assert [row is None for row in rows(values)] == [True, False, False]
    if at == "deep":  # what the writer's message has is left out if the reader's has it no more
        newer = type(file)()
        newer.CopyFrom(file)
        del newer.message_type[0].nested_type[2].field[1]
        values, failures = ProtobufReader(kind, message(newer)).decode([b"\x22\x04\x0a\x00\x48\x01", strange])
        assert (values.to_pylist()[0]["deep"], failures.keys()) == ({"inner": {"z": 0}}, {1})


def test_of_symbols_with_one_number_the_first_is_read() -> None:
    file = file_of(k_=(1, F.TYPE_ENUM, ".p.M.Kind"))
    kinds = file.message_type[0].enum_type[0]
    kinds.options.allow_alias = True
    kinds.value.add(name="NOTHING", number=0)
    kinds.value.add(name="FIVE", number=5)
    values, _ = ProtobufReader(message(file), message(file)).decode([b"\x0a\x03\x00\x05\x07"])
    assert rows(values) == [{"k_": ["NONE", "SOME", "7"]}]


def test_a_key_of_a_map_that_is_no_utf8_is_told_alone() -> None:
    file = file_of(m_=(1, F.TYPE_MESSAGE, ".p.M.Entry"))
    file.syntax = "proto2"
    good, bad = b"\x0a\x05\x0a\x01k\x10\x07", b"\x0a\x05\x0a\x01\xff\x10\x07"
    values, failures = ProtobufReader(message(file), message(file)).decode([good, bad, good])
    assert failures == {1: "a text of it is no UTF-8"}
    assert rows(values) == [{"m_": [("k", 7)]}, None, {"m_": [("k", 7)]}]


def test_a_value_that_its_field_cannot_have_is_told() -> None:
    file = file_of(
        k=(1, F.TYPE_ENUM, ".p.M.Kind"), ks_=(2, F.TYPE_ENUM, ".p.M.Kind"), m_=(3, F.TYPE_MESSAGE, ".p.M.Entry")
    )
    file.syntax = "proto2"
    value = file.message_type[0].nested_type[0].field[1]
    value.type, value.type_name = F.TYPE_ENUM, ".p.M.Kind"
    records = [
        b"\x08\x05\x10\x00",
        b"\x08\x07",  # no symbol of a closed enum: the library leaves it out
        b"\x10\x00\x10\x07\x10\x05",
        b"\x12\x02\x00\x07",
        b"\x1a\x05\x0a\x01k\x10\x07",
        b"\x0a\x01k",  # a text
    ]
    values, failures = ProtobufReader(message(file), message(file)).decode(records)
    names = {1: "k", 2: "ks_", 3: "ks_", 4: "m_", 5: "k"}
    assert failures == {row: f"{name} has a value in it that its type has not" for row, name in names.items()}
    assert rows(values)[0] == {"k": "SOME", "ks_": ["NONE"], "m_": []}


def test_fields_in_the_range_of_extensions_are_left_out() -> None:
    file = file_of(i=(1, F.TYPE_INT32))
    file.syntax = "proto2"
    file.message_type[0].extension_range.add(start=100, end=102)
    records = [b"\x08\x01" + data for data in (b"\xa0\x06\x05", b"\xa8\x06\x05", b"\xb0\x06\x05")]
    values, failures = ProtobufReader(message(file), message(file)).decode(records)
    assert (rows(values), failures) == ([{"i": 1}, {"i": 1}, None], {2: "it has a field 102, which its schema has not"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (F.TYPE_INT32, F.TYPE_UINT32),
        (F.TYPE_INT32, F.TYPE_UINT64),
        (F.TYPE_INT64, F.TYPE_UINT64),
        (F.TYPE_SFIXED32, F.TYPE_FIXED32),
        (F.TYPE_SFIXED64, F.TYPE_FIXED64),
    ],
)
def test_a_number_below_0_is_not_read_as_one_without_a_sign(old: int, new: int) -> None:
    written, read = message(file_of(x=(1, old), l_=(2, old))), file_of(x=(1, new), l_=(2, new))
    cls: Any = GetMessageClass(written)
    most = 2 ** (31 if old in (F.TYPE_INT32, F.TYPE_SFIXED32) else 63) - 1
    records = [cls(x=most).SerializeToString(), cls(x=-1).SerializeToString(), cls(l_=[1, -most]).SerializeToString()]
    values, failures = ProtobufReader(written, message(read)).decode(records)
    assert failures == {
        row: f"{name} is below 0 in it, which the reader's type has not" for row, name in ((1, "x"), (2, "l_"))
    }
    assert rows(values) == [{"x": most, "l_": []}, None, None]
    read.syntax = "proto2"
    read.message_type[0].field[0].default_value = str(2 * most + 1)  # a default that is not set is not below 0
    assert rows(ProtobufReader(written, message(read)).decode([b""])[0]) == [{"x": None, "l_": []}]


def test_a_message_that_is_read_as_two_is_compared_with_both() -> None:
    def file(second: str, kind: int) -> descriptor_pb2.FileDescriptorProto:
        made = file_of(a=(1, F.TYPE_MESSAGE, ".p.X"), b=(2, F.TYPE_MESSAGE, f".p.{second}"))
        made.message_type.add(name="X").field.add(name="v", number=1, type=F.TYPE_INT64, label=1)
        made.message_type.add(name="Y").field.add(name="v", number=1, type=F.Type.ValueType(kind), label=1)
        return made

    with pytest.raises(UnresolvableError, match=r"M\.b\.v has another type"):
        ProtobufReader(message(file("X", F.TYPE_INT64)), message(file("Y", F.TYPE_INT32)))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (F.TYPE_INT64, F.TYPE_INT32, "x has another type"),
        (F.TYPE_INT32, F.TYPE_SINT32, "x has another type"),
        (F.TYPE_STRING, F.TYPE_INT32, "x has another type"),
        (F.TYPE_UINT64, F.TYPE_INT64, "x has another type"),
    ],
)
def test_versions_that_cannot_be_read_say_which_field(old: int, new: int, told: str) -> None:
    with pytest.raises(UnresolvableError, match=told):
        ProtobufReader(message(file_of(x=(1, old))), message(file_of(x=(1, new))))


def test_indexes_name_a_message() -> None:
    schema = ProtobufSchema(text(WIDE))
    inner = schema.message("p.M.Inner")
    assert schema.indexes(inner) == [0, 1]
    assert schema.at([0, 1]) is inner
    for indexes in ([0], [0, 1], [3], [1, 200, 0]):
        assert read_indexes(b"x" + write_indexes(indexes) + b"y", 1) == (
            tuple(indexes),
            1 + len(write_indexes(indexes)),
        )
    with pytest.raises(BadRecordError, match="names no message"):
        schema.at([7])
    for data in (b"", b"\x04\x02", b"\x01", b"\xff\xff\xff\xff\xff\xff\x01", b"\xfe\xff\x01"):
        with pytest.raises(BadRecordError):
            read_indexes(data, 0)


def test_a_descriptor_in_lines_of_base64_is_taken() -> None:
    lines = base64.encodebytes(WIDE.SerializeToString()).decode()
    assert ProtobufSchema(lines).message().full_name == "p.M"


def test_schemas_that_are_none_are_told() -> None:
    tree = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3")
    tree.message_type.add(name="T").field.add(name="t", number=1, type=F.TYPE_MESSAGE, type_name=".T", label=1)
    with pytest.raises(SchemaError, match="T holds itself"):
        arrow_type(message(tree, "T"))
    deep = descriptor_pb2.FileDescriptorProto(name="d.proto", syntax="proto3")
    for level in range(500):
        inner = deep.message_type.add(name=f"D{level}").field
        if level < 499:
            inner.add(name="d", number=1, type=F.TYPE_MESSAGE, type_name=f".D{level + 1}", label=1)
    with pytest.raises(SchemaError, match="nested too deeply"):
        arrow_type(message(deep, "D0"))
    assert arrow_type(message(deep, "D400")).num_fields == 1
    for wrong, told in (("?", "in base64"), ("AAAA", "neither the descriptor"), (text(WIDE), "no message p.X")):
        with pytest.raises(SchemaError, match=told):
            ProtobufSchema(wrong).message("p.X")
    imports = descriptor_pb2.FileDescriptorProto(name="i.proto", dependency=["other.proto"])
    with pytest.raises(SchemaError, match=r"imports other\.proto"):
        ProtobufSchema(text(imports))
    with pytest.raises(SchemaError, match="malformed"):
        native_schema("{}")


def test_keys_of_64_bits_without_a_sign_are_written() -> None:
    file = file_of(m_=(1, F.TYPE_MESSAGE, ".p.M.Entry"))
    file.message_type[0].nested_type[0].field[0].type = F.TYPE_UINT64
    kind = message(file)
    column = pa.array([{"m_": [(2**64 - 1, 1), (0, 2)]}], arrow_type(kind))
    written = protobuf_writing.encoder(kind, column.type)(column)
    assert [dict(row["m_"]) for row in rows(ProtobufReader(kind, kind).decode(written)[0])] == [{2**64 - 1: 1, 0: 2}]  # type: ignore[arg-type]


def test_rows_that_a_message_cannot_be_are_told() -> None:
    file = file_of(a=(1, F.TYPE_INT32), b=(2, F.TYPE_STRING), r=(3, F.TYPE_BOOL))
    file.syntax = "proto2"
    fields = file.message_type[0].field
    file.message_type[0].oneof_decl.add(name="choice")
    fields[0].oneof_index = fields[1].oneof_index = 0
    fields[2].label = F.LABEL_REQUIRED
    kind = message(file)
    for row, told in (
        ({"a": 0, "b": "x", "r": True}, "a and b are both set, and choice is one of them"),
        ({"a": 1}, "missing required fields: r"),
    ):
        with pytest.raises(BadRecordError, match=told):
            protobuf_writing.encoder(kind, arrow_type(kind))(pa.array([row], arrow_type(kind)))
    good = pa.array([{"a": 0, "b": None, "r": True}], arrow_type(kind))
    assert protobuf_writing.encoder(kind, arrow_type(kind))(good) == [b"\x08\x00\x18\x01"]


def test_columns_and_values_that_a_message_does_not_take_are_told() -> None:
    kind = message(file_of(i=(1, F.TYPE_INT32), k=(2, F.TYPE_ENUM, ".p.M.Kind"), u=(3, F.TYPE_UINT32)))
    with pytest.raises(SchemaError, match="j is no field of the message"):
        protobuf_writing.encoder(kind, pa.struct([("j", pa.int32())]))
    with pytest.raises(SchemaError, match="i has the type BIGINT, not INT"):
        protobuf_writing.encoder(kind, pa.struct([("i", pa.int64())]))
    for row, told in (({"k": "X"}, "'X', which is no symbol"), ({"u": -1}, "does not fit the message")):
        with pytest.raises(BadRecordError, match=told):
            protobuf_writing.encoder(kind, arrow_type(kind))(pa.array([row], arrow_type(kind)))
