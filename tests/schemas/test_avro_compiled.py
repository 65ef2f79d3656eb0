"""The compiled reader of Avro and the one in Python: the same rows, and the same records are bad."""

from __future__ import annotations

import json
import os
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from kop.schemas.avro_compiled import CompiledReader, avro_reader, compiled_module
from kop.schemas.avro_program import program_of
from kop.schemas.avro_reading import AvroReader
from kop.schemas.avro_schema import parse
from kop.schemas.errors import UnresolvableError

NATIVE = compiled_module()
MUST = os.environ.get("KOP_REQUIRE_SCHEMAS") == "1"
built = pytest.mark.skipif(NATIVE is None and not MUST, reason="the compiled reader was not built: make schemas")

LOGICAL: dict[str, list[dict[str, Any]]] = {
    "int": [{"type": "int", "logicalType": "date"}],
    "long": [
        {"type": "long", "logicalType": name}
        for name in ("timestamp-millis", "timestamp-micros", "local-timestamp-millis")
    ],
    "bytes": [{"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2} for precision in (4, 38)],
    "string": [{"type": "string", "logicalType": "uuid"}],
}
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@st.composite
def pairs(draw: st.DrawFn, depth: int = 0, names: list[int] | None = None) -> tuple[Any, Any]:
    """A writer's schema and one of a reader that is like it."""
    names = [] if names is None else names
    kinds = ["primitive", "logical", "enum", "fixed", "null-union"]
    kinds += ["record", "record", "array", "map", "union"] if depth < 3 else []
    match draw(st.sampled_from(kinds)):
        case "primitive":
            kind = draw(st.sampled_from(PRIMITIVES))
            return kind, draw(st.sampled_from((kind, *PROMOTED.get(kind, ()))))
        case "logical":
            kind = draw(st.sampled_from([kind for kinds in LOGICAL.values() for kind in kinds]))
            return kind, draw(st.sampled_from([kind, kind, *LOGICAL[kind["type"]]]))
        case "enum":
            names.append(0)
            name = f"E{len(names)}"
            reader = draw(st.sampled_from([["A", "B", "C"], ["C", "A"], ["A"]]))
            default = {"default": "A"} if draw(st.booleans()) else {}
            return (
                {"type": "enum", "name": name, "symbols": ["A", "B", "C"]},
                {"type": "enum", "name": name, "symbols": reader} | default,
            )
        case "fixed":
            names.append(0)
            made: dict[str, Any] = {
                "type": "fixed",
                "name": f"F{len(names)}",
                "size": draw(st.sampled_from((0, 2, 17))),
            }
            if made["size"] and draw(st.booleans()):
                made |= {"logicalType": "decimal", "precision": 3, "scale": 1}
            return made, made
        case "array":
            writer, reader = draw(pairs(depth + 1, names))
            return {"type": "array", "items": writer}, {"type": "array", "items": reader}
        case "map":
            writer, reader = draw(pairs(depth + 1, names))
            return {"type": "map", "values": writer}, {"type": "map", "values": reader}
        case "null-union":
            kind = draw(st.sampled_from(PRIMITIVES[1:]))
            union = draw(st.permutations(["null", kind]))
            return draw(st.sampled_from([(union, union), (kind, union), (union, kind), (union, union[::-1])]))
        case "union":
            branches = draw(st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=4, unique=True))
            readers = draw(st.permutations(branches))
            return branches, draw(st.sampled_from([readers, branches, [*readers, "boolean"][: len(readers)]]))
    names.append(0)
    name = f"R{len(names)}"
    fields = [draw(pairs(depth + 1, names)) for _ in range(draw(st.integers(0, 4)))]
    written = [{"name": f"f{at}", "type": writer} for at, (writer, _) in enumerate(fields)]
    read = [{"name": f"f{at}", "type": reader} for at, (_, reader) in enumerate(fields)]
    read = draw(st.permutations(read))[: draw(st.integers(0, len(read)))] if draw(st.booleans()) else read
    more: list[tuple[Any, Any]] = [
        ("long", 5),
        ("string", "ä"),
        (["null", "int"], None),
        ("double", 1),
        ("boolean", True),
    ]
    for kind, default in more:
        if draw(st.integers(0, 5)) == 0:
            read = [*read, {"name": f"d{len(read)}", "type": kind, "default": default}]
    return {"type": "record", "name": name, "fields": written}, {"type": "record", "name": name, "fields": read}


@st.composite
def encoded(draw: st.DrawFn, schema: Any) -> bytes:
    """The bytes of a value, mostly right ones, put together by hand: other writers are not as strange."""
    odd = draw(st.integers(0, 60)) == 0
    if isinstance(schema, list):
        index = draw(st.integers(-1, len(schema))) if odd else draw(st.integers(0, len(schema) - 1))
        return number(index) + draw(encoded(schema[index % len(schema)]))
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([draw(st.integers(0, 3 if odd else 1))])
        case "int" | "long":
            bits = 31 if kind == "int" and not odd else 63
            wide = draw(st.sampled_from((6, 20, bits, bits)))
            made = number(draw(st.integers(-(2**wide), 2**wide - 1)))
            return made[:-1] + bytes([made[-1] | 128, 0]) if odd else made
        case "float":
            return draw(st.binary(min_size=4, max_size=4))
        case "double":
            return draw(st.binary(min_size=8, max_size=8))
        case "fixed":
            if schema.get("logicalType"):
                return draw(st.integers(-999, 1100)).to_bytes(schema["size"], signed=True)
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
        case "enum":
            return number(draw(st.integers(-1, 4)) if odd else draw(st.integers(0, 2)))
        case "bytes" if not isinstance(schema, str):
            value = draw(st.integers(-(10**5), 10**5)).to_bytes(draw(st.sampled_from((3, 16, 17, 20))), signed=True)
            return number(len(value)) + value
        case "string" | "bytes":
            value = draw(st.binary(max_size=4)) if odd or kind == "bytes" else draw(st.text(max_size=3)).encode()
            return number(len(value) + (draw(st.integers(-3, 3)) if odd else 0)) + value
        case "record":
            return b"".join(draw(encoded(field["type"])) for field in schema["fields"])
    made = b""
    for _ in range(draw(st.integers(0, 2))):
        items = [
            (draw(encoded("string")) if kind == "map" else b"")
            + draw(encoded(schema.get("items", schema.get("values"))))
            for _ in range(draw(st.integers(1, 3)))
        ]
        block = b"".join(items)
        count = len(items) + odd
        made += number(-count) + number(len(block) + odd) if draw(st.booleans()) else number(count)
        made += block
    return made + b"\0"


def number(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    made = bytearray()
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*made, rest])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, list[bytes]]:
    writer, reader = draw(pairs())
    records = []
    for _ in range(draw(st.integers(1, 6))):
        record = draw(encoded(writer))
        match draw(st.integers(0, 9)):
            case 0:
                record = record[: draw(st.integers(0, len(record)))]
            case 1:
                record += draw(st.binary(min_size=1, max_size=2))
            case 2 if record:
                at = draw(st.integers(0, len(record) - 1))
                record = record[:at] + draw(st.binary(min_size=1, max_size=1)) + record[at + 1 :]
        records.append(record)
    return json.dumps(writer), json.dumps(reader), records


