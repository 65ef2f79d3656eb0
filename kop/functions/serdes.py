"""Serdes: from the bytes of a record to the input of a function, and from its result to bytes.

Owns: Pulsar's IdentitySerDe and PickleSerDe; the serde of an annotation, of a schema type and of a class name; what a
serde says of a value that it refuses.
Must not know: sockets, records, what is done with a value that is refused.

The bytes of an input are None for a null value. Text and bytes are empty then, as they are for Pulsar's functions;
an annotation with None gets None; the others refuse it. A result is never None: that is no output.
"""

from __future__ import annotations

import math
import pickle
import re
import types
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError

from kop.functions.exception_text import text_of
from kop.functions.function import FunctionCode, FunctionLoadError
from kop.functions.spec import FunctionSpec

SCHEMA_TYPES: Final = ("string", "json", "bytes", "avro")


class SerdeError(Exception):
    """A value that a serde refuses, or a serde that cannot be had."""


class SerdeTypeError(SerdeError, TypeError):
    """A type that a serde does not write: Pulsar raises TypeError for it."""


class Serde(Protocol):
    """The methods that the instance of a function calls to read its inputs and to write its results."""

    def deserialize(self, input_bytes: bytes | None) -> Any:
        """Return the input of the function. SerdeError if the bytes are no such value, with the reason."""

    def serialize(self, input: Any) -> bytes:
        """Return the bytes of a result. SerdeError if it cannot be written, with the reason."""


# -- Pulsar's


class SerDe:
    """The interface of Pulsar's serdes, for those of users."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of bytes."""


_MAY_BE_A_NUMBER: Final = re.compile(r"[\s(]*[\d+\-.nNiIjJ][\d\s+\-._eEjJ()naiftyNAIFTY]*").fullmatch
"""All that int, float or complex takes matches, and little else: to raise three exceptions for a text is slow."""


class IdentitySerDe(SerDe):
    """The default: a number if the text is one, else the text, else the bytes."""

    def serialize(self, input: Any) -> bytes:
        """Return bytes as they are, and the text of an int, a float, a complex or a str. SerdeTypeError for any other
        type.
        """
        kind = type(input)
        if kind is str:
            return input.encode()  # type: ignore[no-any-return]
        if kind is bytes:
            return input  # type: ignore[no-any-return]
        if kind in {int, float, complex}:
            return str(input).encode()
        raise SerdeTypeError(
            f"IdentitySerDe does not write a {kind.__name__}: return bytes, str, int, float or complex, annotate what "
            "process returns, or name a serde"
        )

    def deserialize(self, input_bytes: bytes | None) -> Any:
        """Return the bytes as an int, a float, a complex or a str, the first of these that they can be, else as they
        are. A null value is an empty text.
        """
        if input_bytes is None:
            return ""
        try:
            text = input_bytes.decode()
        except UnicodeDecodeError:
            return input_bytes
        if _MAY_BE_A_NUMBER(text):
            for kind in (int, float, complex):
                try:
                    return kind(text)
                except ValueError:
                    pass
        return text


