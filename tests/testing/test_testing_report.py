"""What a failing test is told of its broker: the report's section, `repr`, and tracebacks without kop's inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer
from support.waiting import SECONDS

from kop.testing import Broker, Cluster


def failing(directory: Path, text: str) -> str:
    """What pytest prints of a file with a test that fails."""
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_failing_test_is_told_what_its_broker_has(tmp_path: Path) -> None:
    printed = failing(
        tmp_path,
        """
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

def test_orders(kop_broker):
    kop_broker.create_topic("orders", partitions=2)
    producer = Producer({"bootstrap.servers": kop_broker.bootstrap, "client.id": "shop"})
    producer.produce("orders", b"one", partition=1)
    producer.flush(10)
    consumer = Consumer({"bootstrap.servers": kop_broker.bootstrap, "group.id": "billing", "client.id": "c1",
                         "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    while consumer.poll(1) is None:
        pass
    kop_broker.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException):
        consumer.commit(asynchronous=False)
    consumer.commit(asynchronous=False)
    assert kop_broker.committed("billing") == {}
""",
    )
    section = printed[printed.index("- kop broker 127.0.0.1:") :]
    for line in (
        "orders-0: offsets 0 to 0",
        "orders-1: offsets 0 to 1",
        "billing: Stable, members c1",
        "orders-1: committed 1",
        "c1  GROUP_AUTHORIZATION_FAILED",
        "c1  ok",
    ):
        assert line in section, section


def test_a_mistake_shows_the_line_of_the_test_and_nothing_of_kop(tmp_path: Path) -> None:
    printed = failing(
        tmp_path,
        """
def test_typo(kop_broker):
    kop_broker.create_topic("orders")
    kop_broker.records("order")
""",
    )
    assert "no topic 'order'; do you mean 'orders'" in printed
    assert 'kop_broker.records("order")' in printed
    assert "kop/testing" not in printed, printed
    assert "kop/app" not in printed


def test_brokers_that_tests_share_and_clusters_are_told_of(tmp_path: Path) -> None:
    shared = failing(
        tmp_path, "def test_it(kop_shared_broker):\n    kop_shared_broker.produce('t', ['v'])\n    assert 0\n"
    )
    assert shared.count("- kop broker") == 1
    assert "t-0: offsets 0 to 1" in shared
    cluster = failing(tmp_path, "def test_it(kop_cluster):\n    kop_cluster.brokers[1].stop()\n    assert 0\n")
    assert cluster.count("- kop broker") == 3
    assert "- kop broker 2 -" in cluster


def test_a_broker_shows_itself_in_one_line(kop_broker: Broker) -> None:
    kop_broker.create_topic("orders", partitions=3)
    assert repr(kop_broker) == f"<Broker {kop_broker.bootstrap}: topics orders[3]; groups none>"
    for at in range(12):
        kop_broker.create_topic(f"t{at:02}")
    assert "t08[1] and 3 more; groups none>" in repr(kop_broker)
    assert repr(Broker()) == "<Broker, not running>"
    assert Broker().report() == "not running"
    assert repr(Cluster()) == "<Cluster of []>"


def test_the_last_requests_are_remembered_and_no_more(kop_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": kop_broker.bootstrap})
    for at in range(40):
        producer.produce("t", b"%d" % at)
        assert producer.flush(SECONDS) == 0
    seen = kop_broker.requests()
    assert len(seen) == 20
    assert {(request.api, request.outcome) for request in seen} == {("Produce", "ok")}
    ages = [request.seconds_ago for request in seen]
    assert ages == sorted(ages, reverse=True)
    assert "the last 20 requests, the newest last:" in kop_broker.report()
