"""A connection against a fake transport and pipeline: framing, order, back-pressure and the end, by name.

The rules of order for any interleaving are in test_order.py; what sockets do is in test_server.py.
"""

from __future__ import annotations

import logging
import random
import tracemalloc

import pytest
from support.fake_peer import FakePipeline, Peer, answer, finish, frame, play, settle

from kop.server.listener import Server

MIB = 1024 * 1024


def mixed(count: int, seed: int = 1) -> tuple[list[str], bytes]:
    """A pipeline of requests of all kinds."""
    rng = random.Random(seed)
    kinds = [rng.choice(["produce", "produce", "acks0", "now", "now", "wait", "later", "poll"]) for _ in range(count)]
    return kinds, b"".join(frame(kind, number, rng.choice([10, 11, 64])) for number, kind in enumerate(kinds))


def wanted(kinds: list[str]) -> list[int]:
    return [number for number, kind in enumerate(kinds) if kind != "acks0"]


# --- framing


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 13, 64, 1 << 30])
def test_hundreds_of_mixed_requests_in_pieces_of_any_size(step: int) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        kinds, stream = mixed(400)
        peer = Peer(server)
        for pos in range(0, len(stream), step):
            peer.send(stream[pos : pos + step])
        await finish(peer, fake)
        assert fake.started == list(range(400))
        assert peer.answered == wanted(kinds)

    play(main)


def test_a_pipeline_cut_in_two_at_every_byte() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        kinds, stream = mixed(12)
        for cut in range(1, len(stream)):
            fake.started.clear()
            fake.produces.clear()
            fake.waiting.clear()
            peer = Peer(server)
            peer.send(stream[:cut])
            await settle(3)
            peer.send(stream[cut:])
            await finish(peer, fake)
            assert fake.started == list(range(12))
            assert peer.answered == wanted(kinds)

    play(main)


@pytest.mark.parametrize("size", [256 * 1024 - 4, 256 * 1024 - 3, 256 * 1024, MIB, MIB + 1, 5 * MIB + 7])
def test_a_frame_as_large_as_the_receive_buffer_and_larger(size: int) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("now", 0) + frame("produce", 1, size) + frame("produce", 2, size) + frame("now", 3))
        assert fake.started == [0, 1, 2]
        await finish(peer, fake)
        assert peer.answered == [0, 1, 2, 3]

    play(main)


def test_a_size_split_between_two_pieces() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        for number in range(30):
            data = frame("now", number, 300_000 if number % 7 == 6 else 20)
            cut = 1 + number % 3
            peer.send(data[:cut])
            assert len(fake.started) == number
            peer.send(data[cut:])
        assert peer.answered == list(range(30))

    play(main)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 9, 2**31 - 1, 104_857_601])
def test_a_size_that_cannot_be_closes_with_one_log_line(size: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("now", 0))
        with caplog.at_level(logging.INFO):
            peer.send(size.to_bytes(4, "big", signed=True) + bytes(100))
            peer.send(bytes(100))
            await settle()
        assert peer.transport.lost
        assert fake.started == [0]

    play(main)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(size) in caplog.text


@pytest.mark.parametrize(
    ("hello", "name"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS hello"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request"),
        (b"POST /api HTTP/1.1\r\n\r\n", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP request"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "an SSH hello"),
    ],
)
@pytest.mark.parametrize("step", [1, 4, 1000])
def test_another_protocol_is_named_in_the_log(
    hello: bytes, name: str, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        for pos in range(0, len(hello), step):
            peer.send(hello[pos : pos + step])
        await settle()
        assert peer.transport.lost

    play(main)
    assert len(caplog.records) == 1
    assert f"closing the connection of 10.0.0.1: this is {name}" in caplog.text


# --- order


def test_produce_waits_overlap_and_are_answered_in_order() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(b"".join(frame("produce", number) for number in range(5)))
        assert fake.started == [0, 1, 2, 3, 4]
        for number in (3, 1, 4, 2):
            fake.complete(number)
            await settle()
            assert peer.answered == []
        fake.complete(0)
        await settle()
        assert peer.answered == [0, 1, 2, 3, 4]

    play(main)


def test_acks_0_has_no_answer_and_keeps_its_place() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("acks0", 0) + frame("produce", 1) + frame("now", 2))
        fake.complete(1)
        await settle()
        assert peer.answered == []
        assert fake.started == [0, 1]
        fake.complete(0)
        await settle()
        assert peer.answered == [1, 2]

    play(main)


@pytest.mark.parametrize("kind", ["now", "wait", "later", "poll", "join"])
def test_another_request_waits_for_the_produces_before_it(kind: str) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("produce", 0) + frame("produce", 1) + frame(kind, 2) + frame("produce", 3))
        assert fake.started == [0, 1]
        fake.complete(1)
        await settle()
        assert fake.started == [0, 1]
        fake.complete(0)
        await settle()
        assert fake.started[:3] == [0, 1, 2]
        await finish(peer, fake)
        assert peer.answered == [0, 1, 2, 3]

    play(main)


