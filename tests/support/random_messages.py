"""Random valid messages of any class and version, made from the schemas.

Owns: values for every type of field, null where it may be, tagged fields present or not.
Must not know: what a message means.
"""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from kop.wire.messages import REQUESTS, RESPONSES

_INTS = {"int8": 8, "int16": 16, "uint16": 17, "int32": 32, "int64": 64}
_TEXTS = ["", "a", "t", "topic-1", "ÄÖ", "\U0001f600", "x" * 127, "y" * 300, "g", "0"]


def random_message(cls: Any, version: int, rng: Random, most: int = 3) -> Any:
    """An instance with every field of its version set; arrays of up to `most` elements."""
    return cls(version=version, **_fields(cls._struct, version, rng, most))


def every_class() -> list[tuple[Any, int]]:
    """Each request and response class with each of its versions."""
    return [
        (cls, version)
        for classes in (REQUESTS, RESPONSES)
        for cls in classes.values()
        for version in range(cls.valid_versions[0], cls.valid_versions[1] + 1)
    ]


def kind_of(field: Any) -> str:
    """The type of a field of a message, such as "int32"; kafka-python has no public name for it."""
    return str(field._type_str)


def is_message(value: Any) -> bool:
    """Whether a value is a message, or a part of one with fields of its own."""
    return hasattr(value, "_struct")


def fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message, or of its class, by name; kafka-python has no public name for them either."""
    fields: dict[str, Any] = message._struct.fields
    return fields


def _fields(struct: Any, version: int, rng: Random, most: int) -> dict[str, Any]:
    values = {}
    for field in struct._fields:
        if not field.for_version_q(version):
            continue
        if field.tagged_field_q(version) and rng.random() < 0.5:
            continue
        values[field.name] = _value(field, version, rng, most)
    return values


def _value(field: Any, version: int, rng: Random, most: int) -> Any:
    if field.nullable_for_version_q(version) and rng.random() < 0.25:
        return None
    if field.is_struct_array():
        data = field.data_class
        inner = field.array_of
        return [data(version=version, **_fields(inner, version, rng, most)) for _ in range(rng.randint(0, most))]
    if field.is_array():
        return [_simple(kind_of(field.array_of), rng) for _ in range(rng.randint(0, most))]
    if field.is_struct():
        return field.data_class(version=version, **_fields(field, version, rng, most))
    return _simple(kind_of(field), rng)


def _simple(kind: str, rng: Random) -> Any:
    if kind in _INTS:
        bits = _INTS[kind] - 1
        low = 0 if kind == "uint16" else -(1 << bits)
        return rng.choice([0, 1, 7, (1 << bits) - 1, low, rng.randint(low, (1 << bits) - 1)])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice([0.0, -1.5, 1e300])
    if kind == "string":
        return rng.choice(_TEXTS)
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice([0, 1, 10, 126, 127, 128, 1000]))
    if kind == "uuid":
        return UUID(int=rng.randint(1, 2**128 - 1))
    if kind == "bitfield":
        return rng.choice([None, set(), {3, 8}, {0, 30}])
    raise ValueError(kind)
