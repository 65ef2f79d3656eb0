"""The order rules of a connection, as properties: any requests, cut into any pieces, ended in any order.

Owns: one model of the rules. At each step it knows which requests must have been started and what must have been
answered; the fake pipeline asserts at each start that nothing was overtaken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fake_peer import FakePipeline, Peer, close_server, fake_server, frame, settle

from kop.server import connection, frames

KINDS = ["produce", "produce", "acks0", "now", "wait", "later", "poll", "join"]
requests = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(10, 400)), min_size=1, max_size=40)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([1, 2, 3, 4, 5, 11, 14, 37, 120, 500, 5000])),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("run"), st.just(0)),
        st.tuples(st.sampled_from(["pause", "resume"]), st.just(0)),
    ),
    max_size=80,
)


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short frames go every way that long ones go."""
    monkeypatch.setattr(frames, "AT_ONCE", 64)
    monkeypatch.setattr(frames, "FIRST_MEMORY", 16)
    monkeypatch.setattr(connection, "MOST_HELD", 150)
    monkeypatch.setattr(connection, "MERGED", 30)


def startable(kinds: list[str], whole: int, done: set[int]) -> int:
    """How many of the first `whole` requests must have been started, given those that have ended."""
    for number in range(whole):
        before = range(number)
        if any(kinds[i] in ("wait", "later", "poll", "join") and i not in done for i in before):
            return number
        if kinds[number] not in ("produce", "acks0") and any(
            kinds[i] in ("produce", "acks0") and i not in done for i in before
        ):
            return number
    return whole


def answerable(kinds: list[str], started: int, done: set[int]) -> list[int]:
    """The answers that must have been written: in order, up to the first request that waits."""
    answers = []
    for number in range(started):
        if kinds[number] != "now" and number not in done:
            break
        if kinds[number] != "acks0":
            answers.append(number)
    return answers


async def play(
    what: list[tuple[str, int]], steps: list[tuple[str, int]], rounds: int = 5, pace: float = 0.0, **limits: Any
) -> None:
    kinds = [kind for kind, _ in what]
    stream = b"".join(frame(kind, number, size) for number, (kind, size) in enumerate(what))
    ends = [0]
    for _, size in what:
        ends.append(ends[-1] + 4 + size)
    fake = FakePipeline(pace=pace)
    server = fake_server(fake, **limits)
    server.receive_buffer = memoryview(bytearray(64))
    peer = Peer(server)
    done: set[int] = set()
    sent = 0
    paused = False
    started_at_pause = 0

    def check(exact: bool) -> None:
        whole = sum(end <= sent - len(peer.kernel) for end in ends[1:])
        allowed = startable(kinds, sum(end <= sent for end in ends[1:]), done)
        assert fake.started == list(range(len(fake.started)))
        assert len(fake.started) <= (started_at_pause if paused else allowed)
        if exact and not paused:
            assert len(fake.started) >= startable(kinds, whole, done)
            assert peer.answered == answerable(kinds, len(fake.started), done)
        assert peer.answered == answerable(kinds, len(fake.started), done)[: len(peer.answered)]
        assert server.memory.used == peer.connection.charged >= 0

    for step, value in steps:
        if step == "send":
            peer.send(stream[sent : sent + value])
            sent = min(sent + value, len(stream))
        elif step == "end":
            open_now = fake.pending(fake.produces) + fake.pending(fake.waiting)
            if open_now:
                number = open_now[value % len(open_now)]
                fake.complete(number)
                await settle(rounds)
                done.add(number)
        elif step == "pause" and not paused:
            paused = True
            started_at_pause = len(fake.started)
            peer.connection.pause_writing()
        elif step == "resume" and paused:
            paused = False
            peer.connection.resume_writing()
        await settle(rounds)
        peer.pump()
        await settle(rounds)
        check(exact=not limits)

    if paused:
        peer.connection.resume_writing()
        paused = False
    peer.send(stream[sent:])
    sent = len(stream)
    for _ in range(10 * len(kinds) + 100):
        for number in fake.pending(fake.produces) + fake.pending(fake.waiting):
            fake.complete(number)
            done.add(number)
        await settle(rounds)
        peer.pump()
        if len(done) + kinds.count("now") == len(kinds) and not peer.kernel:
            break
    await settle(50)
    check(exact=True)
    assert len(fake.started) == len(kinds)
    assert peer.answered == [number for number, kind in enumerate(kinds) if kind != "acks0"]
    assert server.memory.used == 0
    assert peer.transport.reading
    assert not peer.transport.closing
    peer.transport.fail()
    await settle()
    assert server.memory.used == 0
    assert server.connections == 0
    await close_server(server)


common = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@common
@given(requests, actions)
def test_requests_take_effect_and_are_answered_in_the_order_of_arrival(
    what: list[tuple[str, int]], steps: list[tuple[str, int]]
) -> None:
    asyncio.run(play(what, steps))


@common
@given(requests, actions)
def test_the_order_holds_when_memory_is_short(what: list[tuple[str, int]], steps: list[tuple[str, int]]) -> None:
    asyncio.run(play(what, steps, kop_request_memory_bytes=600))


@common
@given(requests, actions)
def test_the_order_holds_when_every_turn_is_over_at_once(
    what: list[tuple[str, int]], steps: list[tuple[str, int]]
) -> None:
    asyncio.run(play(what, steps, rounds=50, pace=1.0))


@common
@given(requests, actions, st.integers(0, 60), st.sampled_from(["fail", "eof"]))
def test_when_the_peer_goes_at_any_moment_its_waits_end_and_its_memory_is_free(
    what: list[tuple[str, int]], steps: list[tuple[str, int]], moment: int, how: str
) -> None:
    async def main() -> None:
        stream = b"".join(frame(kind, number, size) for number, (kind, size) in enumerate(what))
        fake = FakePipeline()
        server = fake_server(fake)
        server.receive_buffer = memoryview(bytearray(64))
        peer = Peer(server)
        sent = 0
        for step, value in steps[:moment]:
            if step == "send":
                peer.send(stream[sent : sent + value])
                sent += value
            elif step == "end":
                for number in (fake.pending(fake.produces) + fake.pending(fake.waiting))[:1]:
                    fake.complete(number)
            elif step == "run":
                await settle(3)
        if how == "fail":
            peer.transport.fail()
            await settle()
        else:
            peer.eof()
            for _ in range(len(what) * 3):  # what was taken before the end still takes effect
                await settle()
                for number in fake.pending(fake.produces) + fake.pending(fake.waiting):
                    fake.complete(number)
            await settle(30)
        assert peer.transport.lost
        assert all(answer.taker is None for answer in fake.answers.values() if not answer.ready)
        assert set(fake.pending(fake.waiting)) <= set(fake.answers)  # an OffsetCommit goes on without its client
        assert server.memory.used == 0
        assert server.connections == 0
        assert peer.connection.charged == 0
        assert not peer.connection.frame_since
        assert fake.started == list(range(len(fake.started)))
        await close_server(server)

    asyncio.run(main())
