"""Records as lines of JSON, as `kop consume --json` prints them and `kop produce --json` takes them.

Owns: the names in such a line. docs/commands.md has them.
Must not know: topics, servers.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

_NAMES = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
)
_HEADER_NAMES = frozenset({"name", "value", "value_base64"})


class LineError(ValueError):
    """A line that is no record; its text is the reason."""


class LineRecord(NamedTuple):
    """A record to send. None in a field is null; in `timestamp` and `partition` it leaves the choice to the sender."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp: int | None = None
    partition: int | None = None


def to_json(record: Any) -> bytes:
    """Return a record of kafka-python's consumer as a line, without its end."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **shown("key", record.key),
        **shown("value", record.value),
        "headers": [{"name": name, **shown("value", value)} for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def topic_of(line: bytes) -> str | None:
    """Return the topic that a line, which is a record, names; None if it names none. LineError if that is no string."""
    topic = json.loads(line).get("topic")
    if topic is not None and not isinstance(topic, str):
        raise LineError("has a topic that is no string")
    return topic


def shown(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return bytes as a field of a line: as text under NAME, or as base64 under NAME_base64 if they are no UTF-8; None
    as null.
    """
    if value is None:
        return {name: None}
    try:
        return {name: bytes(value).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def from_json(line: bytes) -> LineRecord:
    """Return the record in a line of JSON; its topic and offset are ignored. LineError if the line is no such
    record.
    """
    try:
        read = json.loads(line)
    except ValueError as error:
        raise LineError(f"is no JSON ({error})") from None
    if not isinstance(read, dict):
        raise LineError("is no JSON object")
    if not read.keys() <= _NAMES:
        raise LineError(f"has an unknown field {min(read.keys() - _NAMES)!r}")
    if "value" not in read and "value_base64" not in read:
        raise LineError("has neither value nor value_base64; a tombstone has a value of null")
    headers = read.get("headers", [])
    if not isinstance(headers, list):
        raise LineError("has headers that are no list")
    return LineRecord(
        _bytes(read, "key"),
        _bytes(read, "value"),
        [_header(header) for header in headers],
        _number(read, "timestamp", 64),
        _number(read, "partition", 31),
    )


def _header(header: object) -> tuple[bytes, bytes | None]:
    if not isinstance(header, dict) or not header.keys() <= _HEADER_NAMES or not isinstance(header.get("name"), str):
        raise LineError("has a header that is not {name, value} or {name, value_base64}")
    return _encoded(header["name"], "name"), _bytes(header, "value")


def _bytes(read: dict[str, Any], name: str) -> bytes | None:
    text, coded = read.get(name), read.get(f"{name}_base64")
    if text is not None and coded is not None:
        raise LineError(f"has both {name} and {name}_base64")
    if isinstance(coded, str):
        try:
            return base64.b64decode(coded, validate=True)
        except binascii.Error:
            raise LineError(f"has a {name}_base64 that is no base64") from None
    if text is None and coded is None:
        return None
    if not isinstance(text, str):
        raise LineError(f"has a {name} that is neither a string nor null")
    return _encoded(text, name)


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LineError(f"has a {name} that is no Unicode text") from None


def _number(read: dict[str, Any], name: str, bits: int) -> int | None:
    value = read.get(name)
    if value is None:
        return None
    if type(value) is not int or not -1 <= value < 1 << (bits - 1):
        raise LineError(f"has a {name} that is no such number")
    if name == "partition" and value < 0:
        return None
    return value
