"""The report of a driver of a mesh that has no Spark yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.waiting import wait_until

from kop import clock
from kop.client.keyed_topic import KeyedTopic
from kop.mesh import records
from kop.spark.mesh import start_notice
from kop.spark.mesh.start_notice import StartNotice
from kop.testing import Broker

LAST = {"host": "there", "pid": 7, "started_ms": 1, "components": [{"name": "a", "state": "running", "reason": "no"}]}


@pytest.fixture
def topic(kop_shared_broker: Broker) -> Iterator[KeyedTopic]:
    with closing(KeyedTopic({"bootstrap_servers": [kop_shared_broker.bootstrap]}, records.TOPIC, 20.0)) as made:
        made.make()
        yield made


def notice(broker: Broker, name: str) -> StartNotice:
    return StartNotice({"bootstrap_servers": [broker.bootstrap]}, name, "batch")


def test_a_driver_that_starts_says_so_until_it_has_started(
    kop_shared_broker: Broker, topic: KeyedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_notice, "AGAIN_SECONDS", 0.05)
    name = "public/default/begins"
    key = records.key(records.REPORT, name)
    topic.put({key: records.encode({**LAST, "state": "running", "at_ms": 1})})

    def report() -> dict[str, Any]:
        return records.decode(topic.read()[key])

    starting = notice(kop_shared_broker, name)
    wait_until(lambda: report()["pid"] == os.getpid(), "the first report", 30.0)
    first = report()
    assert (first["state"], first["trigger"], first["drives"]) == ("starting", "batch", False)
    assert first["components"] == [{"name": "a", "state": "starting", "reason": ""}]
    wait_until(lambda: report()["at_ms"] > first["at_ms"], "a further report", 30.0)
    starting.close()
    assert (report()["state"], report()["ended"]) == ("starting", False), "the driver goes on with its own reports"
    failing = notice(kop_shared_broker, name)
    failing.close("no Java")
    assert (report()["state"], report()["ended"], report()["reason"]) == ("starting", False, ""), "another one lives"
    topic.put({key: records.encode({**LAST, "state": "running", "at_ms": 1})})
    notice(kop_shared_broker, name).close("no Java")
    wait_until(lambda: report()["state"] == "failed", "the last report", 30.0)
    last = report()
    assert (last["ended"], last["reason"]) == (True, "no Java")
    assert not records.is_driven(last, last["at_ms"])


@pytest.mark.parametrize("is_over", [False, True])
def test_a_driver_that_starts_is_silent_while_another_one_lives(
    kop_shared_broker: Broker, topic: KeyedTopic, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr(start_notice, "AGAIN_SECONDS", 0.05)
    name = f"public/default/beside-{is_over}"
    key = records.key(records.REPORT, name)
    last = {**LAST, "state": "running", "at_ms": clock.wall_ms() + 600_000, "ended": is_over}
    topic.put({key: records.encode(last)})
    reads: list[int] = []
    read = KeyedTopic.read

    def counted(of: KeyedTopic) -> dict[str, bytes]:
        reads.append(1)
        return read(of)

    monkeypatch.setattr(KeyedTopic, "read", counted)
    starting = notice(kop_shared_broker, name)
    wait_until(lambda: len(reads) > 2, "some looks", 30.0)
    starting.close()
    assert (records.decode(read(topic)[key])["pid"] == 7) is not is_over
