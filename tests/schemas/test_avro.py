"""Avro's encoding and rules: what fastavro writes is read, what is malformed is told, versions are resolved."""

from __future__ import annotations

import io
import json
import random
import string
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kop.schemas.avro_reading import MOST_EMPTY, AvroReader
from kop.schemas.avro_schema import arrow_type, parse
from kop.schemas.avro_writing import encoder, schema_of
from kop.schemas.errors import BadRecordError, SchemaError, UnresolvableError


def record(*fields: tuple[str, Any] | dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    listed = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "fields": listed} | more


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def reader(written_by: Any, read_as: Any = None) -> AvroReader:
    own = parse(json.dumps(written_by))
    return AvroReader(own, own if read_as is None else parse(json.dumps(read_as)))


def read(schema: Any, data: bytes, read_as: Any = None) -> Any:
    """The row that a record is, or what is wrong with it."""
    values, failures = reader(schema, read_as).decode([data])
    values.validate(full=True)
    return failures.get(0) or values.to_pylist()[0]


class Chance:
    """Schemas and values by chance, as fastavro takes them, with the row that a value is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"N{self.names}"

    def schema(self, depth: int = 3) -> Any:
        plain = ["boolean", "int", "long", "float", "double", "bytes", "string"]
        kinds = [*plain, "enum", "fixed", "date", "millis", "micros", "local", "decimal"]
        if depth:
            kinds += ["record", "array", "map", "optional", "union"] * 2
        match self.random.choice(kinds):
            case "enum":
                return {"type": "enum", "name": self.name(), "symbols": ["A", "B", "C"]}
            case "fixed":
                return {"type": "fixed", "name": self.name(), "size": self.random.randrange(1, 5)}
            case "date":
                return {"type": "int", "logicalType": "date"}
            case "millis" | "micros" as unit:
                return {"type": "long", "logicalType": f"timestamp-{unit}"}
            case "local":
                return {"type": "long", "logicalType": "local-timestamp-micros"}
            case "decimal":
                return {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
            case "record":
                fields = [(self.name(), self.schema(depth - 1)) for _ in range(self.random.randrange(1, 5))]
                return record(*fields, name=self.name())
            case "array":
                return {"type": "array", "items": self.schema(depth - 1)}
            case "map":
                return {"type": "map", "values": self.schema(depth - 1)}
            case "optional":
                inner = self.schema(0)
                return ["null", inner] if self.random.random() < 0.5 else [inner, "null"]
            case "union":
                return ["null", "string", "boolean", {"type": "array", "items": "long"}]
            case plain_kind:
                return plain_kind

    def text(self) -> str:
        return "".join(self.random.choices(string.ascii_letters + "äß€😀", k=self.random.randrange(6)))

    def value(self, schema: Any) -> tuple[Any, Any]:
        """A value for fastavro, and the same in the row."""
        chance = self.random
        made: Any
        if isinstance(schema, list):
            branch = chance.choice(schema)
            value, row = self.value(branch)
            members = [kind for kind in schema if kind != "null"]
            if branch == "null" or len(members) == 1:
                return value, row
            return value, {f"member{at}": row if kind == branch else None for at, kind in enumerate(members)}
        kind = schema if isinstance(schema, str) else schema.get("logicalType") or schema["type"]
        match kind:
            case "null":
                return None, None
            case "boolean":
                return (made := chance.random() < 0.5), made
            case "int":
                return (made := chance.choice([0, -1, 2**31 - 1, -(2**31), chance.randrange(-500, 500)])), made
            case "long":
                return (made := chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(-(2**40), 2**40)])), made
            case "float":
                return (made := chance.randrange(-1000, 1000) / 8), made
            case "double":
                return (made := chance.random() * 1e9), made
            case "bytes":
                return (made := chance.randbytes(chance.randrange(5))), made
            case "fixed":
                return (made := chance.randbytes(schema["size"])), made
            case "string":
                return (made := self.text()), made
            case "enum":
                return (made := chance.choice(schema["symbols"])), made
            case "date":
                return (made := date.fromordinal(chance.randrange(1, 3_000_000))), made
            case "timestamp-millis" | "timestamp-micros" | "local-timestamp-micros":
                millis = chance.randrange(-(10**12), 10**13)
                made = datetime.fromtimestamp(millis // 1000, UTC).replace(microsecond=millis % 1000 * 1000)
                made = made.replace(tzinfo=None) if kind.startswith("local") else made
                return made, made
            case "decimal":
                return (made := Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-3)), made
            case "array":
                pairs = [self.value(schema["items"]) for _ in range(chance.randrange(4))]
                return [value for value, _ in pairs], [row for _, row in pairs]
            case "map":
                named = {self.text(): self.value(schema["values"]) for _ in range(chance.randrange(4))}
                return {key: value for key, (value, _) in named.items()}, [
                    (key, row) for key, (_, row) in named.items()
                ]
        fields = {field["name"]: self.value(field["type"]) for field in schema["fields"]}
        return {key: value for key, (value, _) in fields.items()}, {key: row for key, (_, row) in fields.items()}


@pytest.mark.parametrize("seed", range(20))
def test_what_fastavro_writes_is_read_and_written_the_same(seed: int) -> None:
    chance = Chance(seed)
    schema = record(("f", chance.schema()), ("g", chance.schema()))
    pairs = [chance.value(schema) for _ in range(5)]
    data = [written(schema, value) for value, _ in pairs]
    values, failures = reader(schema).decode(data)
    values.validate(full=True)
    assert (values.to_pylist(), failures) == ([row for _, row in pairs], {})
    own = parse(json.dumps(schema))
    write = encoder(own, arrow_type(own))
    assert write(values) == data
    assert write(values.slice(2, 2)) == data[2:4]
    assert write(values.take(pa.array([1, None, 0]))) == [data[1], None, data[0]]


@pytest.mark.parametrize("seed", range(12))
def test_malformed_records_are_told_and_their_neighbours_are_right(seed: int) -> None:
    """Cut, flipped and longer records: whatever is taken for a row, fastavro, which takes more, has the same for it."""
    chance = Chance(seed)
    schema = record(("f", chance.schema()), ("g", chance.schema(0)))
    value, row = chance.value(schema)
    data = written(schema, value)
    bad = [data[:end] for end in range(len(data))] + [data + b"\0", data + data]
    for _ in range(30):
        flipped = bytearray(data)
        flipped[chance.random.randrange(len(data))] ^= 1 << chance.random.randrange(8)
        bad.append(bytes(flipped))
    own = reader(schema)
    for damaged in bad:
        values, failures = own.decode([data, damaged, data])
        values.validate(full=True)
        assert values.take([0, 2]).to_pylist() == [row, row]
        assert set(failures) <= {1}
        if failures or _late(values):
            continue
        source = io.BytesIO(damaged)
        again = fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
        assert source.tell() == len(damaged)
        assert reader(schema).decode([written(schema, again)])[0].to_pylist() == values.to_pylist()[1:2]


def _late(values: pa.Array) -> bool:
    """Return true if a column has a time that Python, and so fastavro, has not."""
    try:
        values.to_pylist()
    except (OverflowError, ValueError):
        return True
    return False


@pytest.mark.parametrize(
    ("schema", "data", "told"),
    [
        (["null", "int"], b"\x01\x04", "branch -1"),
        (["null", "int"], b"\x04", "branch 2 of a union of 2"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x01", "symbol -1"),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x04", "symbol 2 of an enum of 2"),
        ("boolean", b"\x05", "a boolean of it is 5"),
        ("long", b"\xff" * 12 + b"\x01", "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("int", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "beyond what its type holds"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xff" * 8 + b"\x7f", "beyond what its type holds"),
        ("string", b"\x03abc", "the length -2"),
        ("string", b"\x04\xff\xfe", "no UTF-8"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "cut short"),
        ({"type": "array", "items": "int"}, b"\x06\x02", "cut short"),
        ({"type": "array", "items": "int"}, b"\x01\x06\x02\x00", "another size"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", f"than {MOST_EMPTY}"),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x02\x00", "the key 'a' twice"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x04\x01\x00", "than 2 digits"),
    ],
)
def test_what_is_not_avro_is_told(schema: Any, data: bytes, told: str) -> None:
    assert told in read(schema, data)


def test_blocks_may_say_their_size() -> None:
    assert read({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]
    assert read({"type": "map", "values": "int"}, b"\x01\x06\x02a\x02\x00") == [("a", 1)]


INT, LONG = record(("x", "int")), record(("x", "long"))
TIMES = [record(("x", {"type": "long", "logicalType": f"timestamp-{unit}"})) for unit in ("millis", "micros")]
AT = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("writer", "value", "reader_", "row"),
    [
        (INT, {"x": 5}, LONG, {"x": 5}),
        (INT, {"x": 5}, record(("x", "double")), {"x": 5.0}),
        (LONG, {"x": 5}, record(("x", "float")), {"x": 5.0}),
        (record(("x", "float")), {"x": 0.5}, record(("x", "double")), {"x": 0.5}),
        (record(("x", "string")), {"x": "ä"}, record(("x", "bytes")), {"x": "ä".encode()}),
        (record(("x", "bytes")), {"x": b"a"}, record(("x", "string")), {"x": "a"}),
        (INT, {"x": 5}, record(("x", ["null", "long"])), {"x": 5}),
        (record(("x", ["null", "int"])), {"x": 5}, LONG, {"x": 5}),
        (record(("x", ["null", "int"])), {"x": None}, record(("x", ["string", "null"])), {"x": None}),
        (INT, {"x": 5}, record(("x", ["string", "long"])), {"x": {"member0": None, "member1": 5}}),
        (
            record(("x", ["int", "string"])),
            {"x": "s"},
            record(("x", ["string", "int"])),
            {"x": {"member0": "s", "member1": None}},
        ),
        (INT, {"x": 5}, record({"name": "y", "type": "int", "aliases": ["x"]}), {"y": 5}),
        (INT, {"x": 5}, record({"name": "y", "type": ["null", "int"], "default": None}), {"y": None}),
        (INT, {"x": 5}, record({"name": "y", "type": ["int", "null"], "default": 7}, ("x", "int")), {"y": 7, "x": 5}),
        (
            record(("x", {"type": "map", "values": {"type": "array", "items": "string"}}), ("y", "int")),
            {"x": {"a": ["b"]}, "y": 1},
            record(("y", "int")),
            {"y": 1},
        ),
        (
            record(("x", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
            {"x": "B"},
            record(("x", {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"})),
            {"x": "A"},
        ),
        (TIMES[0], {"x": AT}, TIMES[1], {"x": AT}),
        (TIMES[1], {"x": AT}, TIMES[0], {"x": AT}),
        (record(("x", "long")), {"x": 1000}, TIMES[0], {"x": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}),
    ],
)
def test_versions_are_resolved_by_avro_s_rules(writer: Any, value: Any, reader_: Any, row: Any) -> None:
    assert read(writer, written(writer, value), reader_) == row


@pytest.mark.parametrize(
    ("writer", "reader_", "told"),
    [
        (LONG, INT, "x is long, which cannot be read as int"),
        (INT, record(("y", "int")), "y is not in it, and the reader's schema has no default"),
        (INT, record(("x", ["null", "string"])), "x is int, which cannot be read as null or string"),
        (
            record(("x", {"type": "fixed", "name": "F", "size": 2})),
            record(("x", {"type": "fixed", "name": "F", "size": 3})),
            "F",
        ),
        (
            record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
            record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1})),
            "a decimal of scale 2, the reader's has 1",
        ),
        (
            record(("x", {"type": "enum", "name": "E", "symbols": ["A"]})),
            record(("x", {"type": "enum", "name": "E", "symbols": ["B"]})),
            "no symbol",
        ),
    ],
)
def test_versions_that_cannot_be_resolved_say_which_field(writer: Any, reader_: Any, told: str) -> None:
    with pytest.raises(UnresolvableError, match=told):
        reader(writer, reader_)


def test_a_branch_that_cannot_be_resolved_is_a_bad_record_where_it_is_used() -> None:
    writer, as_int = record(("x", ["int", "string"])), record(("x", ["null", "int"]))
    assert read(writer, written(writer, {"x": 5}), as_int) == {"x": 5}
    assert read(writer, written(writer, {"x": "s"}), as_int) == "x is string, which cannot be read as null or int"


def test_a_record_that_holds_itself_is_passed_over_and_is_no_column() -> None:
    tree = record(("n", "int"), ("next", ["null", "Tree"]), name="Tree")
    writer = record(("tree", tree), ("id", "int"))
    data = written(writer, {"tree": {"n": 1, "next": {"n": 2, "next": None}}, "id": 3})
    assert read(writer, data, record(("id", "int"))) == {"id": 3}
    assert read(writer, data[:-1] + b"\x02" * 50, record(("id", "int"))) == "there are 49 bytes behind it"
    deep = record(("tree", tree), ("id", "int"))
    assert read(deep, b"\x02\x02" * 5000 + b"\x02\x00\x02", record(("id", "int"))) == "it is nested too deeply"
    with pytest.raises(SchemaError, match="the record Tree holds itself"):
        arrow_type(parse(json.dumps(tree)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no JSON"),
        ('"nobody"', "names the type nobody"),
        ('{"type": "record", "name": "R"}', "no list of fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a"}]}', "without a name or a type"),
        (json.dumps(record(("a", "int"), ("A", "int"))), "two fields a"),
        ('["int", "int"]', "branches int, int"),
        ('{"type": "fixed", "name": "F"}', "the size None"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "none of its symbols"),
        ("7", "where a type has to be"),
        (json.dumps(record(aliases=5)), "R has the aliases 5, which are no list of names"),
        (json.dumps(record(aliases=["S", 5])), "the aliases .*, which are no list of names"),
        (json.dumps(record({"name": "x", "type": "int", "aliases": "y"})), "x has the aliases 'y'"),
        (json.dumps(record(namespace=5)), "R has the namespace 5, which is no text"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type": "record", "name": "R", "fields": [{"name": "x", "type": ' * 450 + "5" + "}]}" * 450, "too deeply"),
    ],
)
def test_malformed_schemas_are_told(text: str, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        parse(text)


def test_a_column_that_is_too_deep_is_told() -> None:
    for levels, told in ((100, False), (101, True), (700, True)):
        schema = parse('{"type": "array", "items": ' * levels + '"int"' + "}" * levels)
        if told:
            with pytest.raises(SchemaError, match="nested too deeply, more than 100 levels"):
                AvroReader(schema, schema)
        else:
            assert AvroReader(schema, schema).decode([b"\0"])[0].to_pylist() == [[]]


def test_names_are_found_in_their_namespace() -> None:
    schema = record(
        ("a", {"type": "enum", "name": "E", "symbols": ["X"]}), ("b", "E"), ("c", "shop.E"), name="R", namespace="shop"
    )
    assert str(arrow_type(parse(json.dumps(schema)))) == "struct<a: string, b: string, c: string>"


def test_an_empty_namespace_is_none() -> None:
    """In a record that has a namespace, too."""
    inner = {"type": "enum", "name": "E", "namespace": "", "symbols": ["X"]}
    used = record(("a", inner), ("b", "E"), name="R", namespace="shop")
    (first, second) = parse(json.dumps(used)).fields
    assert (first.kind.name, second.kind) == ("E", first.kind)
    nested = record(("e", record(("x", "E"), name="I", namespace="")), name="shop.R")
    with pytest.raises(SchemaError, match="names the type E"):
        parse(json.dumps(nested), [json.dumps(inner | {"namespace": "shop"})])
    again = parse(json.dumps(record(("a", inner), ("b", inner | {"namespace": "shop"}), namespace="shop")))
    assert [field.kind.name for field in again.fields] == ["E", "shop.E"]


def test_true_and_false_are_no_digits_of_a_decimal() -> None:
    for wrong in ({"precision": True}, {"precision": 5, "scale": True}, {"precision": 5, "scale": False}):
        schema = {"type": "bytes", "logicalType": "decimal"} | wrong
        assert arrow_type(parse(json.dumps(schema))) == pa.binary()


KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("m", pa.map_(pa.string(), pa.struct([("at", pa.timestamp("us", tz="UTC"))]))),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
    ]
)


def test_the_schema_of_a_type_takes_its_columns() -> None:
    rows = [
        {
            "id": 1,
            "small": None,
            "tags": ["a", None],
            "m": [("k", {"at": AT}), ("l", None)],
            "day": None,
            "price": Decimal("1.50"),
        }
    ]
    text = schema_of(KIND)
    fastavro.parse_schema(json.loads(text))
    (data,) = encoder(parse(text), KIND)(pa.array(rows, KIND))
    assert data is not None
    assert read(json.loads(text), data) == rows[0]


@pytest.mark.parametrize(
    ("schema", "kind", "told"),
    [
        (record(("x", "int")), pa.struct([("x", pa.int64())]), "x has the type BIGINT, and its schema is int: cast it"),
        (record(("x", "int")), pa.struct([]), "x is missing, and the schema has no default"),
        (record(("x", "int")), pa.struct([("x", pa.int32()), ("y", pa.int32())]), "y is no field of R"),
        (record(("x", ["int", "string"])), pa.struct([("x", pa.int32())]), "struct of member0, member1"),
        ("int", pa.string(), "the column has the type STRING"),
    ],
)
def test_columns_that_a_schema_does_not_take_are_told(schema: Any, kind: pa.DataType, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        encoder(parse(json.dumps(schema)), kind)


def test_values_that_a_schema_does_not_take_are_told() -> None:
    kind = pa.struct([("x", pa.string())])
    with pytest.raises(BadRecordError, match="x is null, which its schema does not take"):
        encoder(parse(json.dumps(record(("x", "string")))), kind)(pa.array([{"x": None}], kind))
    enum = record(("x", {"type": "enum", "name": "E", "symbols": ["A"]}))
    with pytest.raises(BadRecordError, match="x is 'C', which is no symbol of E"):
        encoder(parse(json.dumps(enum)), kind)(pa.array([{"x": "C"}], kind))


@pytest.mark.parametrize("nothing", ["null", ["null"]])
def test_a_value_in_a_column_that_is_null_by_its_schema_is_told(nothing: Any) -> None:
    schema, kind = parse(json.dumps(record(("x", nothing)))), pa.struct([("x", pa.string())])
    assert encoder(schema, kind)(pa.array([{"x": None}], kind)) == [b"" if nothing == "null" else b"\0"]
    with pytest.raises(BadRecordError, match="x has a value, and its schema takes null alone"):
        encoder(schema, kind)(pa.array([{"x": "lost"}], kind))


def test_a_uuid_of_16_bytes_is_written_as_it_is_read() -> None:
    schema = record(("x", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}))
    values, _ = reader(schema).decode([bytes(range(16))])
    assert encoder(parse(json.dumps(schema)), values.type)(values) == [bytes(range(16))]
    with pytest.raises(BadRecordError, match="x is 'U', which is no UUID"):
        encoder(parse(json.dumps(schema)), values.type)(pa.array([{"x": "U"}], values.type))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", 2**31),
        ("long", -(2**63) - 1),
        ("double", 10**400),
        ("string", "\ud800"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**60),
        ({"type": "fixed", "name": "F", "size": 2}, "a"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "int"}, [1, 2**31]),
    ],
)
def test_a_default_that_its_type_does_not_hold_is_told(kind: Any, default: Any) -> None:
    versions = record(), record({"name": "x", "type": kind, "default": default})
    with pytest.raises(UnresolvableError, match="the default of x does not fit its type"):
        reader(*versions)


@pytest.mark.parametrize("storage", [{"type": "bytes"}, {"type": "fixed", "name": "F", "size": 16}])
def test_decimals_of_38_digits_keep_all_of_them(storage: dict[str, Any]) -> None:
    schema = storage | {"logicalType": "decimal", "precision": 38, "scale": 2}
    value = Decimal("-123456789012345678901234567890123456.78")
    column = pa.array([value], pa.decimal128(38, 2))
    (data,) = encoder(parse(json.dumps(schema)), column.type)(column)
    assert data is not None
    assert read(schema, data) == value


def test_milliseconds_have_no_more_bits_than_the_writer_s_type() -> None:
    wide, narrow = record(("t", "long")), record(("t", "int"))
    millis = record(("t", {"type": "long", "logicalType": "timestamp-millis"}))
    local = record(("t", {"type": "long", "logicalType": "local-timestamp-millis"}))
    for number in (2**31, 2**40, -(2**31) - 1):
        for read_as in (None, millis, local):
            assert read(narrow, written(wide, {"t": number}), read_as) == (
                f"a number of it is {number}, beyond what its type holds"
            )
    assert read(narrow, written(narrow, {"t": 2**31 - 1}), local) == {
        "t": datetime(1970, 1, 25, 20, 31, 23, 647000, UTC).replace(tzinfo=None)
    }
    most = (2**63 - 1) // 1000
    assert "beyond what its type holds" in read(wide, written(wide, {"t": most + 1}), millis)


def test_a_record_that_holds_itself_by_others_is_told() -> None:
    inner = record(("a", "A"), name="B")
    items = {"type": "array", "items": record(("b", inner), name="A")}
    written_by = record(("l", items), ("n", "int"))
    for schema in (items["items"], items, written_by):
        with pytest.raises(SchemaError, match="the record A holds itself"):
            reader(schema)
    assert read(written_by, b"\0\x0e", record(("n", "int"))) == {"n": 7}
    assert read(written_by, b"\x02\0\x0e", record(("n", "int"))) == "it is nested too deeply"
