"""Protobuf's messages into columns and back: descriptors, Confluent's message indexes, types.

Owns: which message of a file a schema is about, the type of a column that a message means, which versions of a message
can be read as one another.
Must not know: registries, pyspark.

A field without a value is its default, as Protobuf says, unless it knows if it is set (messages, `optional`, members of
`oneof`): then it is null. An enum is its symbol's name, or its number if the schema has no symbol of that number; if
the enum is closed, as those of proto2 are, such a number makes a bad record.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import operator
from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    unknown_fields,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from kop.schemas.avro_schema import UTC
from kop.schemas.encoders import zigzag
from kop.schemas.errors import BadRecordError, SchemaError, UnresolvableError

_WELL_KNOWN: Final = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2,
        source_context_pb2,
        type_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}
"""The files that every schema may import, as the library has them."""
_UNNAMED: Final = "schema.proto"
"""The name of a file that has none."""
Descriptor = Any
"""A message's descriptor. What stubs say of the descriptors' members differs between the library's versions."""
Field = Any
Nulls = list[bool] | None
"""The flags of some values, each True if the value is null; None if none is null."""
Column = Callable[[Sequence[Any], Nulls], pa.Array]
"""A function that makes a column of values as the library gives them; the value of a null one does not matter."""
_DEEPEST: Final = 100
"""The levels of messages in one another that the library reads."""
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_F = FieldDescriptor
_LEAVES: Final = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20, 0),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_BOOL: pa.bool_(),
    _F.CPPTYPE_ENUM: pa.string(),
}
_WIRES: Final = (
    {_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM},
    {_F.TYPE_SINT32, _F.TYPE_SINT64},
    {_F.TYPE_STRING, _F.TYPE_BYTES},
    {_F.TYPE_FIXED32, _F.TYPE_SFIXED32},
    {_F.TYPE_FIXED64, _F.TYPE_SFIXED64},
)
"""The types whose values may be read as one another, as Protobuf's documentation says."""
_WHOLE: Final = {
    _F.TYPE_BOOL: 1,
    _F.TYPE_INT32: 32,
    _F.TYPE_ENUM: 32,
    _F.TYPE_UINT32: 33,
    _F.TYPE_INT64: 64,
    _F.TYPE_UINT64: 65,
    _F.TYPE_SINT32: 32,
    _F.TYPE_SINT64: 64,
    _F.TYPE_FIXED32: 33,
    _F.TYPE_SFIXED32: 32,
    _F.TYPE_FIXED64: 65,
    _F.TYPE_SFIXED64: 64,
}
"""The bits that a column needs for the values of a type: a wider one is never read as a narrower one, which would cut
it.
"""
_SIGNED: Final = {_F.CPPTYPE_INT32, _F.CPPTYPE_INT64, _F.CPPTYPE_ENUM}
_UNSIGNED: Final = {_F.CPPTYPE_UINT32: 2**31, _F.CPPTYPE_UINT64: 2**63}
"""The types without a sign, each with the least of the numbers that numbers below 0 of types with one are read as."""


