"""What connections may use, alone and together, and how they end: against fake transports and pipelines, by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fake_peer import FakePipeline, FakeTransport, Peer, finish, frame, play, settle
from support.waiting import until

from kop.server.connection import ClientConnection
from kop.server.listener import Server

MIB = 1024 * 1024


# --- memory


def test_a_frame_of_its_own_memory_may_be_kept_a_small_one_in_a_large_piece_may_not() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        fake.keep_frames = True
        peer = Peer(server)
        peer.send(frame("produce", 0, 400_000))
        assert fake.owned == [True]
        peer.send(frame("produce", 1, 1000))
        assert fake.owned[1:] == [False]  # the shared buffer
        fake.owned.clear()
        peer.send(frame("wait", 2) + frame("produce", 3, 100) + frame("produce", 4, 50_000))
        await finish(peer, fake)
        assert fake.owned == [False, False, True]
        for request, owned in zip(fake.frames[-2:], fake.owned[1:], strict=True):
            assert not owned or memoryview(request.obj).nbytes < 2 * len(request) + 10

    play(main)


def test_a_claim_of_100_mb_costs_a_megabyte_and_many_such_claims_next_to_nothing() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        claim = frame("produce", 0)[4:]
        first = Peer(server)
        first.send((100_000_000).to_bytes(4, "big") + claim)
        assert first.connection.charged == MIB
        peers = [Peer(server) for _ in range(2000)]
        for peer in peers:
            peer.send((100_000_000).to_bytes(4, "big") + claim)
        assert server.memory.used < server.memory.limit // 4 + 2000 * 4096 + MIB
        assert not server.memory.short

    play(main)


def test_a_frame_grows_with_what_arrives() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        data = frame("produce", 0, 50 * MIB)
        for pos in range(0, len(data), 5 * MIB):
            peer.send(data[pos : pos + 5 * MIB])
            assert peer.connection.charged <= max(MIB, 2 * (pos + 5 * MIB))
        assert fake.started == [0]

    play(main)


def test_where_memory_is_short_a_frame_waits_for_room_and_a_fetch_too_and_the_rest_goes_on() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        first, second, large, consumer, other = (Peer(server) for _ in range(5))
        first.send(frame("produce", 1, 5 * MIB))
        second.send(frame("produce", 2, 4 * MIB))
        assert server.memory.short
        data = frame("produce", 3, 2 * MIB)
        large.send(data)
        consumer.send(frame("poll", 4) + frame("now", 5))
        other.send(frame("now", 6) + frame("produce", 7, 1000))
        assert fake.started == [1, 2, 6, 7]
        assert not large.transport.reading
        assert large.connection.charged < MIB
        fake.complete(1)
        await settle()
        large.pump()
        await settle()
        assert set(fake.started) == {1, 2, 6, 7, 3, 4}
        assert large.transport.reading
        await finish(consumer, fake)
        await finish(large, fake)
        assert large.answered == [3]
        assert consumer.answered == [4, 5]

    play(main, kop_request_memory_bytes=8 * MIB)


def test_produces_of_one_connection_above_its_share_wait_for_the_ones_before() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(b"".join(frame("produce", number, 400_000) for number in range(10)))
        assert fake.started == [0, 1, 2]
        fake.complete(0)
        await settle()
        assert fake.started == [0, 1, 2]
        fake.complete(1)
        await settle()
        peer.pump()
        assert fake.started[:4] == [0, 1, 2, 3]
        await finish(peer, fake)
        assert peer.answered == list(range(10))

    play(main, kop_request_memory_bytes=8 * MIB)


def test_where_memory_is_short_who_does_not_move_is_closed_largest_first(caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        small, large, reader, moving = (Peer(server) for _ in range(4))
        small.send(frame("produce", 0, 50 * MIB)[: MIB // 2])
        large.send(frame("produce", 0, 50 * MIB)[: 6 * MIB])
        moving.send(frame("produce", 0, 50 * MIB)[: 2 * MIB])
        reader.transport.unsent = 9 * MIB
        reader.connection.pause_writing()
        assert server.memory.short
        server.sweep()
        assert server.connections == 4
        moving.connection.last_active += 1
        server.sweep()
        await settle()
        assert reader.transport.lost
        assert not large.transport.lost
        assert not server.memory.short
        again = Peer(server)
        again.transport.unsent = 7 * MIB
        again.connection.pause_writing()
        assert server.memory.short
        for _ in range(2):
            moving.connection.last_active += 1
            server.sweep()
        await settle()
        assert large.transport.lost
        assert not any(peer.transport.lost for peer in (small, again, moving))

    play(main, kop_request_memory_bytes=16 * MIB)
    assert "memory is short, it holds 9216 KiB and leaves its answers unread" in caplog.text
    assert "does not go on with its request" in caplog.text


def test_parts_of_frames_that_all_wait_for_each_other_are_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peers = [Peer(server) for _ in range(6)]
        data = frame("produce", 0, 6 * MIB)
        for pos in range(0, len(data), MIB // 2):
            for peer in peers:
                peer.send(data[pos : pos + MIB // 2])
        assert fake.started == []
        assert server.memory.used < 16 * MIB
        for _ in range(12):
            server.sweep()
            await settle()
            for peer in peers:
                peer.pump()
            for number in fake.pending(fake.produces):
                fake.complete(number)
            await settle()
        assert fake.started
        assert sum(peer.answered == [0] for peer in peers) >= 1

    play(main, kop_request_memory_bytes=8 * MIB)


def test_the_account_calls_who_waits_in_order_as_long_as_there_is_room() -> None:
    class Waiter:
        def __init__(self, takes: int) -> None:
            self.takes = takes

        def on_memory(self) -> None:
            called.append(self.takes)
            account.used += self.takes

    called: list[int] = []

    async def main() -> None:
        account.used = 200
        waiters = [Waiter(takes) for takes in (10, 20, 90, 30)]
        for waiter in waiters:
            account.wait(waiter)
        account.freed()
        await settle()
        assert called == []
        account.forget(waiters[1])
        account.used = 50
        account.freed()
        account.freed()
        await settle()
        assert called == [10, 90]
        assert len(account.waiting) == 1
        account.used = 0
        account.freed()
        await settle()
        assert called == [10, 90, 30]

    loop = asyncio.new_event_loop()
    account = connection_account(loop)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def connection_account(loop: asyncio.AbstractEventLoop) -> Any:
    from kop.server.limits import MemoryBudget

    return MemoryBudget(loop, 100)


def test_fetches_that_read_from_storage_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from kop.server import limits

    monkeypatch.setattr(limits, "READ_SECONDS", 600.0)  # none is taken to wait for records

    async def main(server: Server, fake: FakePipeline) -> None:
        room = fake.reads
        began: list[int] = []
        go = [asyncio.Event() for _ in range(6)]

        async def read(number: int) -> int:
            began.append(number)
            await go[number].wait()
            return number

        tasks = [room.start(read(number), 3 * MIB) for number in range(5)]
        await settle()
        assert began == [0, 1, 2, 3, 4]  # an eighth of all memory is the most that one is reckoned with
        more = [room.start(read(5), 10**9) for _ in range(20)]
        await settle()
        assert began == [0, 1, 2, 3, 4, 5, 5, 5]
        more[5].cancel()
        more[0].cancel()
        await settle()
        assert began.count(5) == 4
        server.memory.used += 100 * MIB
        go[5].set()
        await settle()
        assert began.count(5) == 4
        assert len(server.memory.waiting) == 1
        server.memory.used -= 100 * MIB
        server.memory.freed()
        for event in go:
            event.set()
        await settle(200)
        assert began.count(5) == 19
        assert [task.result() for task in tasks] == [0, 1, 2, 3, 4]
        assert room.used == 0
        never = room.start(read(0), 1)
        never.cancel()  # before it began
        await settle()
        assert never.cancelled()

    play(main, kop_request_memory_bytes=8 * MIB)


def test_a_fetch_that_waits_for_records_after_it_has_read_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from kop.server import limits

    monkeypatch.setattr(limits, "READ_SECONDS", 0.5)

    async def main(server: Server, fake: FakePipeline) -> None:
        taken: list[int] = []

        async def never_ends() -> None:
            taken.append(fake.reads.used)
            await asyncio.Event().wait()

        task = fake.reads.start(never_ends(), MIB)
        await until(lambda: bool(taken) and fake.reads.used == 0)
        assert taken == [MIB]
        task.cancel()
        await settle(20)
        assert fake.reads.used == 0

    play(main, kop_request_memory_bytes=8 * MIB)


# --- the end


def test_a_bad_request_closes_after_the_answers_before_it_and_starts_nothing_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        fake.bad = {2}
        peer = Peer(server)
        peer.send(b"".join(frame("now", number) for number in range(6)))
        await settle()
        assert fake.started == [0, 1, 2]
        assert peer.answered == [0, 1]
        assert peer.transport.lost

    play(main)
    assert [record.getMessage() for record in caplog.records] == [
        "closing the connection of 10.0.0.1: request 2 is bad"
    ]


@pytest.mark.parametrize("behind", [False, True], ids=["as it arrives", "held back"])
def test_a_fault_of_our_own_closes_that_connection_and_says_so(behind: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        fake.broken = {1}
        peer, other = Peer(server), Peer(server)
        peer.send(frame("wait" if behind else "now", 0) + frame("now", 1) + frame("now", 2))
        if behind:
            fake.complete(0)
        await settle()
        assert peer.transport.lost
        assert peer.answered == [0]
        assert fake.started == [0, 1]
        other.send(frame("now", 7))
        assert other.answered == [7]

    play(main)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "request 1 is broken" in caplog.text


def test_an_acks_0_that_fails_closes_and_ends_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    from kop.errors import FrameError

    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("acks0", 0) + frame("produce", 1) + frame("now", 2))
        fake.produces[0].set_exception(FrameError("no room"))
        fake.complete(1)  # in the same turn of the loop: nothing may be started for it any more
        await settle()
        assert peer.transport.lost
        assert fake.started == [0, 1]
        assert peer.answered == []

    play(main)
    assert len(caplog.records) == 1


def test_a_cancelled_answer_closes_the_connection() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("wait", 0) + frame("now", 1))
        fake.waiting[0].cancel()
        await settle()
        assert peer.transport.lost
        assert fake.started == [0]

    play(main)


def test_a_client_that_is_gone_during_its_waits_leaves_nothing() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peers = [Peer(server) for _ in range(3)]
        peers[0].send(frame("produce", 0, 1000) + frame("acks0", 1) + frame("now", 2) + bytes(3))
        peers[1].send(frame("poll", 3) + frame("produce", 4) + frame("produce", 5, 90_000)[:50_000])
        peers[2].send(frame("produce", 6, 5 * MIB)[: 2 * MIB])
        for peer in peers:
            peer.transport.fail()
        await settle()
        assert all(future.cancelled() for future in fake.waiting.values())
        assert all(answer.taker is None for answer in fake.answers.values())
        assert server.memory.used == 0
        assert server.connections == 0

    play(main)


def test_the_end_of_the_stream_is_noticed_during_a_long_poll() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("poll", 0) + frame("now", 1))
        peer.eof()
        await settle()
        assert peer.transport.lost
        assert fake.waiting[0].cancelled()

    play(main)


def test_what_a_client_sent_before_it_closed_takes_effect() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.send(frame("produce", 0) + frame("wait", 1) + frame("acks0", 2) + frame("acks0", 3))
        peer.eof()
        await settle()
        assert not peer.transport.lost
        fake.complete(0)
        await settle()
        fake.complete(1)
        await settle()
        assert fake.started == [0, 1, 2, 3]
        assert peer.transport.lost

    play(main)


def test_an_idle_connection_is_closed_but_not_one_that_waits() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        idle, waiting, never, fresh = (Peer(server) for _ in range(4))
        waiting.send(frame("poll", 0))
        idle.send(frame("now", 1))
        for peer in (idle, waiting, never):
            peer.connection.last_active -= 11
        server.sweep()
        await settle()
        assert [peer.transport.lost for peer in (idle, waiting, never, fresh)] == [True, False, True, False]

    play(main, connections_max_idle_ms=10_000)


def test_no_idle_limit() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.connection.last_active -= 10**9
        server.sweep()
        await settle()
        assert not peer.transport.lost

    play(main, connections_max_idle_ms=-1)


def test_a_connection_that_cannot_send_its_last_answers_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        monkeypatch.setattr(peer.transport, "close", lambda: None)  # as with data unsent
        fake.bad = {0}
        peer.send(frame("now", 0))
        server.sweep()
        assert not peer.transport.closing
        peer.connection.closing_since -= 11
        server.sweep()
        await settle()
        assert peer.transport.lost

    play(main)


# --- limits and the log


def test_max_connections_and_max_connections_per_ip(caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        ours = [Peer(server, "10.0.0.1") for _ in range(3)]
        theirs = [Peer(server, "10.0.0.2") for _ in range(3)]
        await settle()
        assert [peer.transport.lost for peer in ours] == [False, False, True]
        assert [peer.transport.lost for peer in theirs] == [False, True, True]
        ours[0].transport.fail()
        await settle()
        theirs.append(Peer(server, "10.0.0.2"))
        await settle()
        assert not theirs[-1].transport.lost

    play(main, max_connections=3, max_connections_per_ip=2)
    assert "max.connections.per.ip (2) is reached" in caplog.text
    assert "max.connections (3) is reached" in caplog.text


def test_files_are_left_for_storage_where_the_system_allows_few(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda what: (100, 100))

    async def main(server: Server, fake: FakePipeline) -> None:
        peers = [Peer(server) for _ in range(60)]
        await settle()
        assert sum(peer.transport.lost for peer in peers) == 10

    play(main)


def test_a_flood_of_bad_connections_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        for _ in range(500):
            Peer(server).send(b"GET / HTTP/1.1\r\n\r\n")
        assert len(caplog.records) == 10
        server.sweep()
        assert caplog.records[-1].getMessage() == "490 more lines like these in the last second were left out"
        Peer(server).send(b"GET / HTTP/1.1\r\n\r\n")
        assert len(caplog.records) == 12
        bad = fake.metrics.registry.get_sample_value("kop_bad_frames_total", {"reason": "foreign_protocol"})
        assert bad == 501

    play(main)


def test_what_a_client_says_of_itself_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        peer = Peer(server)
        peer.connection.info.software_name = "x" * 30_000
        fake.bad = {0}
        peer.send(frame("now", 0))

    play(main)
    assert len(caplog.records[0].getMessage()) < 250


# --- draining


def test_a_drain_waits_for_what_is_under_way_but_not_for_long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        producer, committer, poller, late = (Peer(server) for _ in range(4))
        write_eof, unread = producer.transport.write_eof, list[int]()

        def sends_on() -> None:
            write_eof()
            producer.send(bytes(100_000))
            unread.append(len(producer.kernel))

        monkeypatch.setattr(producer.transport, "write_eof", sends_on)
        producer.send(frame("produce", 0) + frame("now", 1))
        committer.send(frame("wait", 2))
        poller.send(frame("poll", 3))
        drained = asyncio.ensure_future(server.drain(100_000))
        await settle()
        late.send(frame("now", 4))
        refused = Peer(server)
        await settle()
        assert refused.transport.lost
        assert fake.started == [0, 2, 3]
        assert not drained.done()
        fake.complete(0)
        await asyncio.sleep(0.03)  # nothing can be waited for: the drain looks every 10 ms, and must go on
        assert not drained.done()
        fake.complete(2)
        await until(lambda: all(peer.transport.eof_written for peer in (producer, committer, poller, late)))
        assert producer.answered == [0]
        assert committer.answered == [2]
        assert fake.waiting[3].cancelled()
        await drained
        assert unread == [0], "a client that goes on sending is read, so that its answers are not lost"
        assert all(peer.transport.lost for peer in (producer, committer, poller, late))
        assert fake.started == [0, 2, 3]

    play(main)


def test_a_drain_ends_when_its_time_is_over() -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        producer, reader = Peer(server), Peer(server)
        producer.send(frame("produce", 0))
        reader.transport.unsent = 1000
        began = server.loop.time()
        await server.drain(100)
        assert server.loop.time() - began > 0.05
        await settle()
        assert producer.transport.lost
        assert fake.answers[0].taker is None
        assert reader.transport.lost

    play(main)


def test_a_connection_lost_before_it_was_made_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: Server, fake: FakePipeline) -> None:
        lone = ClientConnection(server, None)
        lone.connection_lost(None)
        transport = FakeTransport(server.loop)
        monkeypatch.setattr(transport, "get_extra_info", lambda name, default=None: default)
        made = ClientConnection(server, None)
        transport.protocol = made
        made.connection_made(transport)
        assert made.info.client_host == "?"

    play(main)
