"""`kop serve --workers 2` as a user runs it: one bootstrap port, two brokers, one of them killed, all stopped."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from faults.fault_kit import Load, gateway, running, say, until
from support.child import Child, free_ports
from support.pulsar import Pulsar
from support.waiting import SECONDS, wait_until

WORKERS = 2
PARTITIONS = 8


@pytest.fixture
def served(fresh: Pulsar, tmp_path: Path) -> Iterator[Child]:
    """Both workers are up. `port` is the shared one, those of the workers follow."""
    http = f"127.0.0.1:{free_ports(WORKERS)}"
    served = gateway(tmp_path / "workers", fresh, kop_workers=str(WORKERS), http=http, offsets_topic_num_partitions="8")
    served.port = free_ports(1 + WORKERS)
    with running(served):
        until(lambda: ready(served) and all(len(brokers(own(served, index))) == WORKERS for index in range(WORKERS)))
        yield served


def brokers(address: str) -> dict[int, tuple[str, int]]:
    """What Metadata names."""
    brokers = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=10).brokers
    return {broker.id: (broker.host, broker.port) for broker in brokers.values()}


def own(served: Child, worker: int) -> str:
    """The address of a worker's own listener."""
    return f"127.0.0.1:{served.port + 1 + worker}"


def ready(served: Child) -> bool:
    """Both say so on their own HTTP ports."""
    first = int(served.http.rpartition(":")[2])
    return all(
        urllib.request.urlopen(f"http://127.0.0.1:{first + index}/readyz", timeout=5).status == 200
        for index in range(WORKERS)
    )


def listens(port: int) -> int:
    """The process that listens on a port of its own."""
    inodes = set()
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        cells = row.split()
        if int(cells[1].partition(":")[2], 16) == port and cells[3] == "0A":
            inodes.add(f"socket:[{cells[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue
    raise OSError(f"nobody listens on {port}")


def produce(address: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, str(value), partition=value % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def member(address: str, group: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return consumer


def test_two_workers_serve_one_cluster_and_end_together(served: Child, fresh: Pulsar) -> None:
    until(lambda: "Ctrl-C stops" in served.log)
    assert served.log.count("serves Kafka clients with 2 workers.") == 1
    addresses = ", ".join((served.address, own(served, 0), own(served, 1)))
    assert f"  listening   {addresses}\n" in served.log
    assert re.search(rf"  pulsar      \d\S+, cluster standalone, namespace {fresh.namespace}\n", served.log)
    first = int(served.http.rpartition(":")[2])
    pages = ", ".join(f"http://127.0.0.1:{first + index}/metrics" for index in range(WORKERS))
    assert f"  metrics     {pages}\n" in served.log
    for address in (served.address, own(served, 0), own(served, 1)):
        assert brokers(address) == {1: ("127.0.0.1", served.port + 1), 2: ("127.0.0.1", served.port + 2)}
    admin = AdminClient({"bootstrap.servers": own(served, 0)})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(SECONDS)
    # Whoever is asked knows it: what one worker made the other one serves.
    until(lambda: "t" in AdminClient({"bootstrap.servers": own(served, 1)}).list_topics(timeout=10).topics)
    for worker in range(WORKERS):
        produce(own(served, worker), "t", range(100 * worker, 100 * worker + 100))
    members = [member(own(served, worker), "group", "t") for worker in range(WORKERS)]
    got: list[int] = []
    committed = False
    try:

        def shared() -> bool:
            for each in members:
                for message in each.consume(100, 0.2):
                    assert message.error() is None, message.error()
                    got.append(int(message.value()))
            # Whoever joined first may have read all; after the second one came, both read what is theirs.
            halves = [each.position(each.assignment()) for each in members]
            ends = sorted((place.partition, place.offset) for half in halves for place in half)
            return set(got) == set(range(200)) and all(halves) and ends == [(i, 25) for i in range(PARTITIONS)]

        until(shared)
        for each in members:
            assert not each.commit(asynchronous=False)[0].error
        committed = True
    finally:
        for each in members:
            each.close()
    assert committed
    lag = Consumer({"bootstrap.servers": own(served, 1), "group.id": "group"})
    try:
        places = lag.committed([TopicPartition("t", index) for index in range(PARTITIONS)], timeout=10)
        assert sum(place.offset for place in places) == 200
    finally:
        lag.close()
    workers = [listens(served.port + 1 + worker) for worker in range(WORKERS)]
    served.signal(signal.SIGTERM)
    assert served.wait() == 0, served.log
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert "Traceback" not in served.log


@pytest.mark.slow
def test_clients_go_on_when_a_worker_is_killed_and_it_comes_back(served: Child) -> None:
    with Load(served.address) as load:
        for worker in range(WORKERS):
            pid = listens(served.port + 1 + worker)
            os.kill(pid, signal.SIGKILL)
            say(f"flows {load.flows():.1f} s after kill -9 of worker {worker}")

            def back(worker: int = worker, pid: int = pid) -> bool:
                return listens(served.port + 1 + worker) != pid and sorted(brokers(own(served, worker))) == [1, 2]

            until(back)
        load.check([own(served, 0), own(served, 1)])
    served.signal(signal.SIGTERM)
    assert served.wait() == 0, served.log


def test_workers_whose_supervisor_is_killed_stop_by_themselves(served: Child) -> None:
    workers = [listens(served.port + 1 + worker) for worker in range(WORKERS)]
    served.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of all workers")
    assert "has died: the worker stops" in served.log
