"""The schemas that parts of a mesh write, as far as its file gives them, and how two of them differ.

Owns: one form for columns in Spark's words, Avro's JSON, JSON Schemas and Protobuf's descriptors, so that what is
written otherwise and means the same is the same.
Must not know: registries, how values are encoded.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kop.mesh.spec import FunctionPart, Mesh, Outline, Part, SinkPart, SourcePart

_TYPED: Final = ("json", "avro", "protobuf")
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)*)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_SYNONYMS: Final = {
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "SHORT": "SMALLINT",
    "BYTE": "TINYINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
"""The types that Spark has several names for."""
_TEXTS: Final = ("STRING", "BINARY")
_AVRO_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_AVRO_MEANS: Final = ("logicalType", "precision", "scale", "size", "symbols")
_JSON_SAYS: Final = {
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "examples",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
}
"""The names in a JSON Schema that say nothing of values."""
_JSON_NAMED: Final = {
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "dependentRequired",
}
"""The names in a JSON Schema of schemas that have names of their own."""
_JSON_VALUES: Final = {"const", "enum"}
"""The names in a JSON Schema of what is no schema."""
_JSON_SETS: Final = {"required", "enum", "type", "allOf", "anyOf", "oneOf"}
"""The names in a JSON Schema of lists whose order means nothing."""


@dataclass(frozen=True)
class WrittenSchema:
    """The format of the values that a part writes, and their schema if the file gives it."""

    format: str
    """A word, or the class that makes the bytes."""
    type_name: str = ""
    """The class of the values, if it is named."""
    language: str = ""
    """The language of the schema; schemas in different ones are not compared. Empty if no schema is given."""
    fields: tuple[tuple[str, str], ...] = ()
    """The names and types of the fields of a record, in their order if the encoding depends on it."""
    whole: str = ""
    """The schema in a form that is the same for schemas that mean the same."""


class _NoSchemaError(Exception):
    """A text is no schema in the language that is expected; whoever runs the mesh says so."""


def written_schema(part: Part | Outline, mesh: Mesh) -> WrittenSchema | None:
    """Return the format and the schema of the values that a part writes; None if the file does not even give the
    format, and for sinks and parts with mistakes. A schema that cannot be read is left out. `@FILE` is read as a file.
    """
    if isinstance(part, Outline | SinkPart):
        return None
    if isinstance(part, FunctionPart):
        spec = part.spec
        if spec.output_serde_class_name:
            return WrittenSchema(f"what {spec.output_serde_class_name} writes")
        if not spec.output_schema_type:
            return None
        return WrittenSchema(spec.output_schema_type.lower(), spec.output_type_class_name)
    options = {name.lower(): value for name, value in {**mesh.kop_options, **part.kop_options}.items()}
    own = {name.lower() for name in part.kop_options}
    written = options.get("valueformat", "") if "valueformat" in own else part.value_format
    written = (written or options.get("valueformat", "")).lower()
    columns = part.schema if isinstance(part, SourcePart) else ""
    try:
        if written in _TYPED and (text := options.get("valueschema", "")):
            return _given(written, _read(text, written), options.get("valuemessage", ""))
        if columns and written in {"", *_TYPED}:
            return _of_rows(written, columns)
    except _NoSchemaError:
        pass
    return WrittenSchema(written) if written else None


def difference(own: WrittenSchema, other: WrittenSchema) -> tuple[str, str] | None:
    """Return the first difference of two schemas, in words for `own` and for `other`; None if none is known, as between
    schemas in different languages.
    """
    if own.format != other.format:
        return _named(own), _named(other)
    if own.type_name != other.type_name and own.type_name and other.type_name:
        return _named(own), _named(other)
    if not own.language or own.language != other.language or own.whole == other.whole:
        return None
    mine, theirs = dict(own.fields), dict(other.fields)
    for name in (*theirs, *mine):
        if mine.get(name) != theirs.get(name):
            return _field(own, name, mine), _field(other, name, theirs)
    names = tuple(mine), tuple(theirs)
    if names[0] != names[1]:
        return f"{own.format} of {', '.join(names[0])}", f"{other.format} of {', '.join(names[1])}"
    return f"{own.format} of another schema", f"{other.format}"


def _named(schema: WrittenSchema) -> str:
    return f"{schema.format} of {schema.type_name}" if schema.type_name else schema.format


def _field(schema: WrittenSchema, name: str, fields: Mapping[str, str]) -> str:
    return f"{schema.format} with {name} {fields[name]}" if name in fields else f"{schema.format} without {name}"


def _read(text: str, written: str) -> str:
    """Return a schema as text, for `@FILE` the content of that file; that of Protobuf in base64. _NoSchemaError if the
    file cannot be read.
    """
    if not text.startswith("@"):
        return text
    try:
        content = Path(text[1:]).expanduser().read_bytes()
        return base64.b64encode(content).decode() if written == "protobuf" else content.decode()
    except (OSError, UnicodeDecodeError):
        raise _NoSchemaError from None


def _given(written: str, text: str, message: str) -> WrittenSchema:
    if written == "protobuf":
        return _of_protobuf(text, message)
    if written == "json" and not text.lstrip().startswith("{"):
        return _of_columns(written, _columns(text))
    try:
        schema = json.loads(text)
    except ValueError:
        raise _NoSchemaError from None
    if written == "json":
        return _of_json_schema(schema)
    made = _avro(schema, "")
    fields = made.get("fields", ()) if isinstance(made, dict) else ()
    return WrittenSchema(
        "avro", "", "Avro", tuple((name, _avro_words(inner)) for name, inner in fields), _canonical(made)
    )


# -- columns in Spark's words


def _of_columns(written: str, columns: Mapping[str, str]) -> WrittenSchema:
    return WrittenSchema(written, "", "Spark", tuple(columns.items()), _canonical(dict(columns)))


def _of_rows(written: str, text: str) -> WrittenSchema | None:
    """Return the schema of values that are made of rows with these columns in Spark's DDL: of the column `value`, or
    else of all but `key`. Without a format (`written`) it is JSON, or None if `value` is text or bytes. _NoSchemaError
    if the text is not understood.
    """
    columns = _columns(text)
    by_lower = {name.lower(): name for name in columns}
    value = columns[by_lower["value"]] if "value" in by_lower else ""
    if not value:
        rest = {name: kind for name, kind in columns.items() if name.lower() != "key"}
        return _of_columns(written or "json", rest)
    if value.startswith("STRUCT<"):
        return _of_columns(written or "json", _columns(value.removeprefix("STRUCT<").removesuffix(">")))
    return None if not written and value in _TEXTS else WrittenSchema(written or "json")


def _columns(text: str) -> dict[str, str]:
    """Return the types of columns in Spark's DDL by their names, equal types always in the same words. _NoSchemaError
    if the text is not understood.
    """
    tokens = list(_tokens(text))
    columns, end = _fields_at(tokens, 0)
    if end != len(tokens) or not columns:
        raise _NoSchemaError
    return columns


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a text in Spark's words: the kind (`name`, `text`, `word`, `mark`), and the token.
    _NoSchemaError at a character that begins none.
    """
    at, text = 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _NoSchemaError
        quoted, said, word, mark = match.groups()
        if quoted is not None:
            yield "name", quoted.replace("``", "`")
        else:
            yield ("text", said) if said else ("word", word) if word else ("mark", mark)
        at = match.end()


