"""JSON texts: pyarrow's reading and that of one text after the other agree, and what is no right JSON is told."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kop.schemas import json_schema, json_writing
from kop.schemas.errors import BadRecordError, SchemaError
from kop.schemas.json_text import JsonReader

KIND = pa.struct(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("ok", pa.bool_()),
        ("l", pa.list_(pa.field("element", pa.int32()))),
        ("o", pa.struct([("a", pa.string()), ("b", pa.struct([("c", pa.int64())]))])),
    ]
)
TEXTS = [
    b'{"n": 1, "x": 1.5, "s": "a", "ok": true, "l": [1, null, 3], "o": {"a": "x", "b": {"c": 7}}}',
    b'{\n  "n": -9223372036854775808,\n  "s": "line\\nbreak \\u00e4 \xc3\xa4 \\" {"\n}',
    b'{"x": 1e300, "other": {"deep": [1, {"x": 2}]}, "o": null, "l": []}',
    b"{}",
    b'{"s": "", "o": {}, "n": null}',
    b'{"x": 5, "o": {"b": {"c": 1, "d": 2}, "a": null}}',
]


def read(kind: pa.DataType, *texts: bytes) -> tuple[list[Any], dict[int, str]]:
    values, failures = JsonReader(kind).decode(texts)
    values.validate(full=True)
    assert values.type.equals(kind)
    return values.to_pylist(), failures


def outcome(kind: pa.DataType, text: bytes) -> Any:
    """The row that a text is, or what is wrong with it."""
    (row,), failures = read(kind, text)
    return failures.get(0) or row


def each(kind: pa.DataType, *texts: bytes) -> tuple[list[Any], dict[int, str]]:
    """The same texts, read one after the other: there is a bad one among them."""
    rows, failures = read(kind, *texts, b"no")
    assert failures.pop(len(texts)).startswith("it is no JSON")
    return rows[:-1], failures


def test_both_ways_give_the_same_rows() -> None:
    texts = [*TEXTS, b"", b" \n", b"null", TEXTS[0]]
    rows, failures = each(KIND, *texts)
    assert failures == {}
    assert rows[6:9] == [None, None, None]
    assert read(KIND, *texts[:8], TEXTS[0]) == ([*rows[:8], rows[0]], {})
    assert read(KIND, *texts) == (rows, {})


@pytest.mark.parametrize("seed", range(10))
def test_both_ways_agree_about_damaged_texts(seed: int) -> None:
    chance = random.Random(seed)
    good = TEXTS[0]
    for _ in range(60):
        damaged = bytearray(chance.choice(TEXTS))
        match chance.randrange(4):
            case 0:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            case 1:
                del damaged[chance.randrange(len(damaged)) :]
            case 2:
                damaged += chance.choice([b"{}", b"x", good, b"}", b"\0"])
            case 3:
                damaged[chance.randrange(len(damaged)) :] = chance.choice([b"1}", b'": 1}', b"NaN}", b"01}", b"1.}"])
        texts = [good, bytes(damaged), good]
        rows, failures = read(KIND, *texts)
        assert (rows, failures) == each(KIND, *texts)
        assert rows[0] == rows[2] == read(KIND, good)[0][0]


@pytest.mark.parametrize(
    "texts",
    [
        (b'{"n": 1}{"n": 2}', b""),
        (b'{"n": 1}{"n": 2}', b'{"n":', b"3}"),
        (b'{"n": 1}{"n": 2}', b'{"o": {', b'"a": "x"}}'),
        (b'{"n": 1}\n{"n": 2}', b'{"s": "{}', b'{}"}'),
        (b'{"n": 1}{"n": 2}', b'{"o":{}', b',"n":3}'),
    ],
)
def test_halves_are_never_put_together(texts: tuple[bytes, ...]) -> None:
    rows, failures = read(KIND, *texts, b'{"n": 5}')
    assert rows[:-1] == [None] * len(texts)
    assert rows[-1]["n"] == 5
    assert set(failures) == {row for row, text in enumerate(texts) if text}


MORE = pa.struct(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(5, 2)),
        ("raw", pa.binary()),
        ("m", pa.map_(pa.string(), pa.int16())),
        ("f", pa.float32()),
    ]
)


def test_other_types_are_read_one_after_the_other() -> None:
    text = b"""{"at": "2026-01-31T12:30:00.5+01:00", "local": "2026-01-31T12:30:00", "day": "2026-01-31",
               "price": 12.5, "raw": "AAE=", "m": {"a": 1, "b": null}, "f": 0.5}"""
    assert outcome(MORE, text) == {
        "at": datetime(2026, 1, 31, 11, 30, 0, 500_000, tzinfo=UTC),
        "local": datetime(2026, 1, 31, 12, 30),  # noqa: DTZ001
        "day": date(2026, 1, 31),
        "price": Decimal("12.50"),
        "raw": b"\0\1",
        "m": [("a", 1), ("b", None)],
        "f": 0.5,
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'{"n": "x"}', 'n is "x", not a whole number'),
        (b'{"n": 1.5}', "n is 1.5, not a whole number"),
        (b'{"n": 9223372036854775808}', "which has more than 64 bits"),
        (b'{"n": true}', "n is true, not a whole number"),
        (b'{"x": "1"}', 'x is "1", not a number'),
        (b'{"x": 1e400}', "x is 1e400, not a number"),
        (b'{"x": 123456789%s}' % (b"0" * 400), "not a number"),
        (b'{"ok": 1}', "ok is 1, not true or false"),
        (b'{"l": {}}', "l is {}, not an array"),
        (b'{"l": [1, "a"]}', 'l[] is "a", not a whole number'),
        (b'{"o": {"b": 1}}', "o.b is 1, not an object"),
        (b"[1]", "it is [1], not an object"),
        (b'{"x": NaN}', "NaN, which is no JSON"),
        (b'{"s": "\xff"}', "no UTF-8"),
        (b'{"s": "\\ud800"}', "surrogates not allowed"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_does_not_fit_is_told_with_its_field(text: bytes, told: str) -> None:
    assert told in outcome(KIND, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'{"at": "2026-01-31T12:30:00"}', "at is"),
        (b'{"local": "2026-01-31T12:30:00Z"}', "local is"),
        (b'{"at": 5}', "at is 5, not a time"),
        (b'{"day": "31.1.2026"}', "not a day"),
        (b'{"price": 1000.5}', "does not fit decimal(5, 2)"),
        (b'{"price": 1.555}', "does not fit decimal(5, 2)"),
        (b'{"price": "x"}', "not a decimal number"),
        (b'{"f": 1e39}', "f is 1e39, not a number that a column holds"),
        (b'{"raw": "?"}', "not bytes in base64"),
        (b'{"m": {"a": 70000}}', "m[] is 70000, which has more than 16 bits"),
    ],
)
def test_other_types_refuse_what_is_not_theirs(text: bytes, told: str) -> None:
    assert told in outcome(MORE, text)


def test_texts_take_the_json_of_what_is_none() -> None:
    kind = pa.struct([("s", pa.string())])
    assert [outcome(kind, b'{"s": %s}' % text)["s"] for text in (b"5", b"1.50", b"true", b'{"a": [1.5, "x"]}')] == [
        "5",
        "1.50",
        "true",
        '{"a": [1.5, "x"]}',
    ]
    assert outcome(kind, b'{"s": 1, "s": "last"}') == {"s": "last"}


@pytest.mark.parametrize("kind", [KIND, MORE])
def test_what_is_written_is_read(kind: pa.DataType) -> None:
    rows = (
        [outcome(KIND, text) for text in TEXTS]
        if kind is KIND
        else [outcome(MORE, b'{"at": "1969-01-31T12:30:00.5Z", "raw": ""}')]
    )
    if kind is MORE:
        rows.append({"price": Decimal("-1.50"), "m": [("ä", 1), ("b", None)], "day": date(1, 1, 1)})
    column = pa.array([*rows, None], kind)
    texts = json_writing.encoder(kind)(column)
    assert texts[-1] is None
    back, failures = read(kind, *[text or b"" for text in texts])
    assert (back, failures) == (column.to_pylist(), {})
    sliced = json_writing.encoder(kind)(column.slice(1))
    assert sliced == texts[1:]
    with pytest.raises(BadRecordError, match="x is nan, which JSON has not"):
        json_writing.encoder(KIND)(pa.array([{"x": float("nan")}], KIND))


def test_the_json_of_a_value_has_its_numbers_as_they_were_written() -> None:
    written = b'{"p": [12345678901234567890.123456789, 1E400, -0.10, 7], "\xc3\xa4\\"": {"q": null, "r": "\xc3\xa4"}}'
    rows, failures = read(pa.struct([("s", pa.string())]), b'{"s": ' + written + b"}")
    assert (rows, failures) == ([{"s": written.decode()}], {})


def test_zero_is_a_decimal_that_is_all_fraction() -> None:
    rows, failures = read(
        pa.struct([("d", pa.decimal128(2, 2))]), b'{"d": 0.00}', b'{"d": -0}', b'{"d": 0.99}', b'{"d": 1}'
    )
    assert [row and row["d"] for row in rows] == [Decimal(0), Decimal(0), Decimal("0.99"), None]
    assert list(failures) == [3]


def test_a_number_is_no_bytes() -> None:
    rows, failures = read(pa.struct([("s", pa.binary())]), b'{"s": 12e4}', b'{"s": "12e4"}')
    assert (rows[1], failures) == ({"s": b"\xd7\x67\xb8"}, {0: "s is 12e4, not bytes in base64"})


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"[1, NaN]", b'{"y": NaN}'])
def test_what_is_no_number_is_told_in_any_field_whatever_stands_beside_it(number: bytes) -> None:
    bad, kind = b'{"other": ' + number + b', "n": 1}', pa.struct([("n", pa.int64()), ("s", pa.string())])
    for other in (b'{"n": 2, "s": ":NaN"}', b'{"n": 2.0}'):  # the second is not read at once
        rows, failures = read(kind, bad, other)
        assert (rows[0], rows[1]["n"], list(failures)) == (None, 2, [0])


def test_choices_that_say_what_is_required_leave_an_object_its_properties() -> None:
    plain: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    for choices in ([{"required": ["a"]}, {"required": ["b"], "title": "B"}], [{"required": ["a"]}]):
        kind = json_schema.arrow_type(json.dumps(plain | {"anyOf": choices}))
        assert kind.equals(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    other = [{"required": ["a"]}, {"properties": {"c": {}}}]
    assert json_schema.arrow_type(json.dumps({"anyOf": other})).equals(pa.string())


def test_a_json_schema_is_a_type() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
            "line": {"$ref": "#/definitions/line"},
            "lines": {"type": "array", "items": {"$ref": "line.json"}},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "any": {},
            "several": {"type": ["string", "integer"]},
            "open": {"type": "object"},
        },
        "definitions": {"line": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    }
    line = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    kind = json_schema.arrow_type(json.dumps(schema), {"line.json": line})
    assert str(kind) == (
        "struct<id: int64, price: double, at: timestamp[us, tz=UTC], day: date32[day], line: struct<sku: string>, "
        "lines: list<element: struct<n: int64>>, labels: map<string, bool>, any: string, several: string, open: string>"
    )
    assert json_schema.arrow_type(json_writing.schema_of(KIND)) == json_schema.arrow_type(json_writing.schema_of(KIND))
    again = json_schema.arrow_type(json_writing.schema_of(KIND))
    assert [field.name for field in again] == [field.name for field in KIND]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('{"$ref": "#"}', "holds itself"),
        ('{"$ref": "#/definitions/x"}', "which is not there"),
        ('{"$ref": "other.json"}', "none of its references"),
        ("{", "no JSON"),
        ('{"properties": {"a": {}, "A": {}}}', "two properties a"),
    ],
)
def test_json_schemas_that_are_no_type_are_told(schema: str, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        json_schema.arrow_type(schema)


TIMES = [
    "2026-01-31T12:30:00Z",
    "2026-01-31T12:30:00",
    "2026-01-31",
    "2026-01-31T12:30:00.1Z",
    "2026-01-31T12:30:00.123456+01:30",
    "2026-01-31T12:30:00.1234567Z",
    "2026-01-31T23:59:60Z",
    "2026-01-31T24:00:00Z",
    "2026-02-30T00:00:00Z",
    "2026-02-30",
    "2024-02-29",
    "1969-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+00:01",
    "0000-01-01T00:00:00Z",
    "0000-12-31",
    "0001-01-01",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-00:01",
    "9999-12-31",
    "2026-01-31T12:30:00-23:59",
    "2026-01-31T12:30:00+24:00",
    "2026-01-31T12:30:00z",
    "2026-01-31 12:30:00Z",
    "2026-01-31T12:30Z",
    "20260131T123000Z",
    "2026-01-31T12:30:00Z\n",
    " 2026-01-31",
    "٢٠٢٦-01-31",
    "",
    5,
    None,
]


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
def test_times_are_the_same_one_by_one_and_at_once(kind: pa.DataType) -> None:
    inner = pa.struct([("a", kind), ("l", pa.list_(pa.field("element", pa.struct([("t", kind)]))))])
    reader = JsonReader(pa.struct([("n", pa.int64()), ("s", inner)]))
    for value in TIMES:
        text = json.dumps({"n": 1, "s": {"a": value, "l": [{"t": value}, None]}}).encode()
        others = [b'{"n": 2}', b'{"s": {"l": null}}', b""]
        alone, failures = reader.decode([text, *others])
        alone.validate(full=True)
        assert alone.type.equals(reader.kind)
        beside, told = reader.decode([text, *others, b"[]"])  # which makes it read one text after the other
        assert alone.to_pylist() == beside.to_pylist()[:-1]
        assert told.keys() - failures.keys() == {4}
        assert alone.to_pylist()[1:] == [{"n": 2, "s": None}, {"n": None, "s": {"a": None, "l": None}}, None]


def test_decimals_are_read_with_all_of_their_digits_or_told() -> None:
    kind = pa.struct([("d", pa.decimal128(38, 2))])
    most = "123456789012345678901234567890123456.78"
    assert outcome(kind, b'{"d": %s000}' % most.encode()) == {"d": Decimal(most)}
    assert outcome(kind, b'{"d": "-%s"}' % most.encode()) == {"d": Decimal("-" + most)}
    for text in ("0.1" + "0" * 120 + "1", "1e9999999", "-1e-9999999", most + "1"):
        assert "does not fit decimal(38, 2)" in outcome(kind, b'{"d": %s}' % text.encode())


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_days_that_json_has_not_are_told(days: int) -> None:
    kind = pa.struct([("day", pa.date32())])
    days_alone = pa.array([-719_162, 2_932_896, None, days], pa.int32()).cast(pa.date32())
    column = pa.StructArray.from_arrays([days_alone], fields=list(kind))
    good = [b'{"day":"0001-01-01"}', b'{"day":"9999-12-31"}', b"{}"]
    assert json_writing.encoder(kind)(column[:3]) == good
    with pytest.raises(BadRecordError, match="day is a day beyond the years 1 to 9999"):
        json_writing.encoder(kind)(column)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"oneOf": 5}, "oneOf 5, which is no list"),
        ({"anyOf": {"type": "null"}}, "anyOf .*, which is no list"),
        ({"type": {"a": 1}}, "type .*, which is no name of a type"),
        ({"type": ["null", ["string"]]}, "type .*, which is no name of a type"),
        ({"type": "string", "format": []}, r"format \[\], which is no text"),
        ({"$id": 5, "$ref": "x.json"}, r"\$id 5, which is no text"),
        ({"$id": "http://[", "$ref": "x.json"}, r"refers to 'x.json': Invalid IPv6"),
    ],
)
def test_malformed_words_of_a_json_schema_are_told(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        json_schema.arrow_type(json.dumps({"type": "object", "properties": {"x": schema}} | schema))
    if "$id" in schema:
        with pytest.raises(SchemaError, match=told):
            json_schema.others(json.dumps(schema))


def test_a_json_schema_that_is_too_deep_is_told() -> None:
    deep = '{"items": ' * 100_000 + "{}" + "}" * 100_000
    for look in (json_schema.arrow_type, json_schema.others):
        with pytest.raises(SchemaError, match="the JSON Schema is nested too deeply"):
            look(deep)
