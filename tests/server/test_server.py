"""The server with real sockets and the real pipeline, in this process: order, acks, limits, waits that end."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from support.bodies import encode_body
from support.gateway import RawClient, batch, fetch_fields, frame, gateway, produce_fields, run
from support.waiting import until

from kop import allocator
from kop.errors import ErrorCode
from kop.handlers.fetch import WaitingFetch
from kop.wire.messages import REQUESTS

NEWEST = 12
JOIN = {
    "group_id": "g",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "member_id": "",
    "protocol_type": "consumer",
}


async def topic(serving: Any, name: str = "t", partitions: int = 1) -> Any:
    return await serving.gateway.engine.topics.create(name, partitions, {"retention.ms": "-1"})


def log_of(serving: Any, made: Any, partition: int = 0) -> Any:
    return serving.gateway.engine.log(made.topic_id, partition)


def body(api_key: int, version: int, **fields: Any) -> bytes:
    return encode_body(REQUESTS[api_key](version=version, **fields))


def produce_frame(correlation: int, value: bytes = b"v", *, acks: int = -1, name: str = "t") -> bytes:
    fields = produce_fields(name, batch([value]), version=NEWEST, acks=acks)
    return frame(0, NEWEST, correlation, body(0, NEWEST, **fields))


def fetch_frame(correlation: int, *, max_wait_ms: int = 0, offset: int = 0, **how: Any) -> bytes:
    fields = fetch_fields("t", offset, version=NEWEST, max_wait_ms=max_wait_ms, **how)
    return frame(1, NEWEST, correlation, body(1, NEWEST, **fields))


def versions_frame(correlation: int) -> bytes:
    return frame(18, 0, correlation, b"")


async def correlations(client: RawClient, count: int) -> list[int]:
    return [struct.unpack_from(">i", await client.receive_frame())[0] for _ in range(count)]


# --- order


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_hundreds_of_mixed_requests_pipelined(tmp_path: Path, step: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            parts, wanted = [], []
            for number in range(300):
                kind = number % 5
                if kind in (0, 1):
                    parts.append(produce_frame(number, b"%d" % number))
                elif kind == 2:
                    parts.append(produce_frame(number, b"%d" % number, acks=0))
                elif kind == 3:
                    parts.append(fetch_frame(number, max_wait_ms=5, offset=0, partition_max_bytes=1))
                else:
                    parts.append(versions_frame(number))
                if kind != 2:
                    wanted.append(number)
            stream = b"".join(parts)
            if step > len(stream):
                client.writer.write(stream)
            else:
                for pos in range(0, len(stream), step):
                    client.writer.write(stream[pos : pos + step])
                    if pos % 50 == 0:
                        await asyncio.sleep(0)
            assert await correlations(client, len(wanted)) == wanted
            made = serving.gateway.engine.topics.get("t")
            assert log_of(serving, made).high_watermark == 180

    run(main())


def test_a_produce_is_visible_to_the_fetch_behind_it_on_the_same_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            client.writer.write(produce_frame(1, b"hello") + fetch_frame(2))
            assert (await correlations(client, 1)) == [1]
            assert b"hello" in await client.receive_frame()

    run(main())


def test_nothing_is_started_behind_a_fetch_that_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving)
            first, second = await RawClient.connect(serving), await RawClient.connect(serving)
            first.writer.write(fetch_frame(1, max_wait_ms=60_000) + produce_frame(2, b"behind") + versions_frame(3))
            await until(lambda: log_of(serving, made).observed)
            await asyncio.sleep(0.05)  # nothing can be waited for: what is behind must not be stored
            assert log_of(serving, made).high_watermark == 0
            second.writer.write(produce_frame(9, b"wakes"))
            assert await correlations(first, 3) == [1, 2, 3]
            assert log_of(serving, made).high_watermark == 2

    run(main())


def test_a_join_that_waits_holds_back_what_is_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, group_initial_rebalance_delay_ms="300") as serving:
            client = await RawClient.connect(serving)
            protocol = REQUESTS[11].JoinGroupRequestProtocol(version=0, name="range", metadata=b"")
            client.writer.write(frame(11, 0, 1, body(11, 0, protocols=[protocol], **JOIN)) + versions_frame(2))
            began = time.monotonic()
            assert await correlations(client, 2) == [1, 2]
            assert time.monotonic() - began > 0.25

    run(main())


# --- acks


def test_acks_0_is_not_answered_and_its_error_closes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving)
            client = await RawClient.connect(serving)
            client.writer.write(produce_frame(1, acks=0) + versions_frame(2))
            assert await correlations(client, 1) == [2]
            assert log_of(serving, made).high_watermark == 1
            client.writer.write(produce_frame(3, acks=0, name="unknown") + produce_frame(4))
            assert await client.closed()
            assert log_of(serving, made).high_watermark == 1

    run(main())
    assert caplog.text.count("closing the connection") == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text


@pytest.mark.parametrize("acks", [2, -2, 127, -32768, 32767])
def test_other_acks_are_invalid_required_acks_and_the_connection_goes_on(tmp_path: Path, acks: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving)
            client = await RawClient.connect(serving)
            fields = produce_fields("t", batch([b"v"]), version=NEWEST, acks=acks)
            answer = await client.call(0, NEWEST, **fields)
            part = answer.responses[0].partition_responses[0]
            assert part.error_code == ErrorCode.INVALID_REQUIRED_ACKS
            assert log_of(serving, made).high_watermark == 0
            client.writer.write(versions_frame(77))
            assert await correlations(client, 1) == [77]

    run(main())


def test_a_producer_that_closes_right_after_acks_0_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, kop_request_memory_bytes="1048576") as serving:
            made = await topic(serving)
            client = await RawClient.connect(serving)
            for number in range(60):
                client.writer.write(produce_frame(number, bytes(30_000), acks=0))
                if number == 30:
                    client.writer.write(versions_frame(1000))  # behind it all waits for the Produces before it
            await client.writer.drain()
            client.writer.write_eof()
            await until(lambda: log_of(serving, made).high_watermark == 60)
            await until(lambda: serving.server.connections == 0)

    run(main())


# --- peers that go


def test_a_fetch_whose_client_is_gone_leaves_no_listener_and_no_timer(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving, partitions=3)
            logs = [log_of(serving, made, index) for index in range(3)]
            for how in ("close", "abort", "pipelined", "unread, close", "unread, abort"):
                client = await RawClient.connect(serving)
                for partition in range(2):
                    part = fetch_fields("t", 0, version=NEWEST, max_wait_ms=600_000, partition=partition)
                    client.send(1, NEWEST, **part)
                await until(lambda: logs[0].observed)
                if how == "pipelined":
                    client.writer.write(produce_frame(5) * 10)
                if how.startswith("unread"):  # the gateway stops reading, so it does not see the end either
                    client.writer.write(produce_frame(5, bytes(40_000)) * 3)
                    await until(lambda: serving.server.memory.used > 64 * 1024)
                    await asyncio.sleep(0.1)  # the gateway may read more before the client goes
                if how.endswith("abort"):
                    client.writer.transport.abort()
                else:
                    client.writer.close()
                await until(lambda: not any(log.observed for log in logs))
                await until(lambda: serving.server.connections == 0)
                assert serving.server.memory.used == 0
            assert all(log.high_watermark == 0 for log in logs)
            assert not still_waiting()

    run(main())


def still_waiting() -> list[WaitingFetch]:
    """The Fetches of this process that wait; each has a timer."""
    return [
        instance for instance in gc.get_objects() if isinstance(instance, WaitingFetch) and not instance.answered.done()
    ]


def test_produces_whose_client_is_gone_are_stored_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving)
            client = await RawClient.connect(serving)
            client.writer.write(b"".join(produce_frame(number) for number in range(5)))
            await client.writer.drain()
            await until(lambda: log_of(serving, made).end_offset > 0)
            client.writer.transport.abort()
            await until(lambda: serving.server.connections == 0)
            await until(lambda: log_of(serving, made).high_watermark == log_of(serving, made).end_offset)
            assert serving.server.memory.used == 0

    run(main())


def test_a_join_whose_client_is_gone_does_not_stop_the_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, group_initial_rebalance_delay_ms="200") as serving:
            gone, stays = await RawClient.connect(serving), await RawClient.connect(serving)
            protocol = REQUESTS[11].JoinGroupRequestProtocol(version=0, name="range", metadata=b"")
            gone.send(11, 0, protocols=[protocol], **JOIN)
            await asyncio.sleep(0.05)  # it may have joined by then, or not: both have to do
            gone.writer.transport.abort()
            answer = await stays.call(11, 0, protocols=[protocol], **JOIN)
            assert answer.error_code == 0
            await until(lambda: serving.server.connections == 1)

    run(main())


# --- limits


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, connections_max_idle_ms="600") as serving:
            await topic(serving)
            idle, waiting = await RawClient.connect(serving), await RawClient.connect(serving)
            waiting.writer.write(fetch_frame(1, max_wait_ms=2500))
            assert await idle.closed()
            assert await correlations(waiting, 1) == [1]

    run(main())


def test_max_connections_and_max_connections_per_ip(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(limit: str) -> None:
        async with gateway(tmp_path, **{limit: "2"}) as serving:
            clients = [await RawClient.connect(serving) for _ in range(3)]
            assert await clients[2].closed()
            for client in clients[:2]:
                client.writer.write(versions_frame(1))
                assert await correlations(client, 1) == [1]
            clients[0].writer.close()
            await until(lambda: serving.server.connections == 1)
            again = await RawClient.connect(serving)
            again.writer.write(versions_frame(2))
            assert await correlations(again, 1) == [2]

    for limit, name in (("max_connections", "max.connections"), ("max_connections_per_ip", "max.connections.per.ip")):
        caplog.clear()
        run(main(limit))
        refusals = [record.getMessage() for record in caplog.records if "closing" in record.getMessage()]
        assert refusals == [f"closing a connection of 127.0.0.1: {name} (2) is reached"]


def test_a_request_above_socket_request_max_bytes_closes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with gateway(tmp_path, socket_request_max_bytes="100000") as serving:
            await topic(serving)
            client, large = await RawClient.connect(serving), await RawClient.connect(serving)
            client.writer.write(produce_frame(1, bytes(90_000)))
            assert await correlations(client, 1) == [1]
            large.writer.write(produce_frame(1, bytes(100_000)))
            assert await large.closed()

    run(main())
    assert caplog.text.count("closing the connection") == 1
    assert "socket.request.max.bytes" in caplog.text


def test_a_request_that_is_no_produce_above_16_mib_closes_before_it_is_received(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            claim = 60 * 2**20
            client.writer.write(struct.pack(">i", claim) + versions_frame(1)[4:] + bytes(2 * 2**20))
            assert await client.closed()
            assert serving.server.memory.used == 0
            small = await RawClient.connect(serving)
            small.writer.write(struct.pack(">i", 17 * 2**20) + versions_frame(1)[4:] + bytes(17 * 2**20))
            assert await small.closed()

    run(main())
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        f"closing the connection of 127.0.0.1: a ApiVersions of {size * 2**20} bytes is larger than any client sends"
        for size in (60, 17)
    ]


@pytest.mark.parametrize("key", [-1, 4, 5, 34, 1234, 32767, -32768])
def test_an_unknown_api_closes_with_one_log_line_that_names_it(
    tmp_path: Path, key: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            assert key not in serving.gateway.apis
            client, other = await RawClient.connect(serving), await RawClient.connect(serving)
            head = struct.pack(">hhih", key, 3, 1, -1) + bytes(20)
            client.writer.write(struct.pack(">i", len(head)) + head + versions_frame(2))
            assert await client.closed()
            other.writer.write(versions_frame(3))
            assert await correlations(other, 1) == [3]
            lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert lines == [f"closing the connection of 127.0.0.1: API {key} version 3 is not served: client id none"]

    run(main())


def test_versions_below_and_above_the_served_range_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            for key, api in serving.gateway.apis.items():
                for version in (api.min_version - 1, api.max_version + 1, -32768, 32767):
                    if key == 18 or (key == 0 and 0 <= version < 3):
                        continue  # these have an answer
                    client = await RawClient.connect(serving)
                    head = struct.pack(">hhih", key, version, 1, -1) + bytes(20)
                    client.writer.write(struct.pack(">i", len(head)) + head)
                    assert await client.closed(), (key, version)

    run(main())


def test_a_version_that_is_not_served_is_named_with_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            head = struct.pack(">hhih", 1, 3, 1, 9) + b"billing-1" + bytes(20)
            client.writer.write(struct.pack(">i", len(head)) + head)
            assert await client.closed()

    run(main())
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        "closing the connection of 127.0.0.1: Fetch version 3 is not served (versions 4 to 18 are): "
        "client id 'billing-1'"
    ]


def test_a_tls_hello_and_an_http_request_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            host, port = serving.listeners[0]
            import ssl

            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
            client = await RawClient.connect(serving)
            client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: kop\r\n\r\n")
            assert await client.closed()

    run(main())
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert "a TLS hello" in lines[0]
    assert "security.protocol=SSL" in lines[0]
    assert "an HTTP request" in lines[1]
    assert "--http" in lines[1]


def test_a_slow_sender_of_a_byte_at_a_time_is_served_and_hurts_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            slow, other = await RawClient.connect(serving), await RawClient.connect(serving)
            for number, byte in enumerate(produce_frame(1)):
                slow.writer.write(bytes((byte,)))
                other.writer.write(versions_frame(number))
                assert await correlations(other, 1) == [number]
            assert await correlations(slow, 1) == [1]
            assert serving.server.memory.used == 0

    run(main())


def test_the_answer_before_a_bad_request_is_still_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            client.writer.write(versions_frame(1) + versions_frame(2) + struct.pack(">i", -5))
            assert await correlations(client, 2) == [1, 2]
            assert await client.closed()

    run(main())


def test_after_a_quiet_while_memory_goes_back_where_the_process_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, given_back = [100 << 20], 0

    def give_back() -> None:
        nonlocal given_back
        given_back += 1

    monkeypatch.setattr(allocator, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(allocator, "give_back", give_back)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:

            def quiet_seconds(count: int) -> int:
                for _ in range(count):
                    serving.server.sweep()
                return given_back

            assert quiet_seconds(120) == 0
            resident[0] += 100 << 20
            assert quiet_seconds(60) == 1
            assert quiet_seconds(120) == 1, "what does not go back is not tried again"
            resident[0] -= 100 << 20
            assert quiet_seconds(60) == 1
            resident[0] += 100 << 20
            serving.server.bytes_out += 2 << 20
            assert quiet_seconds(1 + 59) == 1, "not in a busy time"
            assert quiet_seconds(1) == 2

    run(main())


@pytest.mark.parametrize("store", ["sqlite", "memory"])
@pytest.mark.parametrize("size", [300, 4_000, 40_000])
def test_batches_in_memory_pin_no_larger_buffers(tmp_path: Path, store: str, size: int) -> None:
    partitions = 40

    async def main() -> None:
        settings = {} if store == "sqlite" else {"store": "memory:"}
        async with gateway(tmp_path, **settings) as serving:
            made, client = await topic(serving, partitions=partitions), await RawClient.connect(serving)
            fields = [produce_fields("t", batch([bytes(size)]), version=9, partition=p) for p in range(partitions)]
            parts = [part for each in fields for part in each["topic_data"][0].partition_data]
            fields[0]["topic_data"][0].partition_data = parts
            for _ in range(3):
                await client.call(0, 9, **fields[0])
            kept: list[Any] = []
            for index in range(partitions):
                result = log_of(serving, made, index).read_cached(0, 1 << 30, min_one=True)
                assert result is not None
                kept += result.buffers
            assert len(kept) == 3 * partitions
            pinned = {id(whole): len(whole) for each in kept for whole in [getattr(each, "obj", each)]}
            assert sum(pinned.values()) < 1.3 * sum(map(len, kept)) + 1000

    run(main())