class PickleSerDe(SerDe):
    """Python's pickle: bytes of others may run code."""

    def serialize(self, input: Any) -> bytes:
        """Return the pickle of a value."""
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of a pickle."""
        return pickle.loads(input_bytes)


class _OfUser:
    """A serde of a class that a definition names. What it raises is a SerdeError."""

    def __init__(self, serde: Any, name: str) -> None:
        self._serde = serde
        self._name = name

    def deserialize(self, input_bytes: bytes | None) -> Any:
        data = b"" if input_bytes is None else input_bytes
        try:
            return self._serde.deserialize(data)
        except Exception as error:
            raise SerdeError(f"{self._name} does not read {_short(data)}: {text_of(error)}") from error

    def serialize(self, input: Any) -> bytes:
        try:
            data = self._serde.serialize(input)
        except Exception as error:
            raise SerdeError(f"{self._name} does not write a {type(input).__name__}: {text_of(error)}") from error
        if not isinstance(data, bytes | bytearray | memoryview):
            raise SerdeTypeError(f"{self._name} wrote a {type(data).__name__}, which must be bytes")
        return bytes(data)


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:60]}..."


# -- of annotations


class _Bytes:
    def deserialize(self, input_bytes: bytes | None) -> bytes:
        return b"" if input_bytes is None else input_bytes

    def serialize(self, input: Any) -> bytes:
        if not isinstance(input, bytes | bytearray | memoryview):
            raise SerdeTypeError(f"the result is a {type(input).__name__}, which must be bytes")
        return bytes(input)


class _Text:
    def deserialize(self, input_bytes: bytes | None) -> str:
        try:
            return "" if input_bytes is None else input_bytes.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(f"the value is no UTF-8: {error}") from None

    def serialize(self, input: Any) -> bytes:
        if not isinstance(input, str):
            raise SerdeTypeError(f"the result is a {type(input).__name__}, which must be a str")
        try:
            return input.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"the result is no UTF-8: {error}") from None


def all_decoded(serde: Serde, values: Sequence[bytes | None]) -> Sequence[Any] | None:
    """Return the inputs that a serde makes of values; None if it has to be asked for each value, because of the kind of
    serde or of a value.
    """
    if type(serde) is _Bytes and None not in values:
        return values
    if type(serde) is not _Text:
        return None
    try:
        return [*map(bytes.decode, values)]  # type: ignore[arg-type]
    except (TypeError, UnicodeDecodeError):  # a null, or no UTF-8
        return None


def is_plain_text(serde: Serde) -> bool:
    """Return True if the bytes that a serde makes are the UTF-8 of text, and it refuses all else."""
    return type(serde) is _Text


class _Number:
    """int or float, as text."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind
        self._taken = int if kind is int else int | float

    def deserialize(self, input_bytes: bytes | None) -> int | float:
        if input_bytes is None:
            raise SerdeError(f"the value is null, and no {self._kind.__name__}: {self._kind.__name__} | None takes it")
        try:
            return self._kind(input_bytes)
        except ValueError:
            raise SerdeError(f"the value is no {self._kind.__name__}: {_short(input_bytes)}") from None

    def serialize(self, input: Any) -> bytes:
        if not isinstance(input, self._taken) or isinstance(input, bool):
            raise SerdeTypeError(f"the result is a {type(input).__name__}, which must be a {self._kind.__name__}")
        return str(self._kind(input)).encode()


