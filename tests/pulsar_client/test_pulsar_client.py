"""Connecting, asking, being sent elsewhere: against a broker that does what a test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from pulsar_client.pulsar_kit import T, client, in_time, send
from support.fake_pulsar import Command, FakePulsar, Session, fails, fake_pulsar
from support.waiting import SECONDS, until

from conformance.faulty_link import link
from kop import clock
from kop.pulsar_client import EARLIEST, Client, PulsarError
from kop.pulsar_client.pool import LOOKUP, READ, Pool
from kop.pulsar_client.proto import pulsar_pb2 as pb


class Token:
    method = "token"

    def __init__(self, *tokens: bytes) -> None:
        self.tokens = list(tokens)

    async def data(self) -> bytes:
        return self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]


async def test_the_first_connection_says_what_this_client_can() -> None:
    async with fake_pulsar() as broker:
        broker.max_message_size = 123_456
        async with client(broker.url, client_version="kop 9") as made:
            assert made.max_message_size == 123_456
            said = broker.sessions[0].connect
            assert said.client_version == "kop 9"
            assert said.protocol_version == 21
            assert not said.HasField("auth_method_name")
            flags = said.feature_flags
            assert flags.supports_broker_entry_metadata
            assert flags.supports_auth_refresh
            assert flags.supports_topic_watchers


async def test_a_wrong_port_is_told_with_advice() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        made = Client(f"pulsar://127.0.0.1:{port}")
        with pytest.raises(PulsarError, match="check that the address and port are the broker's") as caught:
            await made.start()
        assert caught.value.code == "ConnectionLost"
        await made.close()


async def test_a_server_of_another_kind_is_told() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    made = Client(f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(PulsarError, match="an HTTP server answers there") as caught:
        await made.start()
    assert caught.value.code == "FrameError"
    await made.close()
    server.close()
    await server.wait_closed()


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async with fake_pulsar() as broker:
        broker.silent.add(Command.CONNECT)
        made = Client(broker.url, request_timeout=1.0)
        with pytest.raises(PulsarError, match="is it the broker's port") as caught:
            await made.start()
        assert caught.value.code == "Timeout"
        await made.close()


async def test_the_next_address_is_tried() -> None:
    async with fake_pulsar() as broker:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            dead = unused.getsockname()[1]
            broker.create(T)
            for _ in range(4):  # whichever comes first by chance
                async with client(f"pulsar://127.0.0.1:{dead},127.0.0.1:{broker.port}") as made:
                    assert await made.partitions(T) == 0


async def test_partitions_and_topics() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        broker.partitions[T + "-many"] = 7
        async with client(broker.url) as made:
            assert await made.partitions(T) == 0
            assert await made.partitions(T + "-many") == 7
            assert await made.topics("public/default") == [T]
            assert await made.topics("public/other") == []
            with pytest.raises(PulsarError, match="the partitions of persistent://public/default/none") as caught:
                await made.partitions("persistent://public/default/none")
            assert caught.value.code == "TopicNotFound"
            assert not caught.value.retriable


@pytest.mark.parametrize("kind", [Command.PARTITIONED_METADATA, Command.GET_TOPICS_OF_NAMESPACE, Command.LOOKUP])
async def test_every_request_has_a_time_limit(kind: Command.Type) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url, request_timeout=1.0) as made:
            broker.silent.add(kind)
            questions: dict[Command.Type, Callable[[], Coroutine[Any, Any, object]]] = {
                Command.PARTITIONED_METADATA: lambda: made.partitions(T),
                Command.GET_TOPICS_OF_NAMESPACE: lambda: made.topics("public/default"),
                Command.LOOKUP: lambda: made.open_producer(T),
            }
            ask = questions[kind]
            assert await fails(ask()) == "Timeout"
            broker.silent.clear()
            await in_time(ask)


async def test_lookups_follow_redirects() -> None:
    async with fake_pulsar() as first, fake_pulsar() as second, fake_pulsar() as third:
        third.create(T)
        first.redirects.append((second.url, True))
        second.redirects.append((third.url, False))
        async with client(first.url) as made:
            producer = await made.open_producer(T)
            await send(producer, 0)
            asked = [command.lookupTopic for command in second.ever[0].seen if command.type == Command.LOOKUP]
            assert [lookup.authoritative for lookup in asked] == [True]
            assert third.payloads(T) == [b"0"]


@pytest.mark.parametrize("callers", [1, 2, 3, 10])
async def test_callers_at_the_same_time_leave_a_dead_address_together(
    callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock.chance, "randrange", lambda end: 0)  # the address to begin with
    tried = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tried
        tried += 1
        writer.close()

    async with fake_pulsar() as broker, await asyncio.start_server(hang_up, "127.0.0.1", 0) as dead:
        port = dead.sockets[0].getsockname()[1]
        pool = Pool(
            f"pulsar://127.0.0.1:{port},{broker.url.removeprefix('pulsar://')}",
            auth=None,
            tls=None,
            connect_timeout=SECONDS,
            keepalive=SECONDS,
            idle=SECONDS,
            client_version="",
        )
        connections = await asyncio.gather(*(pool.any(LOOKUP) for _ in range(callers)))
        assert len(set(connections)) == 1
        await pool.any(READ)
        assert tried == 1
        await pool.close()


async def test_redirects_in_a_circle_end() -> None:
    async with fake_pulsar() as broker:
        broker.redirects = [(broker.url, True)] * 1000
        async with client(broker.url, request_timeout=1.0) as made:
            assert await fails(in_time(lambda: made.open_producer(T))) == "ServiceNotReady"


async def test_a_proxy_is_told_which_broker_is_meant() -> None:
    async with fake_pulsar() as proxy:
        proxy.create(T)
        proxy.owner, proxy.through_proxy = "pulsar://broker-7.internal:6650", True
        async with client(proxy.url) as made:
            producer = await made.open_producer(T)
            await send(producer, 0)
            assert [session.connect.proxy_to_broker_url for session in proxy.ever] == ["", "broker-7.internal:6650"]
            proxy.unload(T, assigned="pulsar://broker-8.internal:6650")
            await until(lambda: producer.attached_times == 2)
            assert proxy.ever[-1].connect.proxy_to_broker_url == "broker-8.internal:6650"


async def test_kinds_and_lanes_have_connections_of_their_own() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            for name, lane in [("a", ""), ("b", ""), ("c", "x"), ("d", "x"), ("e", "y")]:
                await made.open_producer(T, name=name, lane=lane)
            for _ in range(2):
                await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda entry: None)
            seen = [(s.count(Command.LOOKUP) > 0, len(s.producers), len(s.consumers)) for s in broker.sessions]
            assert sorted(seen) == [(False, 0, 2), (False, 1, 0), (False, 2, 0), (False, 2, 0), (True, 0, 0)]


async def test_connections_that_nothing_uses_are_closed() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url, idle=0.05) as made:
            producer = await made.open_producer(T)
            other = await made.open_producer(T, lane="x")
            await other.close()
            await until(lambda: len(broker.sessions) == 2)
            await asyncio.sleep(0.15)  # nothing can be waited for: what is used must not be closed
            await send(producer, 0)
            assert len(broker.sessions) == 2  # the one for lookups, the producer's


async def test_a_token_is_shown_and_shown_again_when_asked() -> None:
    async with fake_pulsar() as broker:
        broker.tokens = {b"one"}
        async with client(broker.url, auth=Token(b"one", b"two", b"two")):
            session = broker.sessions[0]
            assert (session.connect.auth_method_name, session.connect.auth_data) == ("token", b"one")
            broker.challenge()
            await until(lambda: session.auth)
            assert session.auth[0].response.auth_data == b"two"
            assert session.auth[0].response.auth_method_name == "token"


async def test_a_refused_token_is_told() -> None:
    async with fake_pulsar() as broker:
        broker.tokens = {b"one"}
        made = Client(broker.url, auth=Token(b"wrong"))
        with pytest.raises(PulsarError, match="no such token - check the token") as caught:
            await made.start()
        assert caught.value.code == "AuthenticationError"
        assert not caught.value.retriable
        await made.close()


class Broken(Token):
    async def data(self) -> bytes:
        if self.tokens:
            return self.tokens.pop()
        raise OSError("the file is gone")


async def test_credentials_that_cannot_be_had_are_told() -> None:
    async with fake_pulsar() as broker:
        made = Client(broker.url, auth=Broken())
        with pytest.raises(PulsarError, match="the file is gone") as caught:
            await made.start()
        assert caught.value.code == "AuthFailed"
        await made.close()


@pytest.mark.parametrize("auth", [None, Broken(b"one")])
async def test_a_challenge_without_an_answer_ends_the_connection(auth: Token | None) -> None:
    async with fake_pulsar() as broker, client(broker.url, auth=auth):
        session = broker.sessions[0]
        broker.challenge()
        await until(lambda: session not in broker.sessions)


async def test_a_silent_peer_is_asked_and_given_up() -> None:
    # An answer that is there counts as none where this process, the broker in it, stands still for so long.
    async with fake_pulsar() as broker, client(broker.url, keepalive=1.0):
        session = broker.sessions[0]
        await until(lambda: session.count(Command.PING) > 1)
        assert session in broker.sessions
        broker.silent.add(Command.PING)
        await until(lambda: session not in broker.sessions)


async def test_a_brokers_ping_is_answered() -> None:
    async with fake_pulsar() as broker, client(broker.url):
        broker.sessions[0].send(Command(type=Command.PING, ping=pb.CommandPing()))
        await until(lambda: broker.sessions[0].count(Command.PONG))


async def test_a_command_that_is_not_known_is_no_harm() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            broker.sessions[0].writer.write(b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x44")  # TOPIC_MIGRATED
            broker.sessions[0].send(Command(type=Command.CONNECTED, connected=pb.CommandConnected(server_version="x")))
            broker.sessions[0].success(4711)
            assert await made.partitions(T) == 0


@pytest.mark.parametrize(
    "rubbish", [b"\xff" * 40, b"\x00\x00\x00\x04\x00\x00\x00\x09", b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x09\x4a\xff"]
)
async def test_rubbish_ends_the_connection_and_no_more(rubbish: bytes) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            session = broker.sessions[0]
            session.writer.write(rubbish)
            await until(lambda: session not in broker.sessions)
            assert await made.partitions(T) == 0


async def test_many_who_want_a_connection_share_one_attempt() -> None:
    async with fake_pulsar() as broker:
        for number in range(50):
            broker.create(f"{T}{number}")
        async with client(broker.url) as made:
            await asyncio.gather(*(made.open_producer(f"{T}{number}") for number in range(50)))
            assert len(broker.ever) == 2


async def test_after_close_nothing_is_asked() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T)
            broker.hold_receipts = True
            pending = send(producer, 0)
            lost: list[str] = []
            reader = await made.open_reader(
                T, EARLIEST, permits=1, on_entry=lambda entry: None, on_lost=lambda error: lost.append(error.code)
            )
        assert await fails(pending) == "Closed"
        assert lost == ["Closed"]
        assert await fails(send(producer, 1)) == "Closed"
        assert await fails(reader.last_position()) == "Closed"
        assert await fails(made.partitions(T)) == "Closed"
        await until(lambda: not broker.sessions)


# --- watching

Seen = list[tuple[list[str] | None, list[str], list[str]]]


def note(seen: Seen) -> Callable[[Sequence[str] | None, Sequence[str], Sequence[str]], None]:
    def on_change(snapshot: Sequence[str] | None, added: Sequence[str], removed: Sequence[str]) -> None:
        seen.append((None if snapshot is None else sorted(snapshot), list(added), list(removed)))

    return on_change


async def test_a_watch_tells_all_and_then_changes() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            seen: Seen = []
            watch = made.watch("public/default", ".*", note(seen))
            await until(lambda: seen)
            broker.create(T + "2")
            broker.delete(T)
            await until(lambda: len(seen) == 3)
            assert seen == [([T], [], []), (None, [T + "2"], []), (None, [], [T])]
            assert watch.error is None
            await watch.close()
            broker.create(T + "3")
            await made.partitions(T + "3")
            assert len(seen) == 3


async def test_a_watch_that_was_lost_begins_again() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            seen: Seen = []
            watch = made.watch("public/default", ".*", note(seen))
            await until(lambda: seen)
            broker.hang_up()
            await until(lambda: watch.error is not None)
            broker.create(T + "2")
            await until(lambda: len(seen) == 2)
            assert seen[1] == ([T, T + "2"], [], [])
            assert watch.error is None


async def test_a_watch_outlasts_refusals() -> None:
    async with fake_pulsar() as broker:
        broker.refusals[Command.WATCH_TOPIC_LIST] = [pb.AuthorizationError, pb.NotAllowedError]
        async with client(broker.url) as made:
            seen: Seen = []
            watch = made.watch("public/default", ".*", note(seen))
            await until(lambda: watch.error is not None)
            assert watch.error is not None
            assert watch.error.code == "AuthorizationError"
            await until(lambda: seen)
            assert watch.error is None


async def test_a_broker_that_cannot_watch_is_told_of() -> None:
    async with fake_pulsar() as broker:
        broker.watchers = False
        async with client(broker.url) as made:
            watch = made.watch("public/default", ".*", note([]))
            await until(lambda: watch.error is not None)
            assert watch.error is not None
            assert watch.error.code == "WatchUnsupported"
            await watch.close()


async def test_an_owner_that_fails_on_a_change_is_told_of_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_pulsar() as broker, client(broker.url) as made:
        calls: list[object] = []

        def on_change(*change: object) -> None:
            calls.append(change)
            raise RuntimeError("owner")

        made.watch("public/default", ".*", on_change)
        await until(lambda: calls)
        broker.create(T)
        await until(lambda: len(calls) == 2)
    assert "its owner failed" in caplog.text


async def test_a_request_whose_connection_ends_is_not_waited_for() -> None:
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        async with client(wire.url) as made:

            def hang_up(session: Session, command: Command) -> bool:
                if command.type == Command.PARTITIONED_METADATA:
                    session.hang_up()
                    return True
                return False

            broker.hook = hang_up
            assert await fails(made.partitions(T)) == "ConnectionLost"
            broker.hook = None
            assert await made.partitions(T) == 0
            assert isinstance(broker, FakePulsar)