class ProtobufSchema:
    """A file with messages, and those that it imports."""

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        """`text`, and the texts of `references`, are file descriptors in base64. `text` may be a set of them: the
        schema is then its last file. SchemaError if they are no descriptors, or do not fit together.
        """
        files = {}
        for name, reference in references:
            (file,) = _files(reference)
            file.name = name
            files[name] = file
        own = _files(text)
        files |= {file.name: file for file in own}
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        try:
            for file in own:
                self._add(file.name, files, ())
            self._file = self._pool.FindFileByName(own[-1].name)
        except (TypeError, KeyError) as error:
            raise SchemaError(f"the descriptor of Protobuf's schema is malformed: {error}") from None

    def _add(self, name: str, files: dict[str, descriptor_pb2.FileDescriptorProto], within: tuple[str, ...]) -> None:
        if name in self._added or name in within:
            return
        file = files.get(name)
        if file is None:
            if name not in _WELL_KNOWN:
                raise SchemaError(
                    f"Protobuf's schema imports {name}, which none of its references is, and no file of its set: "
                    "protoc --include_imports has it there"
                )
            file = descriptor_pb2.FileDescriptorProto.FromString(_WELL_KNOWN[name])
        for imported in file.dependency:
            self._add(imported, files, (*within, name))
        self._pool.AddSerializedFile(file.SerializeToString())
        self._added.add(name)

    def message(self, name: str = "") -> Descriptor:
        """Return a message type by its full name, the first of the schema's file if `name` is empty; a named one may be
        of an imported file. SchemaError if there is none.
        """
        if name:
            try:
                return self._pool.FindMessageTypeByName(name)
            except KeyError:
                raise SchemaError(f"Protobuf's schema has no message {name}") from None
        first = next(iter(self._file.message_types_by_name.values()), None)
        if first is None:
            raise SchemaError("Protobuf's schema has no message")
        return first

    def at(self, indexes: Sequence[int]) -> Descriptor:
        """Return the message type that a record's indexes name: the first index counts the messages of the schema's
        file, each further one those nested in the message before. BadRecordError if there is none.
        """
        messages = list(self._file.message_types_by_name.values())
        made = None
        for index in indexes:
            if not 0 <= index < len(messages):
                raise BadRecordError(f"its message index {list(indexes)} names no message of the schema")
            made = messages[index]
            messages = list(made.nested_types)
        if made is None:
            raise BadRecordError("it has no message index")
        return made

    def indexes(self, message: Descriptor) -> list[int]:
        """Return the indexes by which a record names a message of the schema's file: its place in the file, then in
        turn within the message around it. SchemaError if it is of an imported file.
        """
        if message.file.name != self._file.name:
            raise SchemaError(
                f"the message {message.full_name} is in {message.file.name}, which the schema imports: name one of "
                f"{self._file.name}, or give that file as the schema"
            )
        path: list[int] = []
        at: Descriptor | None = message
        while at is not None:
            outer = at.containing_type
            beside = list(self._file.message_types_by_name.values()) if outer is None else list(outer.nested_types)
            path.insert(0, [sibling.full_name for sibling in beside].index(at.full_name))
            at = outer
        return path


def _files(text: str) -> list[descriptor_pb2.FileDescriptorProto]:
    try:
        data = base64.b64decode("".join(text.split()), validate=True)  # base64 breaks it into lines
    except (binascii.Error, ValueError):
        raise SchemaError(
            "Protobuf's schema has to be a descriptor in base64, as protoc -o and a registry that knows "
            "format=serialized write it: set the schema to @FILE of protoc --include_imports -o"
        ) from None
    try:  # A set comes first: many a set is a file, too, of which it is the name.
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        if files.file and not _unknown(files):
            return list(files.file)
    except DecodeError:
        pass
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        if data and not _unknown(file):
            file.name = file.name or _UNNAMED
            return [file]
    except DecodeError:
        pass
    raise SchemaError("Protobuf's schema is neither the descriptor of a file nor a set of them")


def _unknown(message: Any) -> bool:
    return len(unknown_fields.UnknownFieldSet(message)) > 0


@dataclass(frozen=True, slots=True)
class ProtobufFile:
    """One file of a schema, as it is registered."""

    name: str
    text: str
    """The descriptor in base64."""
    imports: tuple[str, ...]
    """The names of the files that it imports, without those that every schema may import."""


def split(text: str) -> list[ProtobufFile]:
    """Return the files of a schema's text, which is a descriptor, or a set of them, in base64; the schema itself is the
    last one. SchemaError if it is neither.
    """
    return [
        ProtobufFile(
            file.name,
            base64.b64encode(file.SerializeToString()).decode(),
            tuple(name for name in file.dependency if name not in _WELL_KNOWN),
        )
        for file in _files(text)
    ]


def native_schema(text: str) -> tuple[str, str]:
    """Return the descriptor set, in base64, and the full name of the message from the text that Pulsar keeps for a
    schema PROTOBUF_NATIVE. SchemaError if it has another form.
    """
    try:
        kept = json.loads(text)
        return kept["fileDescriptorSet"], kept["rootMessageTypeName"]
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"Pulsar's schema of Protobuf is malformed: {error!r}") from None


