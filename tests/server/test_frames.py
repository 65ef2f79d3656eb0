"""Cutting a stream into frames, with no socket: any cut of the bytes gives the same frames."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.errors import FrameError
from kop.server.frames import FIRST_MEMORY, FrameSplitter

LARGEST = 1 << 20


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def cut(splitter: FrameSplitter, piece: bytes) -> list[bytes]:
    """The frames that `piece` makes whole, as a connection asks for them."""
    data, _ = splitter.joined(memoryview(piece))
    frames: list[bytes] = []
    pos = 0
    if splitter.incomplete is not None:
        pos, _ = splitter.incomplete.take(data)
        whole = splitter.completed()
        if whole is None:
            return frames
        frames.append(bytes(whole))
    while pos < len(data):
        frame = splitter.next(data, pos, plenty=False)
        if frame is None:
            break
        frames.append(bytes(frame))
        pos += 4 + len(frame)
    return frames


def test_a_byte_at_a_time() -> None:
    bodies = [bytes([number]) * size for number, size in enumerate([10, 11, 200, 10, 5000])]
    splitter = FrameSplitter(LARGEST)
    frames = [frame for byte in b"".join(map(framed, bodies)) for frame in cut(splitter, bytes([byte]))]
    assert frames == bodies
    assert splitter.incomplete is None


def test_all_in_one_piece_gives_views_into_it() -> None:
    stream = memoryview(framed(b"a" * 10) + framed(b"b" * 20))
    splitter = FrameSplitter(LARGEST)
    first = splitter.next(stream, 0)
    assert first is not None
    assert first.obj is stream.obj
    assert bytes(first) == b"a" * 10


def test_a_frame_that_is_not_taken_may_be_asked_for_again() -> None:
    stream = memoryview(framed(b"a" * 10) + framed(b"b" * 20))
    splitter = FrameSplitter(LARGEST)
    assert splitter.next(stream, 14) == splitter.next(stream, 14) == b"b" * 20


@given(st.lists(st.binary(min_size=10, max_size=300), max_size=20), st.randoms(use_true_random=False))
def test_any_cut_gives_the_same_frames(bodies: list[bytes], chance: random.Random) -> None:
    stream = b"".join(map(framed, bodies))
    splitter = FrameSplitter(LARGEST)
    frames: list[bytes] = []
    while stream:
        count = chance.randint(1, len(stream))
        frames += cut(splitter, stream[:count])
        stream = stream[count:]
    assert frames == bodies


def test_memory_grows_with_what_has_arrived_and_not_with_what_the_size_claims() -> None:
    splitter = FrameSplitter(100 << 20)
    assert splitter.next(memoryview(struct.pack(">i", 100 << 20) + bytes(10)), 0, plenty=False) is None
    frame = splitter.incomplete
    assert frame is not None
    assert len(frame.buffer) == FIRST_MEMORY
    while frame.filled < 1 << 20:
        frame.take(memoryview(bytes(1000)))
        assert len(frame.buffer) <= 2 * frame.filled + FIRST_MEMORY


def test_the_size_arrives_in_two_pieces() -> None:
    for count in (1, 2, 3):
        splitter = FrameSplitter(LARGEST)
        whole = framed(b"x" * 10)
        assert cut(splitter, whole[:count]) == []
        assert cut(splitter, whole[count:]) == [b"x" * 10]


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (struct.pack(">i", 9) + bytes(9), "too small"),
        (struct.pack(">i", 0), "too small"),
        (struct.pack(">i", -1), "too small"),
        (struct.pack(">i", LARGEST + 1), "socket.request.max.bytes"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"SSH-2.0-OpenSSH", "SSH"),
    ],
)
def test_what_is_no_request_is_an_error_that_says_what_it_is(start: bytes, told: str) -> None:
    with pytest.raises(FrameError, match=told):
        cut(FrameSplitter(LARGEST), start)


def test_another_protocol_is_looked_for_at_the_first_frame_only() -> None:
    splitter = FrameSplitter(0x7FFFFFFF)
    assert cut(splitter, framed(b"x" * 10)) == [b"x" * 10]
    assert cut(splitter, b"GET / HTTP/1.1\r\n") == []
    assert splitter.incomplete is not None
    assert splitter.incomplete.size == int.from_bytes(b"GET ", "big")


def test_after_clear_nothing_is_left() -> None:
    splitter = FrameSplitter(LARGEST)
    cut(splitter, framed(b"x" * 100)[:50])
    splitter.clear()
    assert cut(splitter, framed(b"y" * 10)) == [b"y" * 10]
