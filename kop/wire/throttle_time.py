"""The throttle time in an answer that is encoded already.

Owns: where it is. It depends on what the answer cost, which is known last; and whoever encodes answers, compiled code
and caches among them, need not know of it.
Must not know: why a client is held.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from kop.wire.messages import ApiVersionsResponse, ProduceResponse

Frame: TypeAlias = Sequence[bytes | bytearray | memoryview]
_INT32: Final = struct.Struct(">i")
_HEADER: Final = 8
"""The bytes of the size and the correlation id."""
_MOST: Final = 2**31 - 1
_SIZES: Final = {"int16": 2}
"""The sizes of fields that come before it in some answer."""


@cache
def place(response_class: Any, version: int) -> int | None:
    """Return the position of the throttle time in an encoded answer, a negative one from its end; None if an answer of
    that version has none.

    ApiVersions has it behind a list of any length, so that is None as well.
    """
    flexible = int(response_class.flexible_version_q(version))
    fields = [field for field in response_class._struct.fields.values() if field.for_version_q(version)]
    names = [field.name for field in fields]
    if "throttle_time_ms" not in names or response_class is ApiVersionsResponse:
        return None
    if response_class is ProduceResponse or names[-1] == "throttle_time_ms":
        return -4 - flexible
    before: list[int] = [_SIZES[field._type_str] for field in fields[: names.index("throttle_time_ms")]]
    return _HEADER + flexible + sum(before)


def with_throttle_time(frame: Frame, at: int, milliseconds: int) -> Frame:
    """Return a copy of an encoded answer, whose throttle time is at `at` (see `place`), with a throttle time of at
    least so many milliseconds. Buffers without it are not copied.
    """
    buffers = list(frame)
    at += sum(map(len, buffers)) if at < 0 else 0
    index = 0
    while at >= len(buffers[index]):
        at -= len(buffers[index])
        index += 1
    changed = bytearray(buffers[index])
    _INT32.pack_into(changed, at, max(_INT32.unpack_from(changed, at)[0], min(milliseconds, _MOST)))
    buffers[index] = changed
    return buffers