def _fields_at(tokens: list[tuple[str, str]], at: int) -> tuple[dict[str, str], int]:
    """Return the names and types of the fields that begin at a token, and the index of the token behind them. NOT NULL
    and comments are left out. _NoSchemaError if the tokens are not understood.
    """
    fields: dict[str, str] = {}
    while True:
        kind, name = _token(tokens, at)
        if kind not in {"name", "word"}:
            raise _NoSchemaError
        at += 1 + (_token(tokens, at + 1) == ("mark", ":"))
        fields[name], at = _type_at(tokens, at)
        while (following := _token(tokens, at))[0] == "word":
            if following[1].upper() not in {"NOT", "COMMENT"}:
                raise _NoSchemaError
            at += 2
        if following != ("mark", ","):
            return fields, at
        at += 1


def _token(tokens: list[tuple[str, str]], at: int) -> tuple[str, str]:
    return tokens[at] if at < len(tokens) else ("end", "")


def _type_at(tokens: list[tuple[str, str]], at: int) -> tuple[str, int]:
    kind, word = _token(tokens, at)
    if kind != "word":
        raise _NoSchemaError
    name = _SYNONYMS.get(word.upper(), word.upper())
    at += 1
    mark = _token(tokens, at)
    if mark == ("mark", "(") and name != "STRUCT":
        end = next((i for i in range(at, len(tokens)) if tokens[i] == ("mark", ")")), None)
        if end is None:
            raise _NoSchemaError
        return name + "".join(token for _, token in tokens[at : end + 1]), end + 1
    if mark != ("mark", "<"):
        return ("DECIMAL(10,0)" if name == "DECIMAL" else name), at
    inner: list[str] = []
    if name == "STRUCT":
        fields, at = _fields_at(tokens, at + 1)
        inner = [f"{field}: {told}" for field, told in fields.items()]
    else:
        while _token(tokens, at) in {("mark", "<"), ("mark", ",")}:
            told, at = _type_at(tokens, at + 1)
            inner.append(told)
    if _token(tokens, at) != ("mark", ">"):
        raise _NoSchemaError
    return f"{name}<{', '.join(inner)}>", at + 1