def shown(values: pa.Array) -> str:
    """The rows as text: there a number that is none is equal to itself, 0 is not -0, and times may be of any year."""
    return values.to_string(window=1000, container_window=1000)


@built
@settings(max_examples=examples(1000), deadline=None)
@given(cases(), st.sampled_from((0, 3)))
def test_both_give_the_same_rows_and_the_same_bad_records(case: tuple[str, str, list[bytes]], start: int) -> None:
    writer, reader = parse(case[0]), parse(case[1])
    records = [bytes(start) + record for record in case[2]]
    try:
        readable = AvroReader(writer, reader)
    except UnresolvableError:
        assert program_of(writer, reader) is None
        return
    program = program_of(writer, reader)
    if program is None:
        return
    columns = NATIVE.AvroDecoder(program.columns, program.step)
    for _ in range(2):  # what a batch leaves behind must not be in the next
        expected, failures = readable.decode(records, start)
        bad, _ = columns.decode(records, start)
        assert bad == sorted(failures)
        made, told = CompiledReader(NATIVE, program, readable).decode(records, start)
        made.validate(full=True)
        assert made.type.equals(expected.type)
        assert shown(made) == shown(expected)
        assert told == failures


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
    ],
}


def written(value: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, ORDER, value)
    return out.getvalue()


