"""The type of a column that a JSON Schema means.

Owns: which of the words of JSON Schema say something of a type.
Must not know: JSON texts, registries.

Objects with properties are structs, those without are maps if `additionalProperties` says of what; whatever a type of
a column cannot say (several types, no type) is a text, with the JSON of the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin

import pyarrow as pa

from kop.schemas.avro_schema import UTC
from kop.schemas.errors import SchemaError

_PLAIN: Final = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "null": pa.string()}
_FORMATS: Final = {"date-time": UTC, "date": pa.date32()}


def arrow_type(text: str, references: Mapping[str, str] | None = None) -> pa.DataType:
    """Return the type of the column that a JSON Schema means, all of it nullable; what is no type of a column is a
    text. `references` are other schemas by the names that `$ref` has. SchemaError if the schema is malformed, contains
    itself, refers to what is not there, or has two properties that differ in the case of letters alone.
    """
    documents = {name: _loaded(other) for name, other in (references or {}).items()}
    root = _loaded(text)
    try:
        return _Types(documents).of(root, root, ())
    except RecursionError:
        raise _too_deep() from None


def others(text: str) -> list[str]:
    """Return the names of the other schemas that a JSON Schema refers to, each as often as it does; those that lead
    back to itself are left out. SchemaError if it is no JSON, or its `$id` no text.
    """
    root = _loaded(text)
    names = []

    def look(at: Any) -> None:
        if isinstance(at, dict) and isinstance(at.get("$ref"), str):
            document = at["$ref"].partition("#")[0]
            if document:
                own, full = _addresses(root, document)
                if full != own:
                    names.append(document)
        for inner in at.values() if isinstance(at, dict) else at if isinstance(at, list) else ():
            look(inner)

    try:
        look(root)
    except RecursionError:
        raise _too_deep() from None
    return names


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaError(f"the JSON Schema is no JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> SchemaError:
    return SchemaError("the JSON Schema is nested too deeply")


def _addresses(root: Any, document: str) -> tuple[str, str]:
    """Return the address of a schema, empty if it has none, and that of a document that it refers to. SchemaError if
    one of them is malformed.
    """
    own = root.get("$id", "") if isinstance(root, dict) else ""
    if not isinstance(own, str):
        raise SchemaError(f"the JSON Schema has the $id {own!r}, which is no text")
    try:
        return own, urljoin(own, document)
    except ValueError as error:
        raise SchemaError(f"the JSON Schema {own!r} refers to {document!r}: {error}") from None


def _choices(schema: Mapping[str, Any], word: str) -> list[Any]:
    choices = schema.get(word) or []
    if not isinstance(choices, list):
        raise SchemaError(f"the JSON Schema has the {word} {choices!r}, which is no list")
    return choices


def _says_no_type(choice: Any) -> bool:
    """Return true for one of several choices that says no more than which of the properties beside it are required."""
    return isinstance(choice, dict) and bool(choice) and choice.keys() <= {"required", "title", "description"}


class _Types:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def of(self, schema: Any, root: Any, within: tuple[str, ...]) -> pa.DataType:
        if not isinstance(schema, dict):
            return pa.string()
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"], root, within)
        choices = [
            choice
            for word in ("oneOf", "anyOf")
            for choice in _choices(schema, word)
            if not (isinstance(choice, dict) and choice.get("type") == "null")
            and not ("properties" in schema and _says_no_type(choice))
        ]
        if choices:
            return self.of(choices[0], root, within) if len(choices) == 1 else pa.string()
        kinds = schema.get("type")
        named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        kind = named[0] if len(named) == 1 else None
        if kind is not None and not isinstance(kind, str):
            raise SchemaError(f"the JSON Schema has the type {kind!r}, which is no name of a type")
        if kind is None and kinds is None and "properties" in schema:
            kind = "object"
        if kind == "object":
            return self._object(schema, root, within)
        if kind == "array":
            items = schema.get("items")
            inner = self.of(items, root, within) if isinstance(items, dict) else pa.string()
            return pa.list_(pa.field("element", inner))
        if kind == "string":
            form = schema.get("format", "")
            if not isinstance(form, str):
                raise SchemaError(f"the JSON Schema has the format {form!r}, which is no text")
            return _FORMATS.get(form, pa.string())
        return _PLAIN.get(kind or "", pa.string())

    def _object(self, schema: Mapping[str, Any], root: Any, within: tuple[str, ...]) -> pa.DataType:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            names = [name.lower() for name in properties]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise SchemaError(f"the JSON Schema has two properties {twice}, which Spark takes for the same column")
            return pa.struct([(name, self.of(inner, root, within)) for name, inner in properties.items()])
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            return pa.map_(pa.string(), self.of(more, root, within))
        return pa.string()

    def _referred(self, name: str, root: Any, within: tuple[str, ...]) -> pa.DataType:
        document, _, pointer = name.partition("#")
        own, full = _addresses(root, document)
        if document and (full != own or document in self._documents):
            known = next((at for at in (document, full) if at in self._documents), None)
            if known is None:
                raise SchemaError(f"the JSON Schema refers to {document}, which is none of its references")
            root = self._documents[known]
        key = f"{id(root)}#{pointer}"
        if key in within:
            raise SchemaError(f"the JSON Schema's {name} holds itself, which the type of a column cannot")
        target = root
        before, *parts = unquote(pointer).split("/")
        if before:
            raise SchemaError(f"the JSON Schema refers to {name}: write the path, such as #/definitions/{before}")
        for part in (part.replace("~1", "/").replace("~0", "~") for part in parts):
            if not isinstance(target, dict) or part not in target:
                raise SchemaError(f"the JSON Schema refers to {name}, which is not there")
            target = target[part]
        return self.of(target, root, (*within, key))