@pytest.mark.parametrize("kind", ["wait", "later", "poll", "join"])
def test_nothing_is_started_behind_a_request_that_waits(kind: str) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame(kind, 0) + frame("now", 1) + frame("produce", 2))
        peer.send(frame("now", 3))
        await settle()
        assert fake.started == [0]
        fake.complete(0)
        await settle()
        assert fake.started == [0, 1, 2]
        await finish(peer, fake)
        assert peer.answered == [0, 1, 2, 3]

    play(main)


def test_a_frame_that_became_whole_behind_a_request_that_waits_is_not_copied_again() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("wait", 0) + frame("produce", 1, 40_000))
        fake.complete(0)
        await settle()
        big = frame("produce", 2, 3 * MIB)
        peer.send(big[: 2 * MIB])
        peer.connection.pause_writing()
        peer.send(big[2 * MIB :] + frame("produce", 3))
        assert fake.started == [0, 1]
        assert server.memory.used < 4 * MIB
        peer.connection.resume_writing()
        assert fake.started == [0, 1, 2, 3]
        assert fake.owned == [False, True, True, True] or fake.owned[2]
        await finish(peer, fake)

    play(main)


# --- the loop is shared


def test_thousands_of_tiny_requests_held_back_do_not_nest() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("wait", 0))
        peer.send(b"".join(frame("now", number) for number in range(1, 20_001)))
        fake.complete(0)
        while len(fake.started) < 20_001:
            await settle()
            peer.pump()
        assert peer.answered == list(range(20_001))

    play(main)


def test_answers_that_become_ready_in_one_turn_of_the_loop_are_one_write_for_each_connection() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peers = [Peer(server), Peer(server)]
        for number in range(20):
            peers[number % 2].send(frame("produce", number))
        for number in reversed(range(20)):
            fake.answers[number].give((answer(number),))
        await settle()
        for first, peer in enumerate(peers):
            assert len(peer.transport.written) == 1
            assert peer.answered == list(range(first, 20, 2))
        assert server.memory.used == 0

    play(main)


def test_an_answer_of_one_connection_that_cannot_be_written_keeps_no_other_from_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        broken, other = Peer(server), Peer(server)
        broken.send(frame("produce", 0))
        other.send(frame("produce", 1))
        monkeypatch.setattr(broken.transport, "write", None)
        for number in range(2):
            fake.answers[number].give((answer(number),))
        await settle()
        assert broken.transport.lost
        assert other.answered == [1]

    play(main)


def test_thousands_of_tiny_produces_that_end_at_once_do_not_nest() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        stream = b"".join(frame("produce", 2 * i) + frame("now", 2 * i + 1) for i in range(5000))
        peer.send(stream)
        await finish(peer, fake)
        assert peer.answered == list(range(10_000))

    play(main)


def test_a_flood_of_requests_in_one_piece_lets_others_have_their_turn() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        fake.pace = 1.0
        flood, other = Peer(server), Peer(server)
        flood.send(b"".join(frame("now", number) for number in range(1000)))
        assert len(fake.started) < 10
        other.send(frame("now", 5000))
        assert other.answered == [5000]
        while len(flood.answered) < 1000:
            await settle()
            flood.pump()
        assert flood.answered == list(range(1000))

    play(main)


def test_a_client_that_sends_byte_by_byte_behind_a_long_poll_costs_no_object_a_byte() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("poll", 0))
        tracemalloc.start()
        try:
            for byte in frame("now", 1, 60_000)[:50_000]:
                peer.send(bytes((byte,)))
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 1_000_000  # an object for each would be 10 MB
        assert server.memory.used < 60_000

    play(main)


def test_reading_stops_behind_a_long_poll_and_goes_on_after_it() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("poll", 0) + b"".join(frame("now", number, 1000) for number in range(1, 2001)))
        assert not peer.transport.reading
        assert peer.kernel
        assert peer.connection.charged < 512 * 1024
        fake.complete(0)
        while len(peer.answered) < 2001:
            await settle()
            peer.pump()
        assert peer.transport.reading
        assert peer.answered == list(range(2001))

    play(main)


def test_a_client_that_does_not_read_gets_no_more_requests_taken() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)

        def full() -> None:
            if len(peer.transport.written) == 3:
                peer.transport.unsent = 20 * MIB
                peer.connection.pause_writing()

        peer.transport.on_write = full  # uvloop calls it from within write
        peer.send(b"".join(frame("now", number) for number in range(10)))
        assert fake.started == [0, 1, 2]
        assert server.memory.used >= 20 * MIB
        peer.transport.on_write = None
        peer.transport.unsent = 0
        peer.connection.resume_writing()
        assert fake.started == list(range(10))
        assert server.memory.used == 0

    play(main)


def test_a_transport_that_pauses_and_resumes_within_write_keeps_the_order() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)

        def flap() -> None:
            peer.connection.pause_writing()
            peer.connection.resume_writing()

        peer.transport.on_write = flap
        peer.send(frame("wait", 0) + b"".join(frame("now", number) for number in range(1, 50)))
        for number in range(50, 100):
            peer.send(frame("now", number))
        fake.complete(0)
        await settle()
        assert fake.started == list(range(100))
        assert peer.answered == list(range(100))

    play(main)
