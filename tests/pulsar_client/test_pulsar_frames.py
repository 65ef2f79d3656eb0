"""A stream cut at every place is the same frames."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_client.pulsar_kit import TWINS
from support.fake_pulsar import encode, entry_bytes

from kop.pulsar_client import frames as frames_module
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.frames import Frames
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Received


def feed(frames: Frames, data: bytes) -> None:
    """As a socket does: as much at a time as there is room for."""
    while data:
        buffer = frames.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        frames.updated(count)
        data = data[count:]


Command = pb.BaseCommand
PONG = encode(Command(type=Command.PONG, pong=pb.CommandPong()))


def receipt(producer_id: int, sequence_id: int) -> bytes:
    told = pb.CommandSendReceipt(
        producer_id=producer_id, sequence_id=sequence_id, message_id=pb.MessageIdData(ledgerId=7, entryId=sequence_id)
    )
    return encode(Command(type=Command.SEND_RECEIPT, send_receipt=told))


def message(number: int, payload: bytes) -> bytes:
    told = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=7, entryId=number))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    return encode(Command(type=Command.MESSAGE, message=told), entry_bytes(metadata, payload))


def kept(received: Received) -> list[object]:
    """What is received, in a form that outlasts the call: receipts one by one, the payload of a message."""
    if isinstance(received, list):
        return list(received)
    return [bytes(received[7])] if isinstance(received, tuple) else [received]


class Seen(list[object]):
    """What a connection was handed."""

    def take(self, received: Sequence[Received]) -> None:
        for each in received:
            self.extend(kept(each))


@pytest.fixture(params=TWINS, autouse=True)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "twin", request.param)


ONES = st.one_of(
    st.integers(0, 9).map(lambda number: (receipt(1, number), (1, number, 0, 7, number))),
    st.binary(max_size=80).map(lambda payload: (message(3, payload), payload)),
    st.just((PONG, PONG[8:])),
)


@given(
    ones=st.lists(ONES, max_size=8),
    cuts=st.lists(st.integers(0, 900), max_size=8),
    room=st.integers(5, 400),
    every_byte=st.booleans(),
)
def test_frames_are_the_same_however_they_come(
    ones: list[tuple[bytes, object]], cuts: list[int], room: int, every_byte: bool
) -> None:
    seen = Seen()
    frames = Frames(seen.take, memoryview(bytearray(room)))
    data = b"".join(frame for frame, _ in ones)
    edges = range(len(data) + 1) if every_byte else sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(edges):
        feed(frames, data[begin:end])

    def of_kind(frames: list[object], kind: type) -> list[object]:
        return [frame for frame in frames if isinstance(frame, kind)]

    expected = [frame for _, frame in ones]
    assert of_kind(seen, bytes) == of_kind(expected, bytes)
    assert of_kind(seen, tuple) == of_kind(expected, tuple)
    if every_byte:
        assert seen == expected


def test_two_connections_share_a_buffer() -> None:
    shared = memoryview(bytearray(64))
    of_first, of_second = Seen(), Seen()
    first, second = Frames(of_first.take, shared), Frames(of_second.take, shared)
    left, right = message(1, b"a" * 30) + message(2, b"b"), message(1, b"c" * 9) + message(2, b"d" * 40)
    for at in range(0, max(len(left), len(right)), 3):
        feed(first, left[at : at + 3])
        feed(second, right[at : at + 3])
    assert of_first == [b"a" * 30, b"b"]
    assert of_second == [b"c" * 9, b"d" * 40]


def test_messages_that_come_in_one_read_are_not_copied() -> None:
    seen: list[tuple[bool, bool]] = []
    shared = memoryview(bytearray(256))

    def take(received: Sequence[Received]) -> None:
        for each in received:
            assert isinstance(each, tuple)
            seen.append((each[7].obj is shared.obj, each[7].readonly))

    feed(Frames(take, shared), message(1, b"small") + message(2, b"other"))
    assert seen == [(True, True), (True, True)]


def test_a_producer_gets_all_its_receipts_of_a_read_at_once() -> None:
    seen: list[Received] = []
    gone = encode(
        Command(type=Command.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=2))
    )
    frames = Frames(seen.extend)
    feed(frames, receipt(1, 1) + receipt(2, 5) + receipt(1, 2) + gone + receipt(1, 3) + receipt(1, 4))
    assert seen == [
        [(1, 1, 0, 7, 1), (1, 2, 0, 7, 2)],
        [(2, 5, 0, 7, 5)],
        gone[8:],  # what it says must not come before receipts that the broker sent before it
        [(1, 3, 0, 7, 3), (1, 4, 0, 7, 4)],
    ]


@pytest.mark.parametrize(
    ("first", "says"),
    [(b"HTTP/1.1 400 Bad Request", "HTTP server"), (b"\x15\x03\x03\x00\x02", "TLS server"), (b"\x7fELF", "2135247942")],
)
def test_another_protocol_is_named(first: bytes, says: str) -> None:
    with pytest.raises(PulsarError, match=says) as caught:
        feed(Frames(lambda received: None), first)
    assert caught.value.code == "FrameError"


def test_the_limit_is_the_connections() -> None:
    seen = Seen()
    frames = Frames(seen.take)
    frames.limit = len(message(1, b"x" * 10)) - 4
    feed(frames, message(1, b"x" * 10))
    with pytest.raises(PulsarError, match="44 bytes"):
        feed(frames, PONG + message(2, b"y" * 11))
    assert seen == [b"x" * 10, PONG[8:]]  # what came before is handed out


@pytest.mark.parametrize(
    ("rubbish", "says"),
    [
        (b"", "without a command"),
        (b"\0\0\0", "without a command"),
        (b"\0\0\0\2\x08", "longer than its frame"),
        (b"\0\0\0\2\x08\xff", "cannot be read"),
        (b"\0\0\0\3\x3a\x01\x08", "cannot be read"),
    ],
)
def test_a_frame_that_cannot_be_read(rubbish: bytes, says: str) -> None:
    seen = Seen()
    with pytest.raises(PulsarError, match=says) as caught:
        feed(Frames(seen.take), PONG + len(rubbish).to_bytes(4, "big") + rubbish + PONG)
    assert caught.value.code == "FrameError"
    assert seen == [PONG[8:]]
