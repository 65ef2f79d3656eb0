"""Avro's schemas as objects, and the types of columns that they mean.

Owns: the JSON of a schema, its names and namespaces, logical types, what Spark's type of each is.
Must not know: bytes of records, registries, pyspark.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kop.schemas.errors import SchemaError

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
UTC: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")
LOGICAL: Final = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
}
"""The logical types that are columns of their own, and the types that they may stand on; all others are ignored, as
Avro says: a time of day is its number.
"""
MAX_PRECISION: Final = 38
_DEEPEST: Final = 100
"""The levels that the type of a column may have; Arrow's messages take 64."""
_NO_DEFAULT: Final = object()


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    kind: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = _NO_DEFAULT
    """The default as JSON has it."""

    @property
    def has_default(self) -> bool:
        """True if the field has a default."""
        return self.default is not _NO_DEFAULT


@dataclass(slots=True, eq=False)
class AvroType:
    """A schema: what `kind` says, with the members that such a kind has."""

    kind: str
    name: str = ""
    """The full name of a record, an enum or a fixed."""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """The symbol of an enum that stands for unknown ones."""
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    items: AvroType | None = None
    """The schema of an array's items, or of a map's values."""
    branches: tuple[AvroType, ...] = ()

    def __str__(self) -> str:
        return self.name or (" or ".join(map(str, self.branches)) if self.branches else self.logical or self.kind)

    @property
    def item(self) -> AvroType:
        """The schema of an array's items, or of a map's values."""
        assert self.items is not None
        return self.items

    @property
    def members(self) -> tuple[AvroType, ...]:
        """The branches of a union, without null."""
        return tuple(branch for branch in self.branches if branch.kind != "null")

    @property
    def takes_null(self) -> bool:
        """True for null, and for a union with it."""
        return self.kind == "null" or any(branch.kind == "null" for branch in self.branches)


def parse(text: str, references: Iterable[str] = ()) -> AvroType:
    """Return a schema from its JSON; `references` are the schemas whose names it uses, each behind those that it needs
    itself. SchemaError if the JSON is no valid schema.
    """
    names: dict[str, AvroType] = {}
    try:
        for reference in references:
            _Parser(names).parse(_json(reference), "")
        return _Parser(names).parse(_json(text), "")
    except RecursionError:
        raise SchemaError("the Avro schema is nested too deeply") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise SchemaError(f"the Avro schema is no JSON: {error}") from None


class _Parser:
    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names

    def parse(self, schema: Any, space: str) -> AvroType:
        if isinstance(schema, str):
            return self._named(schema, space)
        if isinstance(schema, list):
            return self._union(schema, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError(f"the Avro schema has {schema!r} where a type has to be")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.parse(kind, space)
        match kind:
            case "record" | "error":
                return self._record(schema, space)
            case "enum":
                made = AvroType("enum", symbols=self._symbols(schema), default=schema.get("default"))
                self._declare(made, schema, space)
                if made.default is not None and made.default not in made.symbols:
                    raise SchemaError(f"the default {made.default!r} of the enum {made} is none of its symbols")
            case "fixed":
                size = schema.get("size")
                if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                    raise SchemaError(f"the fixed {schema.get('name')} has the size {size!r}")
                made = AvroType("fixed", size=size)
                self._declare(made, schema, space)
                _logical(made, schema)
            case "array" | "map":
                inner = "items" if kind == "array" else "values"
                if inner not in schema:
                    raise SchemaError(f"the Avro schema has {kind}s without {inner}")
                made = AvroType(kind, items=self.parse(schema[inner], space))
            case _ if kind in PRIMITIVES:
                made = AvroType(kind)
                _logical(made, schema)
            case _:
                made = self._named(kind, space)
        return made

    def _named(self, name: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        for full in (name,) if "." in name else (f"{space}.{name}" if space else name, name):
            if full in self._names:
                return self._names[full]
        raise SchemaError(f"the Avro schema names the type {name}, which it does not define and no reference brings")

    def _union(self, branches: list[Any], space: str) -> AvroType:
        made = AvroType("union", branches=tuple(self.parse(branch, space) for branch in branches))
        names = [branch.name or branch.kind for branch in made.branches]
        if not names or "union" in names or len(set(names)) < len(names):
            raise SchemaError(f"an Avro union has the branches {', '.join(names) or 'none'}: each may be there once")
        return made

    def _record(self, schema: dict[str, Any], space: str) -> AvroType:
        made = AvroType("record")
        inner = self._declare(made, schema, space)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"the record {made} has no list of fields")
        for declared in fields:
            if not isinstance(declared, dict) or "type" not in declared or not isinstance(declared.get("name"), str):
                raise SchemaError(f"the record {made} has the field {declared!r}, without a name or a type")
            kind = self.parse(declared["type"], inner)
            if kind.kind in PRIMITIVES and not kind.logical and "logicalType" in declared:
                _logical(kind := AvroType(kind.kind), declared)  # some write it beside the type, not into it
            made.fields.append(
                AvroField(
                    declared["name"],
                    kind,
                    _aliases(declared, f"the field {declared['name']}"),
                    declared.get("default", _NO_DEFAULT),
                )
            )
        names = [member.name.lower() for member in made.fields]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"the record {made} has two fields {twice}, which Spark takes for the same column")
        return made

    def _declare(self, made: AvroType, schema: dict[str, Any], space: str) -> str:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise SchemaError(f"the Avro schema has {made.kind}s without a name")
        inner = schema.get("namespace")
        if inner is None:
            inner = space
        elif not isinstance(inner, str):
            raise SchemaError(f"the {made.kind} {name} has the namespace {inner!r}, which is no text")
        if "." in name:
            inner = name.rpartition(".")[0]
        made.name = name if "." in name or not inner else f"{inner}.{name}"
        made.aliases = _aliases(schema, f"the {made.kind} {name}")
        if made.name in self._names:
            raise SchemaError(f"the Avro schema defines {made.name} twice")
        self._names[made.name] = made
        return inner

    @staticmethod
    def _symbols(schema: dict[str, Any]) -> tuple[str, ...]:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise SchemaError(f"the enum {schema.get('name')} has no list of symbols")
        return tuple(symbols)


