"""The gateway as a whole: its pages, its banner, what it says when it cannot start."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from support.child import Child, free_ports
from support.gateway import FAST, RawClient, batch, fetch_fields, gateway, produce_fields, run
from support.waiting import SECONDS, until

from kop.app import start
from kop.config import Config
from kop.records.batch import Record, build, read_header
from kop.storage.memory.shared import SharedMemory
from kop.wire.messages import MetadataRequest, OffsetCommitRequest


async def page(port: int, name: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{name}") as answer:
        return answer.status, await answer.text()


def test_metrics_tell_requests_bytes_logs_offsets_and_lag(tmp_path: Path) -> None:
    async def main() -> str:
        async with gateway(tmp_path, http="127.0.0.1:0") as serving:
            await serving.gateway.engine.topics.create("t", 1, {"retention.ms": "-1"})
            client = await RawClient.connect(serving)
            await client.call(0, 9, **produce_fields("t", batch([b"a", b"b", b"c"]), version=9))
            await client.call(0, 9, **produce_fields("no", batch([b"a"]), version=9))
            await client.call(1, 12, **fetch_fields("t", 0, version=12))
            topic = OffsetCommitRequest.OffsetCommitRequestTopic
            part = topic.OffsetCommitRequestPartition(version=8, partition_index=0, committed_offset=1)
            await client.call(
                8,
                8,
                group_id="g",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[topic(version=8, name="t", partitions=[part])],
            )
            assert serving.http_port is not None
            status, text = await page(serving.http_port, "metrics")
            assert status == 200
            return text

    lines = set(run(main()).splitlines())
    for wanted in (
        'kop_requests_total{api="Produce",version="9"} 2.0',
        'kop_request_errors_total{api="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"} 1.0',
        'kop_request_latency_seconds_count{api="Fetch"} 1.0',
        "kop_produced_records_total 3.0",
        "kop_connections 1.0",
        'kop_log_high_watermark{partition="0",topic="t"} 3.0',
        'kop_group_committed_offset{group="g",partition="0",topic="t"} 1.0',
        'kop_group_lag{group="g",partition="0",topic="t"} 2.0',
        "kop_storage_writable 1.0",
    ):
        assert wanted in lines, wanted
    assert any(line.startswith("kop_bytes_in_total ") and float(line.split()[1]) > 300 for line in lines)
    assert any(line.startswith("kop_groups{") for line in lines)


def test_health_and_readiness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:", http="127.0.0.1:0") as serving:
            port = serving.http_port
            assert port is not None
            assert await page(port, "healthz") == (200, "ok\n")
            assert await page(port, "readyz") == (200, "ready\n")
            with monkeypatch.context() as patch:
                patch.setattr(type(serving.gateway.engine), "losses", "7 batch(es) cannot be read")
                assert await page(port, "readyz") == (200, "ready\n7 batch(es) cannot be read\n")
            monkeypatch.setattr(type(serving.gateway.engine), "healthy", property(lambda _self: "the disk is full"))
            assert await page(port, "readyz") == (503, "the disk is full\n")
            assert await page(port, "healthz") == (200, "ok\n")

    run(main())


def test_an_altered_interval_of_the_cleaner_holds_at_once_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:", log_cleaner_backoff_ms="3600000") as serving:
            engine = serving.gateway.engine
            configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            log = engine.log((await engine.topics.create("t", 1, configs)).topic_id, 0)
            assert log is not None
            for value in (b"1", b"2", b"3"):
                data = build([Record(0, 0, b"k", value)])
                await log.append(data, read_header(data), now_ms=time.time_ns() // 1_000_000)
            size = log.size_bytes
            await serving.gateway.broker_configs.alter("", lambda _: {"log.cleaner.backoff.ms": "1"})
            await until(lambda: log.size_bytes < size)

    run(main())


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kop.cli.main", "serve", "--http", "", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = serve("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--store", f"sqlite:{tmp_path / 'x.db'}")
    assert done.returncode == 1
    assert "--listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_in_use_is_one_line(tmp_path: Path) -> None:
    async def main() -> subprocess.CompletedProcess[str]:
        async with gateway(tmp_path):
            return await asyncio.to_thread(serve, "--listen", "127.0.0.1:0", "--store", f"sqlite:{tmp_path / 'kop.db'}")

    done = run(main())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "kop.db" in done.stderr


def test_in_memory_it_serves_stops_and_says_that_nothing_stays(tmp_path: Path) -> None:
    async def round_trip(port: int) -> None:
        client = await RawClient.open("127.0.0.1", port)
        try:
            await client.call(3, 9, topics=[MetadataRequest.MetadataRequestTopic(version=9, name="t")])
            answer = await client.call(0, 9, **produce_fields("t", batch([b"a"]), version=9))
            assert answer.responses[0].partition_responses[0].base_offset == 0
        finally:
            await client.close()

    served = Child(tmp_path, store=["--store", "memory:"])
    try:
        served.start()
        asyncio.run(round_trip(served.port))
        served.signal(signal.SIGTERM)
        assert served.wait() == 0
    finally:
        served.kill()
    assert "memory:" in served.log
    assert "Its records are gone then." in served.log
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_workers_need_a_store_that_they_can_share() -> None:
    done = serve("--store", "memory:", "--workers", "2")
    assert done.returncode != 0
    assert "pulsar://" in done.stderr


def test_several_listeners_each_answer_with_their_own_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, listen="127.0.0.1:0,127.0.0.2:0") as serving:
            assert len(serving.listeners) == 2
            for address in list(serving.listeners):
                serving.listeners[0] = address
                client = await RawClient.connect(serving)
                broker = (await client.call(3, 9, topics=[])).brokers[0]
                assert (broker.host, broker.port) == address

    run(main())


LACKED = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


def test_a_worker_goes_on_without_an_address_that_the_machine_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_ports(2)

    async def main() -> None:
        listen = f"{LACKED}:{port},127.0.0.1:{port}"
        overrides = FAST | {"store": f"sqlite:{tmp_path / 'kop.db'}", "listen": listen}
        async with AsyncExitStack() as stack:
            serving = await start(Config.load(overrides=overrides, environ={}), stack, worker=0)
            assert serving.listeners == [("127.0.0.1", port + 1), ("127.0.0.1", port)]
            for address in serving.listeners:
                client = await RawClient.open(*address)
                broker = (await client.call(3, 9, topics=[])).brokers[0]
                await client.close()
                assert (broker.host, broker.port) == ("127.0.0.1", port + 1)

    run(main())
    assert f"not listening on {LACKED}:{port + 1}" in caplog.text


def test_a_worker_listens_on_each_address_that_its_clients_are_told(tmp_path: Path) -> None:
    port = free_ports(2)

    async def main() -> None:
        listen = f"127.0.0.1:{port},127.0.0.2:{port}"
        overrides = FAST | {"store": f"sqlite:{tmp_path / 'kop.db'}", "listen": listen}
        async with AsyncExitStack() as stack:
            serving = await start(Config.load(overrides=overrides, environ={}), stack, worker=0)
            for host in "127.0.0.1", "127.0.0.2":
                told = host, port
                for _ in range(2):
                    client = await RawClient.open(*told)
                    broker = (await client.call(3, 9, topics=[])).brokers[0]
                    await client.close()
                    told = broker.host, broker.port
                    assert told == (host, port + 1)
            assert len(serving.listeners) == 4

    run(main())


@pytest.mark.parametrize(("advertise", "told"), [("a:1,b:2", ("b", 2)), ("a:1", ("a", 1)), ("", ("127.0.0.1", 0))])
def test_others_are_told_of_a_listener_that_is_there(advertise: str, told: tuple[str, int]) -> None:
    cluster = SharedMemory()

    async def main() -> None:
        listen = f"{LACKED}:0,127.0.0.1:0"
        overrides = FAST | {"store": "memory:", "listen": listen, "advertise": advertise}
        async with AsyncExitStack() as stack:
            config = Config.load(overrides=overrides, environ={})
            serving = await start(config, stack, memory=cluster.open_engine)
            (broker,) = cluster.brokers
            assert (broker.host, broker.port) == (told[0], told[1] or serving.listeners[0][1])

    run(main())