def written_number(number: int) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


@built
def test_the_compiled_reader_is_the_one_that_is_used_and_tells_what_is_wrong() -> None:
    schema = parse(json.dumps(ORDER))
    reader = avro_reader(schema, schema)
    assert isinstance(reader, CompiledReader)
    value = {"id": 5, "item": "tea", "at": 1500, "tags": {"a": [1.5], "b": []}}
    good = written(value)
    twice = good[:-3] + good[-3:-1] + b""
    values, failures = reader.decode([good, good[:-1], good + b"x", good, twice], 0)
    assert [row and row["id"] for row in values.to_pylist()] == [5, None, None, 5, None]
    assert failures.keys() == {1, 2, 4}
    assert failures[2] == "there are 1 bytes behind it"
    assert reader.decode([], 0)[0].type.equals(values.type)
    assert reader.decode((good,), 0)[0].to_pylist()[0]["tags"] == [("a", [1.5]), ("b", [])]


@built
@pytest.mark.parametrize("kind", ["int", "long"])
def test_both_have_the_same_limits_of_milliseconds(kind: str) -> None:
    writer, reader = parse(f'"{kind}"'), parse('{"type": "long", "logicalType": "timestamp-millis"}')
    numbers = [sign * edge + step for edge in (2**31, 2**63 // 1000) for sign in (1, -1) for step in (-1, 0, 1)]
    records = [written_number(number) for number in numbers]
    expected, failures = AvroReader(writer, reader).decode(records)
    program = program_of(writer, reader)
    assert program is not None
    assert NATIVE.AvroDecoder(program.columns, program.step).decode(records, 0)[0] == sorted(failures)
    assert shown(avro_reader(writer, reader).decode(records)[0]) == shown(expected)
    assert len(failures) == {"int": 9, "long": 2}[kind]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": {"type": "array", "items": "int"}, "default": [1]}],
        },
    ],
)
def test_rare_schemas_are_left_to_the_reader_in_python(schema: dict[str, Any]) -> None:
    writer: dict[str, Any] = {"type": "record", "name": "R", "fields": []} if schema["name"] == "R" else schema
    assert program_of(parse(json.dumps(writer)), parse(json.dumps(schema))) is None


def test_a_schema_that_is_deeper_than_any_is_left_to_the_reader_in_python() -> None:
    text = "null"
    for _ in range(70):
        text = {"type": "array", "items": text}  # type: ignore[assignment]
    assert program_of(parse(json.dumps(text)), parse(json.dumps(text))) is None


class Refusing:
    """A compiled module that takes no number but the second."""

    class AvroDecoder:
        def __init__(self, columns: list[Any], step: Any) -> None:
            assert columns == [("int32",)]
            assert step == ("whole", 0, -(2**31), 2**31 - 1, 1)

        def decode(self, records: list[bytes], start: int) -> Any:
            taken = [row == 1 for row in range(len(records))]
            values = b"".join(b"\x09\0\0\0" if row else bytes(4) for row in taken)
            valid = bytes([sum(row << at for at, row in enumerate(taken))])
            return [row for row, is_taken in enumerate(taken) if not is_taken], [
                (len(records), taken.count(False), [valid, values])
            ]


@pytest.mark.parametrize(
    ("records", "rows", "bad"),
    [
        ((b"\x02", b"\x12", b"\x04", b""), [1, 9, 2, None], {3}),
        ((b"\x02",), [1], set()),
        ((b"", b"\x12", b"\xff", b""), [None, 9, None, None], {0, 2, 3}),
    ],
)
def test_what_the_compiled_reader_does_not_take_is_read_again(
    records: tuple[bytes, ...], rows: list[int | None], bad: set[int]
) -> None:
    schema = parse('"int"')
    program = program_of(schema, schema)
    assert program is not None
    values, failures = CompiledReader(Refusing, program, AvroReader(schema, schema)).decode(records)
    assert values.to_pylist() == rows
    assert failures.keys() == bad
