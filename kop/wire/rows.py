"""Responses made of plain values: a nested row is a dict, by the schema's names of its fields.

Owns: turning such rows into the classes of kafka-python's messages, at any depth.
Must not know: what a message means.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, cast

from kop.wire.messages import RESPONSES, Message


class Response:
    """A response that is not encoded yet. `message` makes of it what the codec takes."""

    __slots__ = ("api_key", "fields", "version")

    def __init__(self, api_key: int, version: int, fields: dict[str, Any]) -> None:
        """Set the fields of a response, by the schema's names; those that are left out have the schema's default."""
        self.api_key = api_key
        self.version = version
        self.fields = fields

    def message(self) -> Message:
        """Return the response as a message of kafka-python, which may take long if there are many rows.

        A list of dicts becomes a list of the class that the schema has for its rows. Other lists are taken as they are,
        such as those of tuples in the schema's field order.
        """
        return _message(RESPONSES[self.api_key], self.version, self.fields)


def _message(cls: Any, version: int, fields: Mapping[str, Any]) -> Message:
    nested = _nested(cls)
    values = {name: _rows(nested[name], version, value) if name in nested else value for name, value in fields.items()}
    return cls(version=version, **values)


def _rows(cls: Any, version: int, value: Any) -> Any:
    if isinstance(value, dict):
        return _message(cls, version, value)
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return value
    return [_message(cls, version, row) for row in value]


@cache
def _nested(cls: Hashable) -> dict[str, Any]:
    fields = cast(Any, cls)._struct.fields.values()
    return {field.name: field.data_class for field in fields if field.is_struct() or field.is_struct_array()}
