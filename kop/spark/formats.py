"""The options of typed columns: the formats of keys and values, and where their schemas are found.

Owns: these options' names and values, and which of them go together.
Must not know: pyspark, what schemas look like, how they are asked for.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kop.client.properties import one_of, text, whole
from kop.schemas.access import PulsarAccess, RegistryAccess
from kop.spark.given import Given, OptionError

FORMATS: Final = ("bytes", "string", "json", "avro", "protobuf", "auto")
REGISTRY_OPTIONS: Final = (
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
    "schema.registry.ssl.ca.location",
)
PULSAR_OPTIONS: Final = ("pulsar.admin.url", "pulsar.auth", "pulsar.tls.ca.file")
FORMAT_OPTIONS: Final = (
    "valueFormat",
    "keyFormat",
    "valueSchema",
    "keySchema",
    "valueMessage",
    "keyMessage",
    "valueSubject",
    "keySubject",
    "schemaVersion",
    "keySchemaVersion",
    *REGISTRY_OPTIONS,
)
"""The names of all options of typed columns but those of Pulsar's admin REST, which bounds by message ids have, too."""


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The options of one typed column."""

    format: str
    schema: str = ""
    """The schema as the user wrote it: columns in Spark's words, Avro's JSON, or a descriptor set; empty if a registry
    has it.
    """
    message: str = ""
    """The full name of a message of Protobuf; empty for the one that the schema is about."""
    subject: str = ""
    """The subject in the registry; empty for the topic's name and `-key` or `-value`."""
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Formats:
    """The options of all typed columns of a read or a write."""

    columns: dict[str, FormatOptions]
    """The columns that are no bytes: `key`, `value`."""
    registry: RegistryAccess | None = None
    pulsar: PulsarAccess | None = None


def take_formats(given: Given, pulsar: PulsarAccess | None, *, writing: bool = False) -> Formats | None:
    """Take the options of typed columns out of those that were given, and return them; None if all columns are bytes.
    OptionError if an option has a wrong value, or contradicts or lacks another one.

    `pulsar`: the access to Pulsar's registry, if the user named one. `writing`: a write of JSON needs no schema.
    """
    columns = {}
    for column, version in (("value", "schemaVersion"), ("key", "keySchemaVersion")):
        chosen = given.take(f"{column}Format", one_of(*FORMATS), "bytes")
        if chosen in ("bytes", "string"):
            for name in (f"{column}Schema", f"{column}Message", f"{column}Subject", version):
                if given.has(name):
                    raise OptionError(f"set {column}Format to the format of {name}, or leave {name} out")
        made = FormatOptions(
            chosen,
            given.take(f"{column}Schema", _binary if chosen == "protobuf" else _text, ""),
            given.take(f"{column}Message", text, ""),
            given.take(f"{column}Subject", text, ""),
            given.take(version, _version, None),
        )
        if chosen != "bytes":
            columns[column] = made
    registry = None
    if given.has("schema.registry.url"):
        registry = RegistryAccess(
            given.take("schema.registry.url", text, ""),
            given.take("schema.registry.basic.auth.user.info", text, ""),
            given.take("schema.registry.bearer.auth.token", text, ""),
            given.take("schema.registry.ssl.ca.location", text, "") or None,
        )
    for name in REGISTRY_OPTIONS[1:]:
        if given.has(name):
            raise OptionError(f"set schema.registry.url as well, or leave {name} out")
    if not columns:
        if registry is not None:
            raise OptionError("set valueFormat or keyFormat, or leave schema.registry.url out: bytes have no schema")
        return None
    for column, made in columns.items():
        if not (writing and made.format == "json"):
            _check(column, made, registry, pulsar)
    return Formats(columns, registry, pulsar)


def _check(column: str, made: FormatOptions, registry: RegistryAccess | None, pulsar: PulsarAccess | None) -> None:
    """Raise OptionError if options of a column contradict each other, or if neither an option nor a registry has its
    schema.
    """
    if made.format == "string":
        return
    registries = [name for name, access in (("schema.registry.url", registry), ("pulsar.admin.url", pulsar)) if access]
    if made.schema:
        if made.format == "auto":
            raise OptionError(f"set {column}Format to avro, json or protobuf: with auto a registry tells the format")
        if made.version is not None:
            raise OptionError(f"leave {column}Schema or the version of the schema out: one of them is the schema")
    elif not registries:
        where = "schema.registry.url or pulsar.admin.url"
        own = "" if made.format == "auto" else f", or {column}Schema to the schema"
        raise OptionError(f"set {where} to the registry that has the schema of {column}{own}")
    elif len(registries) > 1:
        raise OptionError(f"set one of {' and '.join(registries)}, not both: each says where the schema is")
    if made.format == "json" and re.search(r"\bNOT\s+NULL\b", made.schema, re.IGNORECASE):
        raise OptionError(f"leave NOT NULL out of {column}Schema: a record may leave any field out")
    if made.message and made.format not in ("protobuf", "auto"):
        raise OptionError(f"leave {column}Message out: only Protobuf has messages")


def wants_schemas(given: Given) -> bool:
    """Return true if keyFormat or valueFormat, neither of which is taken out here, is a format whose schema may be in a
    registry: any but bytes and string.
    """
    return any(
        given.value(f"{column}Format").strip().lower() not in ("", "bytes", "string") for column in ("value", "key")
    )


def pulsar_access(given: Given) -> PulsarAccess:
    """Take the options of Pulsar's admin REST out of those that were given, and return them; the ones that were not
    given are empty. OptionError if one has an empty value.
    """
    return PulsarAccess(
        given.take("pulsar.admin.url", text, ""),
        given.take("pulsar.auth", text, ""),
        given.take("pulsar.tls.ca.file", text, "") or None,
    )


def _version(value: str) -> int | None:
    return None if value.strip().lower() == "latest" else whole(0)(value)


def _text(value: str) -> str:
    """Return a schema that was given as text; for `@PATH`, the text of that file, which the driver reads. ValueError if
    the file cannot be read, or is no UTF-8.
    """
    value = text(value)
    try:
        return _file(value).decode() if value.startswith("@") else value
    except UnicodeDecodeError:
        raise ValueError("names a file that is no text of UTF-8") from None


def _binary(value: str) -> str:
    """Return a schema that was given as bytes in base64; for `@PATH`, the bytes of that file, in base64. ValueError if
    the file cannot be read.
    """
    value = text(value)
    return b64encode(_file(value)).decode() if value.startswith("@") else value


def _file(value: str) -> bytes:
    try:
        return Path(value[1:]).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"names a file that cannot be read: {error}") from None
