"""Request headers: who calls what, in which version.

Owns: the request header (v1 and v2) and what a first look at a wrong peer can tell.
Must not know: which APIs are served.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, NamedTuple

from kop.compiled import compiled
from kop.wire.messages import REQUESTS
from kop.wire.primitives import DecodeError, read_tags, skip_tags

_FIXED = struct.Struct(">hhih")

FLEXIBLE_FROM: dict[int, int] = {
    key: next((version for version in range(cls.max_version + 1) if cls.flexible_version_q(version)), 0x7FFF)
    for key, cls in REQUESTS.items()
}
"""The first version with request header v2 (the flexible one), by API key."""
_FLEXIBLE_FROM = bytes(min(FLEXIBLE_FROM.get(key, 255), 255) for key in range(max(FLEXIBLE_FROM) + 1))
"""The same as `FLEXIBLE_FROM` for compiled code, a byte for each API key; 255 if no version is flexible."""


class RequestHeader(NamedTuple):
    """The header of a request, and the position in the frame where the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def parse_header(frame: memoryview) -> RequestHeader:
    """Parse the header of a frame (without its size). DecodeError if it is malformed.

    A client id that is no UTF-8 is read as Kafka reads it, with U+FFFD for what is none: it is only a name to be shown.
    The header of an unknown API is read as version 1, which is enough to name it. ApiVersions above our newest version
    keeps header version 2, as KIP-511 promises.
    """
    try:
        api_key, version, correlation_id, length = _FIXED.unpack_from(frame, 0)
        pos = 10
        if length < 0:
            if length < -1:
                raise DecodeError("the client id has a negative length")
            client_id = None
        else:
            pos += length
            if pos > len(frame):
                raise DecodeError("the client id reaches beyond the frame")
            client_id = str(frame[10:pos], "utf-8", "replace")
        if version >= FLEXIBLE_FROM.get(api_key, 0x7FFF):
            if frame[pos] == 0:
                pos += 1
            else:
                pos = skip_tags(frame, pos, len(frame))
    except (struct.error, IndexError) as error:
        raise DecodeError(f"the request header is not readable: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id, pos)


def request_header(frame: memoryview) -> tuple[int, int, int, str | None, int]:
    """Return the fields of a request's header, those of `RequestHeader`, as a plain tuple; rules and errors are those
    of `parse_header`.
    """
    return _twin.read_header(frame, _FLEXIBLE_FROM) or parse_header(frame)


def read_header(frame: memoryview, flexible_from: bytes) -> tuple[int, int, int, str | None, int] | None:
    """Return None: without the compiled function of this name, which reads a header and returns None for a damaged
    one, `parse_header` reads every header.
    """
    return None


def header_tags(frame: memoryview, body: int) -> dict[int, bytes]:
    """Return the tagged fields, by their numbers, in the header of a flexible request whose body begins at `body`."""
    return read_tags(frame, _FIXED.size + max(int.from_bytes(frame[8:10], "big", signed=True), 0), body)[0]


def foreign_protocol(start: bytes) -> str | None:
    """Return the name of another protocol that begins with these bytes, or None.

    The first four bytes of a Kafka frame are its size; of a TLS hello or an HTTP request they are a size that no
    Kafka client sends.
    """
    if start[:2] == b"\x16\x03":
        return "a TLS hello (is the client set to security.protocol=SSL? this listener is plaintext)"
    word = start[:4]
    if word in {b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "}:
        return "an HTTP request (the metrics and health pages have a port of their own, see --http)"
    if word == b"SSH-":
        return "an SSH hello"
    return None


if TYPE_CHECKING:
    from kop import _native as _twin
else:
    _twin = compiled(sys.modules[__name__])
