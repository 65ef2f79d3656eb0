"""Avro's binary encoding into columns, resolved from the writer's schema into the reader's.

Owns: the encoding, strictly; Avro's rules of resolution; what a record that breaks them is told.
Must not know: registries, frames, pyspark.

For each pair of schemas functions are put together once that take a record's bytes and a position in it, append to the
columns, and return the position behind. They take nothing that is not Avro: an index of a union or an enum that is not
there, a number of too many bits, a boolean of 2, bytes behind the record. (fastavro takes all of these for something;
tests compare with it.)
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from kop.schemas.avro_schema import AvroField, AvroType, arrow_type
from kop.schemas.builders import Builder, Leaf, Lists, Maps, Structs, builder
from kop.schemas.errors import BadRecordError, UnresolvableError, below

Read = Callable[[bytes, int], int]

_CUT: Final = "it is cut short"
WIDE: Final = Context(prec=100)
"""The context for decimals of columns: Python's own rounds to 28 digits."""
PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The types that the values of a type may be read as besides their own."""
MOST_EMPTY: Final = 1_000_000
"""The largest number of items without bytes that an array may say it has."""


class AvroReader:
    """The reader of records of one writer's schema into columns of the reader's; UnresolvableError if no record of such
    a schema can be read.
    """

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        self.kind = arrow_type(reader)
        self._into: Builder = builder(self.kind)
        self._read = _resolve(writer, reader, self._into, "")

    def decode(self, records: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return a column with a row for each record, and by row the errors of malformed records, which are null in it.
        The encoding of a record begins at `start`.
        """
        read, into = self._read, self._into
        failures: dict[int, str] = {}
        for row, data in enumerate(records):
            try:
                end = read(data, start)
                if end == len(data):
                    continue
                reason = f"there are {len(data) - end} bytes behind it"
            except (IndexError, struct.error):
                reason = _CUT
            except UnicodeDecodeError:
                reason = "a text of it is no UTF-8"
            except BadRecordError as error:
                reason = str(error)
            except RecursionError:
                reason = "it is nested too deeply"
            into.truncate(row)
            into.add_null()
            failures[row] = reason
        return into.finish(), failures


class AvroChecker(AvroReader):
    """The reader of records of one schema into a column that has nothing but nulls: it tells which records are
    malformed, also if the schema has a record that holds itself, which no column can have.
    """

    def __init__(self, schema: AvroType) -> None:
        self.kind = pa.null()
        self._into = Leaf(self.kind)
        skip, add = _skip(schema, {}, texts=True), self._into.add_null

        def read(data: bytes, at: int) -> int:
            at = skip(data, at)
            add()
            return at

        self._read = read