def _aliases(schema: dict[str, Any], what: str) -> tuple[str, ...]:
    aliases = schema.get("aliases") or ()
    if not isinstance(aliases, (list, tuple)) or not all(isinstance(alias, str) for alias in aliases):
        raise SchemaError(f"{what} has the aliases {aliases!r}, which are no list of names")
    return tuple(aliases)


def _logical(made: AvroType, schema: dict[str, Any]) -> None:
    """Set in `made` the logical type that the JSON `schema` names, if it is well-formed and allowed for the type that
    it stands on; else leave `made` as it is.
    """
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or made.kind not in LOGICAL.get(logical, ()):
        return
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
            return
        if not 1 <= precision <= MAX_PRECISION:
            return
        made.precision, made.scale = precision, scale
    if logical == "uuid" and made.kind == "fixed" and made.size != 16:
        return
    made.logical = logical


def arrow_type(schema: AvroType, *, logical: bool = True) -> pa.DataType:
    """Return the type of a column of values of a schema, all nullable. SchemaError if a record contains itself, or
    if it is nested more than 100 levels deep.

    Null is a text that is always null. A union of more than one type besides null is a struct of `member0`, `member1`
    and so on, in the order of its branches. Without `logical`, values of logical types are the numbers that encode
    them.
    """
    return _arrow_type(schema, (), logical, 0)


def _arrow_type(schema: AvroType, within: tuple[str, ...], logical: bool, depth: int) -> pa.DataType:
    if depth > _DEEPEST:
        raise SchemaError(f"the Avro schema is nested too deeply, more than {_DEEPEST} levels")
    below = functools.partial(_arrow_type, logical=logical, depth=depth + 1)
    if schema.kind == "union":
        members = schema.members
        if not members:
            return pa.string()
        if len(members) == 1:
            return _arrow_type(members[0], within, logical, depth)
        return pa.struct([(f"member{at}", below(member, within)) for at, member in enumerate(members)])
    if schema.kind == "record":
        if schema.name in within:
            raise SchemaError(f"the record {schema.name} holds itself, which the type of a column cannot")
        inner = (*within, schema.name)
        return pa.struct([(member.name, below(member.kind, inner)) for member in schema.fields])
    if schema.kind == "array":
        return pa.list_(pa.field("element", below(schema.item, within)))
    if schema.kind == "map":
        return pa.map_(pa.string(), below(schema.item, within))
    if logical and schema.logical:
        if schema.logical == "decimal":
            return pa.decimal128(schema.precision, schema.scale)
        return {"date": pa.date32(), "uuid": pa.string()}.get(
            schema.logical, LOCAL if schema.logical.startswith("local-") else UTC
        )
    return {
        "null": pa.string(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
        "string": pa.string(),
        "enum": pa.string(),
    }[schema.kind]
