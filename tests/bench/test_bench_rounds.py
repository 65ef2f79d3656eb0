"""A round of the benchmark asks each server and the right peer, in turns; CPU is that of all threads of a process."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from conformance.bench import loads
from conformance.bench.engines import KAFKA, KOP, OTHER, PERF, Engines
from conformance.bench.figures import Run
from conformance.bench.loads import QUICK, Native, Server, Sizes
from conformance.bench.measure import ROOT, LoadFailed, cpu_seconds, load, twin
from conformance.bench.pulsar_side import PulsarPerf, Rest, wait_for_line
from conformance.bench.rows import Row
from conformance.servers import Kop, Pulsar
from kop.records.transcode import NATIVE

RUN = Run(seconds=1, records=1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which servers were measured, in this order."""
    names: list[str] = []

    def measured(server: Server, _row: Row, _sizes: Sizes) -> Run:
        names.append(server.name)
        return RUN

    for name in loads.SIMPLE:
        monkeypatch.setitem(loads.SIMPLE, name, measured)
    return names


class FakeNative(Native):
    """Answers for pulsar-perf and pulsar-client."""

    def peer(self, row: Row, sizes: Sizes) -> Run | None:
        return RUN

    def bare(self, row: Row, sizes: Sizes) -> Run:
        return RUN


def native() -> Native:
    perf = PulsarPerf.__new__(PulsarPerf)  # its start looks for Pulsar's distribution
    return FakeNative("pulsar://h:1", Rest("http://h:1"), "public/n", perf)


def server(name: str, folder: Path) -> Server:
    return Server(name, Kop(folder))


def test_two_checkouts_take_turns_in_the_order_a_b_b_a(asked: list[str], tmp_path: Path) -> None:
    both = Engines(QUICK, [server(KOP, tmp_path), server(OTHER, tmp_path)])
    for number in (1, 2, 3):
        assert both.round(Row("r", "produce"), number) == {KOP: RUN, OTHER: RUN}
    assert asked == [KOP, OTHER, OTHER, KOP, KOP, OTHER]


@pytest.mark.parametrize(
    ("row", "peers"),
    [
        (Row("r", "produce", engine="embedded"), {KAFKA}),
        (Row("r", "latency", engine="embedded"), {KAFKA}),
        (Row("r", "produce"), {PERF}),
        (Row("r", "librdkafka"), {PERF}),
        (Row("r", "latency"), {"pulsar-client"}),
        (Row("r", "commit"), {KAFKA}),
        (Row("r", "transactions"), {KAFKA}),
        (Row("r", "flushes"), {KAFKA}),
        (Row("r", "isolation"), {KAFKA}),
        (Row("r", "bare-in"), set()),
    ],
    ids=lambda value: f"{value.engine}-{value.load}" if isinstance(value, Row) else "",
)
def test_each_row_has_the_peer_that_does_the_same(asked: list[str], tmp_path: Path, row: Row, peers: set[str]) -> None:
    over = native() if row.engine == "pulsar" else None
    runs = Engines(QUICK, [server(KOP, tmp_path)], kafka=server(KAFKA, tmp_path), native=over).round(row, 1)
    assert runs.keys() == {KOP} | peers


@pytest.mark.parametrize(
    ("engine", "cache_bytes", "peers"),
    [
        ("embedded", None, [KAFKA]),
        ("embedded", 2**26, [KAFKA]),
        ("pulsar", None, [KAFKA]),
        ("pulsar", 2**26, [KAFKA, PERF]),
    ],
)
def test_a_reader_behind_its_writer_has_kafka_beside_it_and_with_a_small_cache_pulsar_perf(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    engine: Literal["embedded", "pulsar"],
    cache_bytes: int | None,
    peers: list[str],
) -> None:
    done: list[tuple[object, ...]] = []

    def behind(server: Server, _row: Row) -> tuple[str, Run]:
        done.append(("read", server.name))
        return f"of-{server.name}", RUN

    def consume(_perf: PulsarPerf, topic: str, records: int) -> Run:
        done.append((topic, records))
        return RUN

    monkeypatch.setattr(loads, "behind", behind)
    monkeypatch.setattr(PulsarPerf, "consume", consume)
    monkeypatch.setattr(Server, "run_with", lambda _server, size, _sizes: done.append(("cache", size)))
    monkeypatch.setattr(Server, "forget", lambda _server, topic: done.append(("forget", topic)))
    over = native() if engine == "pulsar" else None
    engines = Engines(QUICK, [server(KOP, tmp_path)], kafka=server(KAFKA, tmp_path), native=over)
    engines.servers[0].namespace = "public/n"

    runs = engines.round(Row("r", "behind", engine=engine, cache_bytes=cache_bytes), 1)

    assert list(runs) == [KOP, *peers]
    assert done == [
        ("cache", cache_bytes),
        ("read", KOP),
        ("read", KAFKA),
        *([("public/n/of-kop", loads.BEHIND_RECORDS)] if PERF in peers else []),
        ("forget", "of-kop"),
        ("forget", f"of-{KAFKA}"),
    ]


def test_a_gateway_starts_again_where_a_row_has_another_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []
    monkeypatch.setattr(Server, "restart", lambda _server: done.append("restart"))
    monkeypatch.setattr(loads, "warm_up", lambda _server, _sizes: done.append("warm up"))
    process = Kop(tmp_path)
    gateway = Server(KOP, process)
    for size in (None, 2**26, 2**26, None):
        gateway.run_with(size, QUICK)
        done.append(str(process.more_settings.get("kop.cache.bytes")))
    assert done == ["None", "restart", "warm up", "67108864", "67108864", "restart", "warm up", "None"]


def test_rows_that_cannot_be_measured_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Pulsar, "own", property(lambda _self: False))
    shared = Engines(QUICK, [server(KOP, tmp_path)], pulsar=Pulsar())
    cold = Row("r", "fetch", source="broker-cold")
    assert "restarts the broker" in shared.can(cold)
    assert "in any case" in shared.can(Row("r", "bare-in"))
    assert shared.can(replace(cold, source="gateway-cold")) == ""


def test_the_cpu_of_a_process_has_that_of_its_threads_that_have_ended() -> None:
    def work() -> None:
        while time.thread_time() < 0.05:
            pass

    before = cpu_seconds(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert cpu_seconds(os.getpid()) - before >= 0.05


def test_a_process_that_is_gone_has_no_cpu() -> None:
    with pytest.raises(ProcessLookupError):
        cpu_seconds(2**22 + 1)


def test_a_load_that_fails_says_why() -> None:
    with pytest.raises(LoadFailed, match=r"produce .*127\.0\.0\.1:1\b"):
        load("raw", "produce", '{"address": "127.0.0.1:1", "topic": "t"}')


def test_lines_of_pulsar_perf_are_awaited() -> None:
    lines = iter(["warming up\n", "Created 1 producers\n", "DONE\n"])
    assert wait_for_line(lines, "Created") <= wait_for_line(lines, "DONE")
    with pytest.raises(LoadFailed, match="ended before it said 'DONE'"):
        wait_for_line(lines, "DONE")


def test_a_checkout_says_whether_its_code_is_compiled(tmp_path: Path) -> None:
    assert twin(ROOT) == ("compiled" if NATIVE else "plain Python")
    (tmp_path / "kop").mkdir()  # a checkout that cannot even be imported
    (tmp_path / "kop" / "__init__.py").write_text("raise ImportError")
    assert twin(tmp_path) == "unknown"
