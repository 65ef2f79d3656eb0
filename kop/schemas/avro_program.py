"""The program of the compiled reader of Avro for a pair of schemas: its columns, and the steps that fill them.

Owns: which pairs of schemas the compiled reader takes, and their steps.
Must not know: bytes of records, the compiled module.

The rules of resolution are those of `kop.schemas.avro_reading`, which reads every pair of schemas that can be resolved;
here a pair that is rare (a default that is a list, a skipped decimal, a record that holds itself) has no program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from kop.schemas.avro_reading import (
    best_members,
    default_of,
    enum_symbols,
    field_sources,
    has_no_bytes,
    matches,
    whole_limits,
)
from kop.schemas.avro_schema import AvroType, arrow_type
from kop.schemas.errors import UnresolvableError

Step = tuple[Any, ...]
DEEPEST: Final = 64
"""The levels of nesting of a schema up to which the compiled reader takes it."""


class _NoProgramError(Exception):
    """An error for a pair of schemas that is left to the reader in Python."""


@dataclass(frozen=True)
class Program:
    """The steps of a pair of schemas."""

    kind: pa.DataType
    """The type of the column."""
    columns: list[tuple[Any, ...]]
    """The columns, nested ones among them, each with its kind and the numbers of its parts; the first is the whole."""
    step: Step


def program_of(writer: AvroType, reader: AvroType) -> Program | None:
    """Return the program, the steps for the compiled reader, of a pair of schemas. None if the compiled reader cannot
    do it, or if the pair cannot be resolved.
    """
    kind = arrow_type(reader)
    try:
        making = _Making()
        making.column(kind, 0)
        return Program(kind, making.columns, making.step(writer, reader, 0, 0))
    except (_NoProgramError, UnresolvableError):
        return None


class _Making:
    def __init__(self) -> None:
        self.columns: list[tuple[Any, ...]] = []

    # -- columns

    def column(self, kind: pa.DataType, depth: int) -> int:
        """Add the column of a type, and those of its parts behind it, to `columns`, and return its index there, which
        is its number. `depth` counts the levels of nesting above it; _NoProgramError if there are more than the
        compiled reader takes (64).
        """
        if depth > DEEPEST:
            raise _NoProgramError
        at = len(self.columns)
        self.columns.append(())
        if types.is_struct(kind):
            made: tuple[Any, ...] = ("struct", [self.column(field.type, depth + 1) for field in kind])
        elif types.is_map(kind):
            made = ("map", self.column(kind.key_type, depth + 1), self.column(kind.item_type, depth + 1))
        elif types.is_list(kind):
            made = ("list", self.column(kind.value_type, depth + 1))
        else:
            made = (_leaf(kind),)
        self.columns[at] = made
        return at

    def _part(self, column: int, at: int) -> int:
        """Return the number of a column's part: the field `at` of a struct, the item of a list (0), the key (0) or the
        item (1) of a map.
        """
        described = self.columns[column]
        number: int = described[1][at] if described[0] == "struct" else described[1 + at]
        return number

    # -- steps

    def step(self, writer: AvroType, reader: AvroType, into: int, depth: int) -> Step:
        """Return the step that reads values of the writer's schema into the column number `into`. UnresolvableError if
        the reader's schema has no place for any such value; _NoProgramError if the compiled reader does not take the
        pair, or `depth`, the levels of nesting above it, is over 64.
        """
        if depth > DEEPEST:
            raise _NoProgramError
        if writer.kind == "union":
            return ("union", [self._branch(branch, reader, into, depth) for branch in writer.branches])
        if reader.kind == "union":
            return self._into_union(writer, reader, into, depth)
        if not matches(writer, reader):
            raise UnresolvableError("")
        match writer.kind:
            case "record":
                return self._record(writer, reader, into, depth)
            case "array":
                item = self.step(writer.item, reader.item, self._part(into, 0), depth + 1)
                return ("array", into, item, has_no_bytes(writer.item))
            case "map":
                item = self.step(writer.item, reader.item, self._part(into, 1), depth + 1)
                return ("map", into, self._part(into, 0), item)
        return self._value(writer, reader, into)

    def _branch(self, branch: AvroType, reader: AvroType, into: int, depth: int) -> Step:
        try:
            return self.step(branch, reader, into, depth + 1)
        except UnresolvableError:
            return ("refuse",)

    def _into_union(self, writer: AvroType, reader: AvroType, into: int, depth: int) -> Step:
        if writer.kind == "null" and reader.takes_null:
            return ("null", into)
        members = reader.members
        for at in best_members(writer, reader):
            try:
                if len(members) == 1:
                    return self.step(writer, members[at], into, depth + 1)
                inner = self.step(writer, members[at], self._part(into, at), depth + 1)
            except UnresolvableError:
                continue
            return ("member", into, at, list(self.columns[into][1]), inner)
        raise UnresolvableError("")

    def _record(self, writer: AvroType, reader: AvroType, into: int, depth: int) -> Step:
        wanted, missing = field_sources(writer, reader, "")
        steps = []
        for field in writer.fields:
            if field.name in wanted:
                at = wanted[field.name]
                steps.append(self.step(field.kind, reader.fields[at].kind, self._part(into, at), depth + 1))
            else:
                steps.append(_skip(field.kind, depth + 1))
        defaults = [_default(self._part(into, at), default_of(reader.fields[at], "")) for at in missing]
        return ("record", into, steps, defaults)

    def _value(self, writer: AvroType, reader: AvroType, into: int) -> Step:
        match writer.kind:
            case "null":
                return ("null", into)
            case "boolean":
                return ("bool", into)
            case "int" | "long":
                return ("whole", into, *whole_limits(writer, reader))
            case "float" | "double":
                return (writer.kind, into)
            case "enum":
                symbols = enum_symbols(writer, reader, "")
                return ("enum", into, [None if symbol is None else symbol.encode() for symbol in symbols])
        size = (writer.size,) if writer.kind == "fixed" else ()
        if reader.logical == "decimal":
            if writer.logical == "decimal" and writer.scale != reader.scale:
                raise UnresolvableError("")
            return ("decimal_fixed" if size else "decimal_span", into, *size, reader.precision)
        if reader.logical == "uuid" and reader.kind == "fixed":
            raise _NoProgramError
        return ("fixed", into, *size) if size else ("span", into, reader.kind == "string")


def _leaf(kind: pa.DataType) -> str:
    if types.is_decimal(kind):
        return "decimal"
    if types.is_string(kind) or types.is_binary(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "int64"
    if types.is_date32(kind):
        return "int32"
    return {
        pa.bool_(): "bool",
        pa.int32(): "int32",
        pa.int64(): "int64",
        pa.float32(): "float32",
        pa.float64(): "float64",
    }[kind]


def _default(column: int, value: Any) -> Step:
    if value is None:
        return ("null", column, None)
    for kind, name in ((bool, "bool"), (int, "whole"), (float, "float"), (bytes, "bytes")):
        if isinstance(value, kind):
            return (name, column, value)
    if isinstance(value, str):
        return ("bytes", column, value.encode())
    raise _NoProgramError


def _skip(schema: AvroType, depth: int) -> Step:
    """Return the step that skips a value of the schema. _NoProgramError if the compiled reader cannot skip it: a
    decimal, or deep nesting (more than 64 levels).
    """
    if depth > DEEPEST:
        raise _NoProgramError
    match schema.kind:
        case "null":
            return ("skip_nothing",)
        case "boolean":
            return ("skip_bool",)
        case "int" | "long":
            return ("skip_whole", *whole_limits(schema, schema)[:2])
        case "float":
            return ("skip_fixed", 4)
        case "double":
            return ("skip_fixed", 8)
        case "enum":
            return ("skip_enum", len(schema.symbols))
        case "string" | "bytes" if schema.logical != "decimal":
            return ("skip_span",)
        case "fixed" if schema.logical != "decimal":
            return ("skip_fixed", schema.size)
        case "record":
            return ("skip_record", [_skip(field.kind, depth + 1) for field in schema.fields])
        case "union":
            return ("union", [_skip(branch, depth + 1) for branch in schema.branches])
        case "array" | "map":
            keys = schema.kind == "map"
            return ("skip_blocks", _skip(schema.item, depth + 1), keys, not keys and has_no_bytes(schema.item))
    raise _NoProgramError