# -- types


def arrow_type(message: Descriptor) -> pa.DataType:
    """Return the type of a column of messages. SchemaError if a message contains itself, or has two fields that differ
    in the case of letters alone, or if they are nested more than 100 levels deep.
    """
    return _message_type(message, ())


def _message_type(message: Descriptor, within: tuple[str, ...]) -> pa.DataType:
    if message.full_name == _TIMESTAMP:
        return UTC
    if message.full_name in within:
        raise SchemaError(f"the message {message.full_name} holds itself, which the type of a column cannot")
    if len(within) >= _DEEPEST:
        raise SchemaError(f"the messages are nested too deeply, more than {_DEEPEST} levels")
    inner = (*within, message.full_name)
    names = [field.name.lower() for field in message.fields]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"the message {message.full_name} has two fields {twice}, which Spark takes for one column")
    return pa.struct([(field.name, _field_type(field, inner)) for field in message.fields])


def _field_type(field: Field, within: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_one_type(entry["key"], within), _one_type(entry["value"], within))
    kind = _one_type(field, within)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _one_type(field: Field, within: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        return _message_type(field.message_type, within)
    if field.cpp_type == _F.CPPTYPE_STRING:
        return pa.binary() if field.type == _F.TYPE_BYTES else pa.string()
    return _LEAVES[field.cpp_type]


def _is_map(field: Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# -- reading

_PIECE: Final = 256
"""The messages that are held at once: so few leave before Python's collector looks at them, which doubles the rate."""
_NO_UTF8: Final = "a text of it is no UTF-8"


class _Symbols(dict[int, str]):
    """The symbols of an enum by their numbers; a number without one is its own."""

    def __missing__(self, number: int) -> str:
        return str(number)


class ProtobufReader:
    """The reader of one message's records as another version of it, `reader`; UnresolvableError if its fields cannot be
    read as those.
    """

    def __init__(self, writer: Descriptor, reader: Descriptor) -> None:
        if writer.full_name != reader.full_name:
            raise UnresolvableError(f"it is of the message {writer.full_name}, not {reader.full_name}")
        _compare(writer, reader, reader.name, set())
        self.kind = arrow_type(reader)
        self._class = GetMessageClass(reader)
        self._column = _message_column(writer, reader, self.kind)
        self._empty = self._class()
        self._empty_column = self._column([], None)

    def decode(self, records: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return a column with a row for each record, and by row the errors of bad records, which are null in it: those
        that are malformed, or have a field that the writer's message does not have. The encoding of a record begins at
        its byte `start`.
        """
        failures: dict[int, str] = {}
        columns = [self._empty_column]
        for first in range(0, len(records), _PIECE):
            columns.append(self._piece(records[first : first + _PIECE], start, first, failures))
        return pa.concat_arrays(columns), failures

    def _piece(self, records: Sequence[bytes], start: int, first: int, failures: dict[int, str]) -> pa.Array:
        messages: list[Message] = []
        bad: dict[int, str] = {}
        parse = self._class.FromString
        for row, record in enumerate(records):
            try:
                messages.append(parse(record[start:] if start else record))
            except DecodeError:
                messages.append(self._empty)
                bad[row] = "it is malformed, or cut short"
            except UnicodeDecodeError:  # by the library's implementation in Python
                messages.append(self._empty)
                bad[row] = _NO_UTF8
        try:
            column = self._column(messages, _in(bad, messages))
        except BadRecordError:
            self._find_bad(messages, 0, bad)
            for row in bad:
                messages[row] = self._empty
            column = self._column(messages, _in(bad, messages))
        failures |= {first + row: reason for row, reason in bad.items()}
        return column

    def _find_bad(self, messages: list[Message], first: int, bad: dict[int, str]) -> None:
        """Put the errors of bad messages into `bad` by their rows, by halves: few are bad, and a column does not say
        which. The first message has the row `first`.
        """
        try:
            self._column(messages, None)
            return
        except BadRecordError as error:
            reason = str(error)
        if len(messages) == 1:
            bad[first] = reason
            return
        half = len(messages) // 2
        self._find_bad(messages[:half], first, bad)
        self._find_bad(messages[half:], first + half, bad)


def _in(rows: Collection[int], values: Sequence[Any]) -> Nulls:
    return [row in rows for row in range(len(values))] if rows else None


def read_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the message indexes that begin at position `at` of a record, and the position behind them; (0,) for the
    short form, a single 0. BadRecordError if they are malformed.
    """
    try:
        count, at = _zigzag(data, at)
        if count == 0:
            return (0,), at
        if not 0 < count <= len(data) - at:
            raise BadRecordError(f"it has {count} message indexes")
        indexes = []
        for _ in range(count):
            index, at = _zigzag(data, at)
            indexes.append(index)
    except IndexError:
        raise BadRecordError("it is cut short") from None
    return tuple(indexes), at


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Return message indexes in the form that they have in front of a record: their count and each of them as zigzag
    numbers, or a single 0 for the first message.
    """
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(zigzag, (len(indexes), *indexes)))


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 28:
            raise BadRecordError("a message index of it is malformed")


def _compare(writer: Descriptor, reader: Descriptor, path: str, seen: set[tuple[str, str]]) -> None:
    """Raise UnresolvableError, which names the field by `path`, if a field of the writer cannot be read as the reader's
    field with the same number, in nested messages too. `seen` are the full names of pairs of messages that were
    compared already; this pair is added.
    """
    pair = writer.full_name, reader.full_name
    if pair in seen:
        return
    seen.add(pair)
    for field in reader.fields:
        written = writer.fields_by_number.get(field.number)
        if written is None:
            continue
        below = f"{path}.{field.name}"
        if _is_map(written) != _is_map(field) or written.is_repeated != field.is_repeated:
            raise UnresolvableError(f"{below} is repeated, or a map, in one of the two versions alone")
        if written.type == field.type:
            if field.message_type is not None:
                _compare(written.message_type, field.message_type, below, seen)
            continue
        alike = any(written.type in group and field.type in group for group in _WIRES)
        if not alike or _WHOLE.get(written.type, 0) > _WHOLE.get(field.type, 0):
            raise UnresolvableError(f"{below} has another type, which cannot be read as the reader's")


def _message_column(writer: Descriptor, message: Descriptor, kind: pa.DataType) -> Column:
    """Return the function that makes a column of messages of this type, which were written as the `writer` type. It
    raises BadRecordError for a field that the writer's type does not have, for a value of a field that its type does
    not have (a number that is no symbol of an enum that is closed), and for a time that a column cannot hold.
    """
    known = {field.number for field in writer.fields}
    names = {field.number: field.name for field in message.fields}
    ranges = [range(*bounds) for bounds in writer.extension_ranges]
    unknown_of: Callable[[Message], Any] = unknown_fields.UnknownFieldSet

    def check(values: Sequence[Message]) -> None:
        for unknown in filter(len, map(unknown_of, values)):
            for field in unknown:
                number = field.field_number
                if number in names:  # the library leaves a value out that the field cannot have
                    raise BadRecordError(f"{names[number]} has a value in it that its type has not")
                if number not in known and not any(number in numbers for numbers in ranges):
                    raise BadRecordError(f"it has a field {number}, which its schema has not")

    if message.full_name == _TIMESTAMP:

        def times(values: Sequence[Message], nulls: Nulls) -> pa.Array:
            check(values)
            return _times(values, nulls)

        return times
    columns = [
        _field_column(writer.fields_by_number.get(field.number, field), field, inner.type)
        for field, inner in zip(message.fields, kind, strict=True)
    ]

    def structs(values: Sequence[Message], nulls: Nulls) -> pa.Array:
        check(values)
        if not columns:
            return _leaves([{}] * len(values), kind, nulls)
        mask = None if nulls is None else pa.array(nulls, pa.bool_())
        return pa.StructArray.from_arrays([column(values) for column in columns], fields=list(kind), mask=mask)

    return structs


def _times(values: Sequence[Any], nulls: Nulls) -> pa.Array:
    made = [value.seconds * 1_000_000 + value.nanos // 1000 for value in values]
    for micros, value in zip(made, values, strict=True):
        if not -(2**63) <= micros < 2**63:
            raise BadRecordError(f"a time of it is {value.seconds} s, beyond what a column holds")
    return _leaves(made, pa.int64(), nulls).view(UTC)


def _leaves(values: Sequence[Any], kind: pa.DataType, nulls: Nulls) -> pa.Array:
    if nulls is not None:
        values = [None if null else value for value, null in zip(values, nulls, strict=True)]
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:  # the library gives the bytes of a text that is none
        if kind != pa.string():
            raise
        raise BadRecordError(_NO_UTF8) from None


def _field_column(written: Field, field: Field, kind: pa.DataType) -> Callable[[Sequence[Message]], pa.Array]:
    """Return the function that makes the column of a field from the messages that have it."""
    name, get = field.name, operator.attrgetter(field.name)
    if _is_map(field):
        old, new = written.message_type.fields_by_name, field.message_type.fields_by_name
        make_keys = _value_column(old["key"], new["key"], kind.key_type)
        make_values = _value_column(old["value"], new["value"], kind.item_type)

        def maps(messages: Sequence[Message]) -> pa.Array:
            runs = list(map(get, messages))
            try:
                entries = [entry for run in runs for entry in run.items()]
            except UnicodeDecodeError:  # a key, which proto2 does not check
                raise BadRecordError(_NO_UTF8) from None
            keys = make_keys([key for key, _ in entries], None)
            values = make_values([value for _, value in entries], None)
            return pa.MapArray.from_arrays(_offsets(runs), keys, values, type=kind)

        return maps
    if field.is_repeated:
        make_items = _value_column(written, field, kind.value_type)

        def lists(messages: Sequence[Message]) -> pa.Array:
            runs = list(map(get, messages))
            items = make_items(list(itertools.chain.from_iterable(runs)), None)
            return pa.ListArray.from_arrays(_offsets(runs), items, type=kind)

        return lists
    make = _value_column(written, field, kind)
    if not field.has_presence:
        return lambda messages: make(list(map(get, messages)), None)

    def values_or_null(messages: Sequence[Message]) -> pa.Array:
        return make(list(map(get, messages)), [not message.HasField(name) for message in messages])

    return values_or_null


def _offsets(runs: Sequence[Sized]) -> pa.Array:
    return pa.array(itertools.accumulate(map(len, runs), initial=0), pa.int32())


def _value_column(written: Field, field: Field, kind: pa.DataType) -> Column:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        return _message_column(written.message_type, field.message_type, kind)
    if field.cpp_type == _F.CPPTYPE_ENUM:
        symbols = _Symbols()
        for value in field.enum_type.values:
            symbols.setdefault(value.number, value.name)  # of symbols with one number the first, as in all libraries
        return lambda values, nulls: _leaves(list(map(symbols.__getitem__, values)), kind, nulls)
    if field.cpp_type in _UNSIGNED and written.cpp_type in _SIGNED:
        return _unsigned_column(field, kind)
    if field.cpp_type == _F.CPPTYPE_UINT64:
        return lambda values, nulls: _leaves(list(map(Decimal, values)), kind, nulls)
    return lambda values, nulls: _leaves(values, kind, nulls)


def _unsigned_column(field: Field, kind: pa.DataType) -> Column:
    """Return the function that makes a column of numbers without a sign that were written with one. It raises
    BadRecordError for one below 0, which the library gives as a very large one.
    """
    make, least = _value_column(field, field, kind), _UNSIGNED[field.cpp_type]

    def numbers(values: Sequence[int], nulls: Nulls) -> pa.Array:
        for value, null in zip(values, nulls or itertools.repeat(False), strict=False):
            if value >= least and not null:
                raise BadRecordError(f"{field.name} is below 0 in it, which the reader's type has not")
        return make(values, nulls)

    return numbers
