"""Damage to frames and bodies, drawn from a seeded `random.Random`.

Owns: the mutations.
Must not know: the protocol, but for the few byte patterns that make trouble.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

LARGEST = 300_000
"""Bytes that a mutation makes of a smaller input at most."""

_EXTREMES = [
    *(struct.pack(">i", value) for value in (0, -1, -2, 1, 2**31 - 1, -(2**31), 65536, 1 << 18, 1 << 24)),
    *(struct.pack(">h", value) for value in (0, -1, -2, 1, 2**15 - 1, -(2**15))),
    *(struct.pack(">q", value) for value in (0, -1, -2, 1, 2**63 - 1, -(2**63), 2**31, 2**32)),
]
_VARINTS = [
    b"\0",
    b"\1",
    b"\x80\0",  # zero, written in two bytes
    b"\x7f",
    b"\xff\xff\xff\xff\x0f",  # 2^32-1
    b"\x80\x80\x80\x80\x10",  # 2^32
    b"\xff\xff\xff\xff\x07",  # 2^31-1
    b"\xff" * 9 + b"\1",
    b"\x80" * 10,
]
_TAGS = [
    b"\1\0\0",  # one empty tag
    b"\2\0\0\0\0",  # the same tag twice
    b"\1\x63\3abc",
    b"\1\0\xff\xff\xff\xff\x0f",
    b"\x03\1\1\0\0\1\0\2\1\0",  # not in order
    b"\xff\xff\xff\xff\x0f",
]


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _extend(rng: random.Random, data: bytearray) -> None:
    data += rng.choice([b"\0", b"\xff", rng.randbytes(rng.randrange(1, 40)), bytes(rng.randrange(1, 3000))])


def _flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice(b"\0\1\x7f\x80\xff")


def _extreme(rng: random.Random, data: bytearray) -> None:
    value = rng.choice(_EXTREMES)
    at = rng.randrange(len(data))
    data[at : at + len(value)] = value


def _varint(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at : at + 1] = rng.choice(_VARINTS)


def _tags(rng: random.Random, data: bytearray) -> None:
    """Where a byte of zero may be an empty section of tagged fields, put one that is not."""
    zeros = [at for at, byte in enumerate(data[-200:], max(0, len(data) - 200)) if byte == 0]
    if zeros:
        at = rng.choice(zeros)
        data[at : at + 1] = rng.choice(_TAGS)


def _duplicate(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.choice([1, 2, 4, 8, 16, 64, 500])]
    at = rng.choice([start, rng.randrange(len(data))])
    data[at:at] = piece * rng.choice([1, 1, 2, 10, 300])


def _remove(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice([1, 1, 2, 4, 8, 30])]


_MUTATIONS: Sequence[Callable[[random.Random, bytearray], None]] = (
    _truncate,
    _extend,
    _flip,
    _flip,
    _set_byte,
    _set_byte,
    _extreme,
    _extreme,
    _varint,
    _tags,
    _duplicate,
    _remove,
)


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to three mutations of `data`, one in ten a splice with one of `others`."""
    out = bytearray(data)
    if others and rng.random() < 0.1:
        other = rng.choice(others)
        out = out[: rng.randrange(len(out) + 1)] + other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if out:
            rng.choice(_MUTATIONS)(rng, out)
    return bytes(out[: max(LARGEST, len(data))])


def sized(payload: bytes) -> bytes:
    """A frame of `payload` with its true size."""
    return struct.pack(">i", len(payload)) + payload


def mutate_frame(rng: random.Random, frame: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Damage a frame: mostly what is in it, its size made to fit; now and then its header or its size."""
    kind = rng.random()
    if kind < 0.1:
        return mutate(rng, frame, others)
    payload = bytearray(frame[4:])
    if kind < 0.2 and len(payload) >= 4:
        key, version = struct.unpack_from(">hh", payload)
        if rng.random() < 0.5:
            version = max(-(2**15), min(2**15 - 1, version + rng.choice([-1, 1, 1, 100, -100])))
        else:
            key = rng.choice([key ^ 1, rng.randrange(-3, 100), -(2**15), 2**15 - 1])
        struct.pack_into(">hh", payload, 0, key, version)
        return sized(bytes(payload))
    if kind < 0.85 and len(payload) > 16:  # the header stays: what is behind it is reached
        return sized(bytes(payload[:14]) + mutate(rng, bytes(payload[14:]), [other[18:] for other in others[:50]]))
    return sized(mutate(rng, bytes(payload), [other[4:] for other in others[:50]]))
