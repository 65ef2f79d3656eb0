"""A strict decoder and a plain encoder over kafka-python's message classes and schemas.

Owns: how bytes become messages and messages bytes, header excluded on the way in, included on the way out.
Must not know: which versions are served, what a message means.

kafka-python compiles a decoder per message and version, too, but it trusts its peer: a string cut short is handed out
short, a negative count is an empty list, a negative length moves the read position back, and every tagged field copies
the rest of the frame. So we compile our own from the same field tree. Its promises:

- every length and count is checked against the bytes that are left before anything is made from it, and the elements of
  all arrays together are bounded;
- null only where the schema allows null, varints of five bytes at most, text is UTF-8;
- time and memory linear in the frame; tagged fields we do not know are stepped over;
- the frame ends where the message ends.

A breach is a `DecodeError`, the only exception that decoding raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias, cast
from uuid import UUID

from kafka.protocol.schemas.fields.array import ArrayField
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer
from kafka.protocol.schemas.fields.codecs.types import BitField
from kafka.protocol.schemas.fields.simple import SimpleField
from kafka.protocol.schemas.fields.struct import StructField
from kafka.protocol.schemas.fields.struct_array import StructArrayField

from kop.wire.messages import Message
from kop.wire.primitives import MOST_ELEMENTS, NO_TAGS, DecodeError, skip_tags, too_many, uvarint

Decoder: TypeAlias = Callable[[memoryview, int, int], tuple[Message, int]]

_FIXED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}
_API_VERSIONS = 18
_SCRATCH = 64 * 1024


def decode(cls: Any, version: int, data: memoryview, pos: int = 0, *, slack: int = 0) -> Message:
    """Decode the body of one message of class `cls` that fills `data` from `pos` to its end. DecodeError if it is
    malformed.

    `slack` bytes may be left over: for a client that is known to send them.
    """
    decoder = _decoder(cls, version)
    try:
        message, end = decoder(data, pos, len(data))
    except DecodeError:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise DecodeError(f"{cls.name} v{version}: {error}") from None
    if not 0 <= len(data) - end <= slack:
        raise DecodeError(f"{cls.name} v{version}: {len(data) - end} bytes after its end")
    return message


def encode_response(correlation_id: int, message: Message, header_tags: bytes = NO_TAGS) -> bytes:
    """Encode a response message (its version was given when it was made) as a whole frame: size, header, body.

    `header_tags` are the tagged fields of a flexible header, encoded: `kop.wire.primitives.encode_tags`.
    """
    flexible = message.flexible_version_q(message.API_VERSION)
    has_tags = flexible and message.API_KEY != _API_VERSIONS  # KIP-511: ApiVersions keeps the old response header
    return _framed(struct.pack(">i", correlation_id) + (header_tags if has_tags else b""), message, flexible)


def encode_request(correlation_id: int, client_id: str, message: Message, header_tags: bytes = NO_TAGS) -> bytes:
    """Encode a request message (its version was given when it was made) as a whole frame: size, header, body.

    `header_tags` are the tagged fields of a flexible header, encoded.
    """
    version = message.API_VERSION
    flexible = message.flexible_version_q(version)
    name = client_id.encode()
    head = struct.pack(">hhih", message.API_KEY, version, correlation_id, len(name)) + name
    return _framed(head + (header_tags if flexible else b""), message, flexible)


def _framed(head: bytes, message: Message, flexible: bool) -> bytes:
    """Return the frame of a message behind this header."""
    out = EncodeBuffer(_SCRATCH)
    out.pos = 4 + len(head)
    out.buf[4 : out.pos] = head
    message._struct.compiled_encode_into(message.API_VERSION, compact=flexible, tagged=flexible)(message, out)
    struct.pack_into(">i", out.buf, 0, out.pos - 4)
    return bytes(memoryview(out.buf)[: out.pos])


def refusal(response_class: type[Message], version: int, error_code: int) -> Message | None:
    """Return the response with this error code for the whole request, all else by default; None if that version has no
    such field.
    """
    field = response_class._struct.fields.get("error_code")
    if field is None or not field.for_version_q(version):
        return None
    return response_class(version=version, error_code=error_code)


def error_codes(message: Message) -> Iterator[int]:
    """Yield every error code other than zero in a response, at any depth; of rows that are tuples, as in Metadata,
    none.
    """
    for path in _error_paths(message.__class__):
        yield from _walk(message, path)


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[int]:
    for index, name in enumerate(path):
        value = getattr(value, name, None)
        if isinstance(value, list):
            for item in value:
                if isinstance(item, tuple):  # rows of Metadata's fast path: their errors are on the topic
                    return
                yield from _walk(item, path[index + 1 :])
            return
    if value:
        yield value


@cache
def _error_paths(cls: Hashable) -> tuple[tuple[str, ...], ...]:
    def visit(fields: Any, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in fields:
            if field.name in {"error_code", "partition_error_code"}:
                yield (*prefix, field.name)
            elif isinstance(field, StructArrayField | StructField):
                yield from visit(field.fields.values(), (*prefix, field.name))

    return tuple(visit(cast(Any, cls)._struct.fields.values(), ()))


def text_fields(message_class: Any) -> Iterator[str]:
    """Yield the path of each field of a message that holds text, or a list of texts: names of fields with dots between
    them.
    """

    def visit(fields: Iterable[Any], before: str) -> Iterator[str]:
        for field in fields:
            path = before + field.name
            if isinstance(field, StructArrayField | StructField):
                yield from visit(field.fields.values(), path + ".")
            elif (field.array_of if isinstance(field, ArrayField) else field)._type_str == "string":
                yield path

    return visit(message_class._struct.fields.values(), "")


# --- the compiler of decoders


def _uuid(data: memoryview, pos: int, end: int) -> UUID | None:
    if pos + 16 > end:
        raise DecodeError("a uuid reaches beyond the frame")
    raw = bytes(data[pos : pos + 16])
    return UUID(bytes=raw) if raw != _ZERO_UUID else None


_ZERO_UUID = bytes(16)


class _Source:
    """The source code of a decoder under construction: lines of Python, names for its variables, the objects it refers
    to.
    """

    def __init__(self) -> None:
        self.lines = ["def decode(data, pos, end):"]
        self.names: dict[str, Any] = {
            "DecodeError": DecodeError,
            "uvarint": uvarint,
            "skip_tags": skip_tags,
            "too_many": too_many,
            "uuid": _uuid,
            "new": object.__new__,
            "bits": BitField.from_32_bit_field,
        }
        self._count = 0

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def refer(self, prefix: str, value: Any) -> str:
        name = self.name(prefix)
        self.names[name] = value
        return name


@cache
def _decoder(cls: Any, version: int) -> Decoder:
    source = _Source()
    source.add(1, f"room = {MOST_ELEMENTS}")
    flexible = cls.flexible_version_q(version)
    _struct(source, 1, "message", cls._struct, cls, version, flexible)
    source.add(1, "return message, pos")
    exec(compile("\n".join(source.lines), f"<decoder of {cls.name} v{version}>", "exec"), source.names)
    decoder: Decoder = source.names["decode"]
    return decoder


def _struct(src: _Source, depth: int, var: str, field: Any, data_class: Any, version: int, flexible: bool) -> None:
    """Add code to `src` that decodes the fields of a struct of this version into a new object of `data_class`, which
    the code calls `var`. `depth` is its indentation.
    """
    src.add(depth, f"{var} = new({src.refer('cls', data_class)})")
    src.add(depth, f"{var}._version = {version}; {var}.tags = None; {var}.unknown_tags = None")
    fields = field.untagged_fields(version)
    index = 0
    while index < len(fields):
        run = []
        while index < len(fields) and isinstance(fields[index], SimpleField) and fields[index]._type_str in _FIXED:
            run.append(fields[index])
            index += 1
        if run:
            fixed = struct.Struct(">" + "".join(_FIXED[f._type_str] for f in run))
            targets = ", ".join(f"{var}.{f.name}" for f in run)
            src.add(
                depth, f"{targets}{',' if len(run) == 1 else ''} = {src.refer('fix', fixed.unpack_from)}(data, pos)"
            )
            src.add(depth, f"pos += {fixed.size}")
        else:
            value = src.name("v")
            _field(src, depth, value, fields[index], version, flexible)
            src.add(depth, f"{var}.{fields[index].name} = {value}")
            index += 1
    if flexible:
        _tags(src, depth, var, field, version)


def _tags(src: _Source, depth: int, var: str, field: Any, version: int) -> None:
    known = [f for f in field._fields if f.for_version_q(version) and f.tagged_field_q(version)]
    if not known:
        src.add(depth, "if data[pos] == 0: pos += 1")
        src.add(depth, "else: pos = skip_tags(data, pos, end)")
        return
    count, tag, size, stop = src.name("n"), src.name("tag"), src.name("size"), src.name("stop")
    src.add(depth, f"{count}, pos = uvarint(data, pos)")
    src.add(depth, f"for _ in range({count}):")
    src.add(depth + 1, f"{tag}, pos = uvarint(data, pos)")
    src.add(depth + 1, f"{size}, pos = uvarint(data, pos)")
    src.add(depth + 1, f"{stop} = pos + {size}")
    src.add(depth + 1, f"if {stop} > end: raise DecodeError('a tagged field reaches beyond the frame')")
    for number, inner in enumerate(known):
        value = src.name("v")
        src.add(depth + 1, f"{'el' if number else ''}if {tag} == {inner._tag}:")
        _field(src, depth + 2, value, inner, version, True)
        src.add(depth + 2, f"{var}.{inner.name} = {value}")
        src.add(depth + 2, f"if {var}.tags is None: {var}.tags = set()")
        src.add(depth + 2, f"{var}.tags.add({inner.name!r})")
        src.add(depth + 2, f"if pos != {stop}: raise DecodeError('tagged field {inner.name} has the wrong size')")
    src.add(depth + 1, f"else: pos = {stop}")


def _field(src: _Source, depth: int, var: str, field: Any, version: int, flexible: bool) -> None:
    """Add code to `src` that decodes one field into the variable `var`: one that is not of fixed size, or that stands
    alone.
    """
    if isinstance(field, ArrayField):
        _array(src, depth, var, field, version, flexible)
    elif isinstance(field, StructField):
        if field.nullable_for_version_q(version):
            src.add(depth, "pos += 1")
            src.add(depth, f"if data[pos - 1] >= 0x80: {var} = None")
            src.add(depth, "else:")
            depth += 1
        _struct(src, depth, var, field, field.data_class, version, flexible)
    else:
        _simple(src, depth, var, field, version, flexible)


def _array(src: _Source, depth: int, var: str, field: Any, version: int, flexible: bool) -> None:
    count = src.name("n")
    _length(src, depth, count, field, version, flexible, "i")
    src.add(depth, f"if {count} > end - pos: raise DecodeError('{field.name}: more elements than bytes')")
    src.add(depth, f"if {count} < 0: {var} = None")
    src.add(depth, "else:")
    src.add(depth + 1, f"room -= {count}")
    src.add(depth + 1, "if room < 0: raise too_many()")
    inner, item = field.array_of, src.name("item")
    if isinstance(inner, SimpleField) and inner._type_str in _FIXED:
        code = _FIXED[inner._type_str]
        unpack = src.refer("unpack", struct.unpack_from)
        src.add(depth + 1, f"{var} = list({unpack}('>%d{code}' % {count}, data, pos))")
        src.add(depth + 1, f"pos += {count} * {struct.calcsize('>' + code)}")
        return
    src.add(depth + 1, f"{var} = []")
    src.add(depth + 1, f"for _ in range({count}):")
    if isinstance(field, StructArrayField):
        _struct(src, depth + 2, item, inner, field.data_class, version, flexible)
    else:
        _simple(src, depth + 2, item, inner, -1, flexible)  # elements of arrays are never null
    src.add(depth + 2, f"{var}.append({item})")


def _length(src: _Source, depth: int, var: str, field: Any, version: int, flexible: bool, code: str) -> None:
    """Add code to `src` that reads the length or count before a field into `var`; -1 stands for null, which is an error
    unless the schema allows it. `code` is the struct code of a length that is not compact.
    """
    if flexible:
        src.add(depth, f"{var}, pos = uvarint(data, pos)")
        src.add(depth, f"{var} -= 1")
    else:
        fixed = struct.Struct(">" + code)
        src.add(depth, f"{var}, = {src.refer('fix', fixed.unpack_from)}(data, pos)")
        src.add(depth, f"pos += {fixed.size}")
    if field.nullable_for_version_q(version):
        if not flexible:
            src.add(depth, f"if {var} < -1: raise DecodeError('{field.name}: negative length')")
    else:
        src.add(depth, f"if {var} < 0: raise DecodeError('{field.name} is null or has a negative length')")


def _simple(src: _Source, depth: int, var: str, field: Any, version: int, flexible: bool) -> None:
    kind = field._type_str
    if kind in _FIXED:
        fixed = struct.Struct(">" + _FIXED[kind])
        src.add(depth, f"{var}, = {src.refer('fix', fixed.unpack_from)}(data, pos)")
        src.add(depth, f"pos += {fixed.size}")
    elif kind == "uuid":
        src.add(depth, f"{var} = uuid(data, pos, end)")
        src.add(depth, "pos += 16")
    elif kind == "bitfield":
        src.add(depth, f"{var} = bits({src.refer('fix', struct.Struct('>I').unpack_from)}(data, pos)[0])")
        src.add(depth, f"if {var} == {{31}}: {var} = None")
        src.add(depth, "pos += 4")
    else:
        size, stop = src.name("n"), src.name("stop")
        _length(src, depth, size, field, version, flexible, "h" if kind == "string" else "i")
        src.add(depth, f"if {size} < 0: {var} = None")
        src.add(depth, "else:")
        src.add(depth + 1, f"{stop} = pos + {size}")
        src.add(depth + 1, f"if {stop} > end: raise DecodeError('{field.name} reaches beyond the frame')")
        make = f"str(data[pos:{stop}], 'utf-8')" if kind == "string" else f"bytes(data[pos:{stop}])"
        src.add(depth + 1, f"{var} = {make}")
        src.add(depth + 1, f"pos = {stop}")