# -- JSON


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _of_json_schema(schema: Any) -> WrittenSchema:
    bare = _without_words(schema)
    given = bare.get("properties") if isinstance(bare, dict) else None
    fields = given if isinstance(given, dict) else {}
    shown = tuple((name, _json_words(inner)) for name, inner in sorted(fields.items()))
    return WrittenSchema("json", "", "JSON Schema", shown, _canonical(bare))


def _without_words(schema: Any) -> Any:
    """Return a JSON Schema, or a list of some, without what is for people alone, and with lists in one order if their
    order means nothing.
    """
    if isinstance(schema, list):
        return [_without_words(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, Any] = {}
    for name, given in schema.items():
        if name in _JSON_SAYS:
            continue
        if name in _JSON_NAMED and isinstance(given, dict):
            bare[name] = {inner: _without_words(member) for inner, member in given.items()}
        else:
            bare[name] = given if name in _JSON_VALUES else _without_words(given)
        if name in _JSON_SETS and isinstance(given, list):
            bare[name] = sorted(bare[name], key=_canonical)
    return bare


def _json_words(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) and schema.keys() <= {"type"} else None
    return kind if isinstance(kind, str) else _canonical(schema)


def _avro(schema: Any, space: str) -> Any:
    """Return a schema of Avro with full names, and without what does not change the meaning of a record's bytes. The
    fields of a record are pairs of name and type. `space` is the namespace around the schema. _NoSchemaError if it is
    no schema.
    """
    if isinstance(schema, str):
        return schema if schema in _AVRO_PRIMITIVES or "." in schema or not space else f"{space}.{schema}"
    if isinstance(schema, list):
        return [_avro(member, space) for member in schema]
    if not isinstance(schema, dict) or "type" not in schema:
        raise _NoSchemaError
    kind = schema["type"]
    if not isinstance(kind, str):
        return _avro(kind, space)
    means = {name: schema[name] for name in _AVRO_MEANS if name in schema}
    if kind in {"record", "error", "enum", "fixed"}:
        name = str(schema.get("name", ""))
        inner = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space))
        named = {"type": kind, "name": name if "." in name or not inner else f"{inner}.{name}", **means}
        if kind not in {"record", "error"}:
            return named
        try:
            fields = [(str(field["name"]), _avro(field["type"], inner)) for field in schema["fields"]]
        except (KeyError, TypeError):
            raise _NoSchemaError from None
        return {**named, "fields": fields}
    if kind in {"array", "map"}:
        item = "items" if kind == "array" else "values"
        return {"type": kind, item: _avro(schema.get(item), space)}
    name = _avro(kind, space)
    return {"type": name, **means} if means else name


def _avro_words(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return " or ".join(map(_avro_words, schema))
    if schema["type"] in {"array", "map"}:
        return f"{schema['type']} of {_avro_words(schema.get('items', schema.get('values')))}"
    if "name" in schema:
        return f"{schema['type']} {schema['name']}"
    precision = f"({schema['precision']},{schema.get('scale', 0)})" if "precision" in schema else ""
    return f"{schema['type']} as {schema.get('logicalType', 'it is')}{precision}"


# -- Protobuf


def _of_protobuf(text: str, message: str) -> WrittenSchema:
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 (a file without Protobuf does not need it)
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text, validate=True)).file)
    except (ValueError, DecodeError):
        raise _NoSchemaError from None
    types: dict[str, Any] = {}
    for file in files:
        left: list[tuple[str, Any]] = [
            (f".{file.package}" if file.package else "", made) for made in (*file.message_type, *file.enum_type)
        ]
        while left:
            outer, made = left.pop()
            name = f"{outer}.{made.name}"
            types[name] = made
            if isinstance(made, descriptor_pb2.DescriptorProto):
                left += [(name, inner) for inner in (*made.nested_type, *made.enum_type)]
    if not files or not (message or files[-1].message_type):
        raise _NoSchemaError
    last = files[-1]
    start = f".{message}" if message else f"{f'.{last.package}' if last.package else ''}.{last.message_type[0].name}"
    if start not in types:
        raise _NoSchemaError
    reached: dict[str, Any] = {}
    names = [start]
    while names:
        name = names.pop()
        if name in reached or name not in types:
            continue
        made = types[name]
        if isinstance(made, descriptor_pb2.DescriptorProto):
            reached[name] = sorted((field.number, field.name, _proto_words(field)) for field in made.field)
            names += [field.type_name for field in made.field if field.type_name]
        else:
            reached[name] = sorted((value.number, value.name) for value in made.value)
    fields = tuple((name, f"{told} = {number}") for number, name, told in reached[start])
    return WrittenSchema("protobuf", "", "Protobuf", fields, _canonical([start, reached]))


def _proto_words(field: Any) -> str:
    """Return the type of a field of Protobuf as its author writes it."""
    name = field.type_name.removeprefix(".") or field.Type.Name(field.type).removeprefix("TYPE_").lower()
    label = "repeated " if field.label == field.LABEL_REPEATED else "optional " if field.proto3_optional else ""
    return f"{label}{name}"