# -- numbers


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number of up to 64 bits that begins at position `at`, and the position behind it.
    BadRecordError if it has more bits, IndexError if the data end in it.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise BadRecordError("a number of it has more than 64 bits")
    if value >> 64:
        raise BadRecordError("a number of it has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _span(data: bytes, at: int) -> tuple[int, int]:
    """Return the start and the end of bytes that have their length, at position `at`, before them. BadRecordError if
    the length is below 0, IndexError if the data end before the bytes do.
    """
    size = data[at]
    if size < 128 and not size & 1:
        at += 1
        end = at + (size >> 1)
    else:
        length, at = _number(data, at)
        if length < 0:
            raise BadRecordError(f"a text or bytes of it have the length {length}")
        end = at + length
    if end > len(data):
        raise IndexError
    return at, end


def _block(data: bytes, at: int, empty: bool) -> tuple[int, int, int | None]:
    """Return the number of items of the block of an array or a map that begins at `at` (0 for the last), the position
    of its first item, and the position behind its last, None if the block does not say its size. `empty` says that
    items take no bytes: then BadRecordError if there are more than a million, else IndexError if there are more than
    bytes left.
    """
    count, at = _number(data, at)
    end = None
    if count < 0:
        count = -count
        size, at = _number(data, at)
        if size < 0:
            raise BadRecordError(f"a block of it has the size {size}")
        end = at + size
    if empty and count > MOST_EMPTY:
        raise BadRecordError(f"it has {count} items without bytes, more than {MOST_EMPTY}")
    if not empty and count > len(data) - at:
        raise IndexError
    return count, at, end


def has_no_bytes(schema: AvroType, within: tuple[AvroType, ...] = ()) -> bool:
    """Return true if no value of a schema takes a byte. `within` are the records around it, which do not count again if
    it holds them.
    """
    if schema.kind == "record":
        inner = (*within, schema)
        return all(has_no_bytes(field.kind, inner) for field in schema.fields if field.kind not in inner)
    return schema.kind == "null" or (schema.kind == "fixed" and schema.size == 0)


# -- resolution


def _resolve(writer: AvroType, reader: AvroType, into: Builder, path: str) -> Read:
    """Return the function that reads values of the writer's schema and appends them to `into`, a column of the reader's
    schema. UnresolvableError, which names the field by `path`, if no such value can be read so.
    """
    if writer.kind == "union":
        return _of_union(writer, reader, into, path)
    if reader.kind == "union":
        return _into_union(writer, reader, into, path)
    if not matches(writer, reader):
        raise UnresolvableError(f"{path or 'the record'} is {writer}, which cannot be read as {reader}")
    if writer.kind == "record":
        return _record(writer, reader, into, path)
    if writer.kind == "array":
        return _array(writer, reader, into, path)
    if writer.kind == "map":
        return _map(writer, reader, into, path)
    assert isinstance(into, Leaf)
    return _leaf(writer, reader, into, path)


def matches(writer: AvroType, reader: AvroType) -> bool:
    """Return true if values of one type may be read as the other, judged without fields, items and symbols. Enums and
    fixeds need the same name, without its namespace, or an alias of the reader's; fixeds the same size too.
    """
    if writer.kind == reader.kind:
        if writer.kind in ("enum", "fixed"):
            same = _same_name(writer, reader)
            return same and (writer.kind == "enum" or writer.size == reader.size)
        return True
    return reader.kind in PROMOTED.get(writer.kind, ())


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    names = {name.rpartition(".")[2] for name in (reader.name, *reader.aliases)}
    return writer.name.rpartition(".")[2] in names


def _of_union(writer: AvroType, reader: AvroType, into: Builder, path: str) -> Read:
    reads: list[Read] = []
    refused: list[str] = []
    for branch in writer.branches:
        try:
            reads.append(_resolve(branch, reader, into, path))
        except UnresolvableError as error:
            refused.append(str(error))
            reads.append(_refuse(str(error)))
    if len(refused) == len(reads):
        raise UnresolvableError(refused[0])
    count = len(reads)

    def read(data: bytes, at: int) -> int:
        index = data[at]
        if index < 128 and not index & 1:
            index >>= 1
            at += 1
        else:
            index, at = _number(data, at)
        if not 0 <= index < count:
            raise BadRecordError(f"{path or 'it'} has the branch {index} of a union of {count}")
        return reads[index](data, at)

    return read


def _refuse(reason: str) -> Read:
    def read(data: bytes, at: int) -> int:
        raise BadRecordError(reason)

    return read


def _into_union(writer: AvroType, reader: AvroType, into: Builder, path: str) -> Read:
    if writer.kind == "null" and reader.takes_null:
        return _null(into)
    members = reader.members
    best = best_members(writer, reader)
    for at in best:
        try:
            if len(members) == 1:
                return _resolve(writer, members[at], into, path)
            assert isinstance(into, Structs)
            return _member(_resolve(writer, members[at], into.fields[at], path), into, at)
        except UnresolvableError:
            if at == best[-1]:
                raise
    raise UnresolvableError(f"{path or 'the record'} is {writer}, which cannot be read as {reader}")


def best_members(writer: AvroType, reader: AvroType) -> list[int]:
    """Return the members of the reader's union as which values of the writer's type may be read, the best one first, as
    indexes in `reader.members`; empty if there are none.
    """
    members = reader.members
    return sorted(
        (at for at, member in enumerate(members) if matches(writer, member)),
        key=lambda at: (members[at].kind != writer.kind, not _is_same(writer, members[at]), at),
    )


def _is_same(writer: AvroType, member: AvroType) -> bool:
    return not writer.name or _same_name(writer, member)


def _member(inner: Read, into: Structs, at: int) -> Read:
    others = [field.add_null for place, field in enumerate(into.fields) if place != at]
    valid = into.valid.append

    def read(data: bytes, at: int) -> int:
        at = inner(data, at)
        for add in others:
            add()
        valid(True)
        return at

    return read


def _null(into: Builder) -> Read:
    add = into.add_null

    def read(data: bytes, at: int) -> int:
        add()
        return at

    return read


def _record(writer: AvroType, reader: AvroType, into: Builder, path: str) -> Read:
    assert isinstance(into, Structs)
    wanted, missing = field_sources(writer, reader, path)
    defaults = [(into.fields[at].add, default_of(reader.fields[at], path)) for at in missing]
    steps = []
    for field in writer.fields:
        if field.name in wanted:
            at = wanted[field.name]
            inner = below(path, field.name)
            steps.append(_resolve(field.kind, reader.fields[at].kind, into.fields[at], inner))
        else:
            steps.append(_skip(field.kind, {}))
    valid = into.valid.append

    def read(data: bytes, at: int) -> int:
        for step in steps:
            at = step(data, at)
        for add, value in defaults:
            add(value)
        valid(True)
        return at

    return read


def field_sources(writer: AvroType, reader: AvroType, path: str) -> tuple[dict[str, int], list[int]]:
    """Return, by the name of each of the writer's fields that is read, the index of the reader's field that it is read
    into; and the indexes of the reader's fields that get their defaults. A field without either raises
    UnresolvableError. Names match, or an alias of the reader's field does.
    """
    written = {field.name for field in writer.fields}
    wanted: dict[str, int] = {}
    missing = []
    for at, field in enumerate(reader.fields):
        source = next((name for name in (field.name, *field.aliases) if name in written and name not in wanted), None)
        if source is not None:
            wanted[source] = at
        elif field.has_default:
            missing.append(at)
        else:
            raise UnresolvableError(f"{below(path, field.name)} is not in it, and the reader's schema has no default")
    return wanted, missing


def _array(writer: AvroType, reader: AvroType, into: Builder, path: str) -> Read:
    assert isinstance(into, Lists)
    item = _resolve(writer.item, reader.item, into.items, f"{path}[]")
    empty = has_no_bytes(writer.item)

    def read(data: bytes, at: int) -> int:
        while True:
            count, at, end = _block(data, at, empty)
            if not count:
                break
            for _ in range(count):
                at = item(data, at)
            into.count += count
            if end is not None and at != end:
                raise BadRecordError(f"a block of {path or 'it'} has another size than it says")
        into.close()
        return at

    return read


def _map(writer: AvroType, reader: AvroType, into: Builder, path: str) -> Read:
    assert isinstance(into, Maps)
    item = _resolve(writer.item, reader.item, into.items, f"{path}[]")
    add_key = into.keys.add

    def read(data: bytes, at: int) -> int:
        while True:
            count, at, end = _block(data, at, False)
            if not count:
                break
            for _ in range(count):
                start, behind = _span(data, at)
                add_key(data[start:behind].decode())
                at = item(data, behind)
            into.count += count
            if end is not None and at != end:
                raise BadRecordError(f"a block of {path or 'it'} has another size than it says")
        into.close()
        return at

    return read


# -- values


def _leaf(writer: AvroType, reader: AvroType, into: Leaf, path: str) -> Read:
    match writer.kind:
        case "null":
            return _null(into)
        case "boolean":
            return _boolean(into)
        case "int" | "long":
            return _whole(writer, reader, into)
        case "float" | "double":
            return _floating(writer, into)
        case "enum":
            return _enum(writer, reader, into, path)
    return _bytes(writer, reader, into, path)


def _boolean(into: Leaf) -> Read:
    append = into.values.append

    def read(data: bytes, at: int) -> int:
        byte = data[at]
        if byte > 1:
            raise BadRecordError(f"a boolean of it is {byte}")
        append(byte == 1)
        return at + 1

    return read


def whole_limits(writer: AvroType, reader: AvroType) -> tuple[int, int, int]:
    """Return the least and the largest number that an encoded int or long may be, and the factor by which it is
    multiplied for the column: 1000 if milliseconds become microseconds, else 1.
    """
    low, high = (-(2**31), 2**31 - 1) if writer.kind == "int" else (-(2**63), 2**63 - 1)
    factor = 1
    if reader.logical.endswith("-millis"):
        factor = 1 if writer.logical.endswith("-micros") else 1000
    elif reader.logical.endswith("-micros"):
        factor = 1000 if writer.logical.endswith("-millis") else 1
    if factor > 1:
        low, high = max(low, -((2**63) // factor)), min(high, (2**63 - 1) // factor)
    return low, high, factor


def _whole(writer: AvroType, reader: AvroType, into: Leaf) -> Read:
    append = into.values.append
    low, high, factor = whole_limits(writer, reader)
    floating = reader.kind in ("float", "double")

    def read(data: bytes, at: int) -> int:
        byte = data[at]
        if byte < 128:
            append(((byte >> 1) ^ -(byte & 1)) * factor)
            return at + 1
        value, at = _number(data, at)
        if not low <= value <= high:
            raise BadRecordError(f"a number of it is {value}, beyond what its type holds")
        append(value * factor)
        return at

    def read_floating(data: bytes, at: int) -> int:
        value, at = _number(data, at)
        if not low <= value <= high:
            raise BadRecordError(f"a number of it is {value}, beyond what its type holds")
        append(float(value))
        return at

    return read_floating if floating else read


def _floating(writer: AvroType, into: Leaf) -> Read:
    append = into.values.append
    form = struct.Struct("<f" if writer.kind == "float" else "<d")
    unpack, size = form.unpack_from, form.size

    def read(data: bytes, at: int) -> int:
        append(unpack(data, at)[0])
        return at + size

    return read


def _enum(writer: AvroType, reader: AvroType, into: Leaf, path: str) -> Read:
    append = into.values.append
    symbols = enum_symbols(writer, reader, path)
    count = len(symbols)

    def read(data: bytes, at: int) -> int:
        index, at = _number(data, at)
        if not 0 <= index < count:
            raise BadRecordError(f"{path or 'it'} has the symbol {index} of an enum of {count}")
        symbol = symbols[index]
        if symbol is None:
            raise BadRecordError(
                f"{path or 'it'} is {writer.symbols[index]}, which the reader's enum {reader} does not have"
            )
        append(symbol)
        return at

    return read


def enum_symbols(writer: AvroType, reader: AvroType, path: str) -> list[str | None]:
    """Return, for each of the writer's symbols in order, the symbol that is read for it: the same, if the reader's enum
    has it, else the default of the reader's enum, else None. UnresolvableError if all are None.
    """
    known = set(reader.symbols)
    symbols = [symbol if symbol in known else reader.default for symbol in writer.symbols]
    if writer.symbols and not any(symbols):
        raise UnresolvableError(f"{path or 'the record'} has no symbol that the reader's enum {reader} has")
    return symbols


def _bytes(writer: AvroType, reader: AvroType, into: Leaf, path: str) -> Read:
    append = into.values.append
    convert = _conversion(writer, reader, path)
    size = writer.size

    def read_text(data: bytes, at: int) -> int:
        start, end = _span(data, at)
        append(data[start:end].decode())
        return end

    def read_bytes(data: bytes, at: int) -> int:
        start, end = _span(data, at)
        append(convert(data[start:end]))
        return end

    def read_fixed(data: bytes, at: int) -> int:
        end = at + size
        if end > len(data):
            raise IndexError
        append(convert(data[at:end]))
        return end

    if writer.kind == "fixed":
        return read_fixed
    return read_text if reader.kind == "string" else read_bytes


def _conversion(writer: AvroType, reader: AvroType, path: str) -> Callable[[bytes], Any]:
    if reader.logical == "decimal":
        if writer.logical == "decimal" and writer.scale != reader.scale:
            raise UnresolvableError(
                f"{path or 'the record'} is a decimal of scale {writer.scale}, the reader's has {reader.scale}"
            )
        return _decimal(reader.precision, reader.scale)
    if reader.logical == "uuid" and reader.kind == "fixed":
        return lambda data: str(uuid.UUID(bytes=data))
    return bytes


def _decimal(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    most = 10**precision

    def convert(data: bytes) -> Decimal:
        number = int.from_bytes(data, signed=True)
        if abs(number) >= most:
            raise BadRecordError(f"a decimal of it has more than {precision} digits")
        return WIDE.scaleb(number, -scale)

    return convert


def default_of(field: AvroField, path: str) -> Any:
    """Return the default of a field in the form that builders take. UnresolvableError if it does not fit the field's
    type.
    """
    try:
        return plain_value(field.kind, field.default)
    except (BadRecordError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UnresolvableError(
            f"the default of {below(path, field.name)} does not fit its type {field.kind}: {error}"
        ) from None


def plain_value(schema: AvroType, value: Any) -> Any:
    """Return a default, given as JSON, in the form that builders take. BadRecordError, ValueError, TypeError,
    AttributeError or OverflowError if it does not fit the schema.
    """
    if schema.kind == "union":
        members = schema.members
        for branch in schema.branches:
            try:
                made = plain_value(branch, value)
            except (BadRecordError, ValueError, TypeError, AttributeError, OverflowError):
                continue
            if branch.kind == "null" or len(members) == 1:
                return made
            return {f"member{members.index(branch)}": made}
        raise BadRecordError(f"{value!r} is of no branch")
    match schema.kind:
        case "record":
            return {
                field.name: plain_value(field.kind, value.get(field.name, field.default)) for field in schema.fields
            }
        case "array":
            if not isinstance(value, list):
                raise BadRecordError(f"{value!r} is no list")
            return [plain_value(schema.item, item) for item in value]
        case "map":
            return {key: plain_value(schema.item, item) for key, item in value.items()}
        case "bytes" | "fixed":
            data = value.encode("latin-1")
            if schema.kind == "fixed" and len(data) != schema.size:
                raise BadRecordError(f"{value!r} has {len(data)} bytes, not {schema.size}")
            return _conversion(schema, schema, "")(data)
    kinds: dict[str, tuple[type, ...]] = {
        "null": (type(None),),
        "boolean": (bool,),
        "int": (int,),
        "long": (int,),
        "float": (float, int),
        "double": (float, int),
    }
    wanted = kinds.get(schema.kind, (str,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and schema.kind != "boolean"):
        raise BadRecordError(f"{value!r} is not {schema.kind}")
    plain: Any = value
    if schema.kind in ("float", "double"):
        return float(plain)
    if schema.kind in ("int", "long"):
        low, high, factor = whole_limits(schema, schema)
        if not low <= plain <= high:
            raise BadRecordError(f"{value} is beyond what its type holds")
        return plain * factor
    if schema.kind == "enum" and plain not in schema.symbols:
        raise BadRecordError(f"{value!r} is no symbol of it")
    if isinstance(plain, str):
        plain.encode()  # a lone surrogate is no text
    return plain


# -- fields that are not wanted


def _skip(schema: AvroType, named: dict[str, list[Read]], *, texts: bool = False) -> Read:
    """Return the function that skips a value of the schema, and returns the position behind it. It checks numbers,
    indexes and sizes as a reader would, and with `texts` also the UTF-8 of texts, which else it does not. `named`
    holds, by name, the functions of records that are made so far, for a record that contains itself.
    """
    if schema.name and schema.kind == "record":
        if schema.name in named:
            return _later(named[schema.name])
        held = named[schema.name] = []
        steps = [_skip(field.kind, named, texts=texts) for field in schema.fields]

        def read(data: bytes, at: int) -> int:
            for step in steps:
                at = step(data, at)
            return at

        held.append(read)
        return read
    if schema.kind == "union":
        branches = [_skip(branch, named, texts=texts) for branch in schema.branches]

        def read_union(data: bytes, at: int) -> int:
            index, at = _number(data, at)
            if not 0 <= index < len(branches):
                raise BadRecordError(f"it has the branch {index} of a union of {len(branches)}")
            return branches[index](data, at)

        return read_union
    if schema.kind in ("array", "map"):
        return _skip_blocks(schema, _skip(schema.item, named, texts=texts), texts)
    if schema.kind in ("string", "bytes") and not (texts and schema.kind == "string"):
        return lambda data, at: _span(data, at)[1]
    if schema.kind == "null":
        return lambda data, at: at
    scratch = Leaf(arrow_type(schema))
    inner = _leaf(schema, schema, scratch, "")

    def read_leaf(data: bytes, at: int) -> int:
        at = inner(data, at)
        scratch.values.clear()
        return at

    return read_leaf


def _later(held: list[Read]) -> Read:
    """Return a function that calls the only one in `held`, which is still being made: that of a record type that
    contains itself.
    """

    def read(data: bytes, at: int) -> int:
        return held[0](data, at)

    return read


def _skip_blocks(schema: AvroType, item: Read, texts: bool) -> Read:
    with_keys = schema.kind == "map"
    empty = not with_keys and has_no_bytes(schema.item)

    def read(data: bytes, at: int) -> int:
        while True:
            count, at, end = _block(data, at, empty)
            if not count:
                return at
            for _ in range(count):
                if with_keys:
                    start, at = _span(data, at)
                    if texts:
                        data[start:at].decode()
                at = item(data, at)
            if end is not None and at != end:
                raise BadRecordError("a block of it has another size than it says")

    return read