class _Json:
    """JSON of whatever pydantic knows: dict, list, dataclasses, its models, typed dicts."""

    def __init__(self, annotation: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
            told = str(error).partition("\n")[0]
            raise SerdeError(f"there is no serde for {_name(annotation)}: name one of your own ({told})") from None

    def deserialize(self, input_bytes: bytes | None) -> Any:
        try:
            return self._adapter.validate_json(b"null" if input_bytes is None else input_bytes)
        except ValidationError as error:
            raise SerdeError("; ".join(map(_of_field, error.errors(include_url=False)))) from None

    def serialize(self, input: Any) -> bytes:
        try:
            data = self._adapter.dump_json(input, warnings="error")
        except PydanticSerializationError as error:
            raise SerdeError(f"the result is no JSON: {' '.join(str(error).split())}") from None
        # pydantic writes null for a number that JSON has not.
        if b"null" in data and (number := _without_json(self._adapter.dump_python(input))) is not None:
            raise SerdeError(f"the result is no JSON, which has no {_JSON_NAMES[str(number)]}")
        return data


_JSON_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _without_json(value: Any) -> float | None:
    """Return a number within a value that JSON cannot have (NaN, infinity); None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return next((number for number in map(_without_json, parts) if number is not None), None)


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _of_field(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    got = "" if error["type"] == "missing" else f", got {_short(error['input'])}"
    return f"{place + ': ' if place else ''}{error['msg']}{got}"


class _OrNone:
    """An annotation with None: a null value is None."""

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self.serialize = serde.serialize

    def deserialize(self, input_bytes: bytes | None) -> Any:
        return None if input_bytes is None else self._serde.deserialize(input_bytes)


_PLAIN: Final[dict[Any, Callable[[], Serde]]] = {
    Any: IdentitySerDe,
    object: IdentitySerDe,
    bytes: _Bytes,
    str: _Text,
    int: lambda: _Number(int),
    float: lambda: _Number(float),
}


def of_annotation(annotation: Any) -> Serde:
    """Return the serde of a type annotation: str, bytes, int and float as text or bytes, Any (for a function without
    annotation) as Pulsar's IdentitySerDe has it, every other type as JSON. With `| None` a null value is None.
    SerdeError if there is no serde for the type.
    """
    if get_origin(annotation) in {Union, types.UnionType} and type(None) in get_args(annotation):
        others = [part for part in get_args(annotation) if part is not type(None)]
        return _OrNone(of_annotation(Union[tuple(others)]))  # noqa: UP007 - made of what is known only now
    try:
        plain = _PLAIN.get(annotation)
    except TypeError:  # an annotation that has no hash
        plain = None
    return plain() if plain else _Json(annotation)


# -- of names

_OF_PULSAR: Final = {
    f"{module}.{serde.__name__}": serde
    for module in ("serde", "pulsar.functions.serde", "pulsar.functions", "pulsar")
    for serde in (IdentitySerDe, PickleSerDe)
}


def of_class_name(name: str, code: FunctionCode) -> Serde:
    """Return an instance of the serde class that is named as `module.Class`; the class is called without arguments.
    SerdeError if it cannot be found or made, or lacks a method; errors of its methods are raised as SerdeError, too.
    """
    if _OF_PULSAR.get(name) is IdentitySerDe:
        return IdentitySerDe()
    made: Any = _OF_PULSAR.get(name)
    if made is None:
        try:
            made = code.find(name)
        except FunctionLoadError as error:
            raise SerdeError(f"the serde {name} cannot be had: {error}") from None
    try:
        serde = made()
    except Exception as error:
        raise SerdeError(f"the serde {name} cannot be made: {text_of(error)}") from error
    for method in ("serialize", "deserialize"):
        if not callable(getattr(serde, method, None)):
            raise SerdeError(f"the serde {name} has no method {method}")
    return _OfUser(serde, name)


class _OfPulsarSchema:
    """A schema of pulsar-client: Avro, or JSON of one of its records."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def deserialize(self, input_bytes: bytes | None) -> Any:
        try:
            return self._schema.decode(b"" if input_bytes is None else input_bytes)
        except Exception as error:
            raise SerdeError(f"{type(self._schema).__name__} does not read the value: {text_of(error)}") from error

    def serialize(self, input: Any) -> bytes:
        try:
            return bytes(self._schema.encode(input))
        except Exception as error:
            raise SerdeError(f"{type(self._schema).__name__} does not write the result: {text_of(error)}") from error


def of_schema_type(schema_type: str, type_class_name: str, annotation: Any, code: FunctionCode) -> Serde:
    """Return the serde of a `schemaType`: string, bytes, json or avro. JSON is of the class that `type_class_name`
    names, else of `annotation`; avro, and JSON of a class of Pulsar's records, need that class and pulsar-client.
    SerdeError if the serde cannot be made.
    """
    if schema_type == "string":
        return _Text()
    if schema_type == "bytes":
        return _Bytes()
    named = None
    if type_class_name:
        try:
            named = code.find(type_class_name)
        except FunctionLoadError as error:
            raise SerdeError(f"the class {type_class_name} cannot be had: {error}") from None
    if schema_type == "json" and (named is None or not _is_record(named)):
        return _Json(annotation if named is None else named)
    return _of_pulsar_schema(schema_type, named)


def _is_record(named: Any) -> bool:
    return any(base.__module__.startswith("pulsar.schema") for base in getattr(named, "__mro__", ()))


def _of_pulsar_schema(schema_type: str, record: Any) -> Serde:
    try:
        from pulsar.schema import AvroSchema, JsonSchema  # noqa: PLC0415 - only functions with such a schema need it
    except ImportError as error:
        raise SerdeError(f"schemaType {schema_type} needs pulsar-client: pip install pulsar-client ({error})") from None
    if record is None:
        raise SerdeError(
            f"schemaType {schema_type} needs the class of the record: inputTypeClassName, outputTypeClassName"
        )
    try:
        return _OfPulsarSchema(AvroSchema(record) if schema_type == "avro" else JsonSchema(record))
    except Exception as error:
        raise SerdeError(f"there is no {schema_type} schema of {_name(record)}: {text_of(error)}") from error


def input_serde(spec: FunctionSpec, topic: str, code: FunctionCode) -> Serde:
    """Return the serde that reads the values of an input (`topic` is a key of `spec.inputs`): that of its serde class,
    else of its schema type, else of the function's annotation. SerdeError if it cannot be made.
    """
    given = spec.inputs[topic]
    if given.serde_class_name:
        return of_class_name(given.serde_class_name, code)
    if given.schema_type:
        return of_schema_type(given.schema_type, spec.input_type_class_name, code.input_annotation, code)
    return of_annotation(code.input_annotation)


def output_serde(spec: FunctionSpec, code: FunctionCode) -> Serde:
    """Return the serde that writes results: that of the output's serde class, else of its schema type, else of the
    function's annotation. SerdeError if it cannot be made.
    """
    if spec.output_serde_class_name:
        return of_class_name(spec.output_serde_class_name, code)
    if spec.output_schema_type:
        return of_schema_type(spec.output_schema_type, spec.output_type_class_name, code.output_annotation, code)
    return of_annotation(code.output_annotation)
