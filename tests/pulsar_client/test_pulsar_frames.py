"""A stream cut at every place is the same frames."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.frames import Frames


def feed(frames: Frames, data: bytes) -> None:
    """As a socket does: as much at a time as there is room for."""
    while data:
        buffer = frames.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        frames.updated(count)
        data = data[count:]


def stream(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


@given(
    bodies=st.lists(st.binary(max_size=80), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    room=st.integers(5, 64),
)
def test_frames_are_the_same_however_they_come(bodies: list[bytes], cuts: list[int], room: int) -> None:
    seen: list[bytes] = []

    def on_frame(frame: memoryview) -> None:
        assert frame.readonly
        seen.append(bytes(frame))

    frames = Frames(on_frame, memoryview(bytearray(room)))
    data = stream(bodies)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(edges):
        feed(frames, data[begin:end])
    assert seen == bodies


def test_two_connections_share_a_buffer() -> None:
    shared = memoryview(bytearray(16))
    one: list[bytes] = []
    two: list[bytes] = []
    first = Frames(lambda frame: one.append(bytes(frame)), shared)
    second = Frames(lambda frame: two.append(bytes(frame)), shared)
    left, right = stream([b"a" * 30, b"b"]), stream([b"c" * 9, b"d" * 40])
    for at in range(0, max(len(left), len(right)), 3):
        feed(first, left[at : at + 3])
        feed(second, right[at : at + 3])
    assert one == [b"a" * 30, b"b"]
    assert two == [b"c" * 9, b"d" * 40]


def test_a_frame_that_comes_in_one_read_is_not_copied() -> None:
    seen: list[memoryview] = []
    shared = memoryview(bytearray(64))
    feed(Frames(seen.append, shared), stream([b"small", b"other"]))
    assert [frame.obj is shared.obj for frame in seen] == [True, True]


@pytest.mark.parametrize(
    ("first", "says"),
    [(b"HTTP/1.1 400 Bad Request", "HTTP server"), (b"\x15\x03\x03\x00\x02", "TLS server"), (b"\x7fELF", "2135247942")],
)
def test_another_protocol_is_named(first: bytes, says: str) -> None:
    with pytest.raises(PulsarError, match=says) as caught:
        feed(Frames(lambda frame: None), first)
    assert caught.value.code == "FrameError"


def test_the_limit_is_the_connections() -> None:
    seen: list[memoryview] = []
    frames = Frames(seen.append)
    frames.limit = 10
    feed(frames, stream([b"x" * 10]))
    assert len(seen) == 1
    with pytest.raises(PulsarError, match="11 bytes"):
        feed(frames, stream([b"x" * 11]))
