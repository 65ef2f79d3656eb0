"""An outage of Pulsar: when it begins and ends, what it takes, and what the log says of it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from pulsar_client.pulsar_kit import T, client
from support.fake_pulsar import fake_pulsar
from support.waiting import until

from kop.pulsar_client import EARLIEST, PulsarError, outage, pool
from kop.pulsar_client.outage import Outage, Over

LOST = PulsarError("ConnectionLost")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([(0.0, "failed")], (0, None), id="a start that reaches nobody is none"),
        pytest.param([(0.0, "up"), (1.0, "down"), (2.0, "up")], (0, None), id="a connection that comes back at once"),
        pytest.param([(0.0, "up"), (1.0, "down"), (2.0, "failed"), (9.0, "failed")], (1, None), id="it lasts"),
        pytest.param(
            [(0.0, "up"), (1.0, "down"), (2.0, "failed"), (12.0, "up"), (26.9, "look")], (1, None), id="just back"
        ),
        pytest.param(
            [(0.0, "up"), (1.0, "down"), (2.0, "failed"), (12.0, "up"), (13.0, "up"), (27.0, "look")],
            (1, Over(10.0, 0)),
            id="over",
        ),
        pytest.param(
            [(0.0, "up"), (1.0, "down"), (2.0, "failed"), (12.0, "up"), (13.0, "down"), (20.0, "up"), (21.0, "look")],
            (1, None),
            id="a connection that does not hold ends nothing",
        ),
        pytest.param(
            [
                *[(0.0, "up"), (1.0, "down"), (2.0, "failed"), (12.0, "up"), (13.0, "down"), (13.5, "failed")],
                *[(20.0, "up"), (35.0, "look")],
            ],
            (1, Over(18.0, 0)),
            id="nor begins another one",
        ),
        pytest.param(
            [
                *[(0.0, "up"), (1.0, "down"), (2.0, "failed"), (3.0, "up"), (18.0, "look")],
                *[(40.0, "down"), (41.0, "failed"), (44.0, "up"), (59.0, "look")],
            ],
            (2, Over(3.0, 0)),
            id="two",
        ),
    ],
)
def test_when_an_outage_begins_and_ends(steps: list[tuple[float, str]], expected: tuple[int, Over | None]) -> None:
    machine, over = Outage(), None
    for now, what in steps:
        if what == "up":
            machine.connected(now)
        elif what == "down":
            machine.disconnected()
        elif what == "failed":
            machine.failed_to_connect(LOST, now)
        else:
            over = machine.settled(now)
    assert (machine.times, over) == expected


def test_an_outage_takes_what_it_causes_and_nothing_else() -> None:
    machine = Outage()
    machine.connected(0.0)
    assert not machine.takes(LOST)
    assert not machine.failed_to_connect(PulsarError("AuthenticationError"), 1.0)
    assert machine.failed_to_connect(PulsarError("Timeout"), 1.0)
    taken = [LOST, PulsarError("Timeout"), PulsarError("ServiceNotReady"), TimeoutError()]
    assert all(machine.takes(error) for error in taken)
    assert not machine.takes(PulsarError("TopicTerminatedError"))
    assert not machine.takes(ValueError())
    machine.connected(5.0)
    assert machine.settled(20.0) is None, "something failed since the last look"
    assert machine.takes(LOST)
    assert machine.settled(35.0) is None
    assert machine.settled(50.0) == Over(4.0, 5)
    assert not machine.takes(LOST)


def test_failures_that_go_on_do_not_prolong_an_outage_for_ever() -> None:
    machine = Outage()
    machine.connected(0.0)
    machine.failed_to_connect(LOST, 1.0)
    machine.connected(5.0)
    for now in range(20, 125, 15):
        assert machine.takes(LOST)
        assert machine.settled(now) is None
    assert machine.takes(LOST)
    assert machine.settled(125.0) == Over(4.0, 8)


async def test_an_outage_is_three_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(pool, "SETTLE_SECONDS", 0.25)
    caplog.set_level(logging.INFO, "kop.pulsar_client")
    async with fake_pulsar() as broker:
        broker.create(T)
        port = broker.port
        async with client(broker.url) as made:
            watch = made.watch("public/default", ".*", lambda *_: None)
            readers = [await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda _: None) for _ in range(5)]
            producer = await made.open_producer(T, name="p")
            await broker.stop()
            await until(lambda: made.outage.failures >= 20)
            await broker.start(port)
            await until(lambda: producer.connected and watch.connected and all(each.connected for each in readers))
            await until(lambda: not made.outage.active)
            assert made.outage.times == 1
        lines = sorted((record.levelname, record.getMessage()) for record in caplog.records)
        assert [level for level, _ in lines] == ["INFO", "INFO", "WARNING"], lines
        assert "no Pulsar broker answers" in lines[2][1]
        assert "3 connections to Pulsar are lost, with 7 producers, readers and watches" in lines[0][1]
        assert "Pulsar answers again" in lines[1][1]
        await asyncio.sleep(pool.TOGETHER_SECONDS * 2)  # nothing comes that tells the end of what is silent
        assert len(caplog.records) == 3, "a client that closes its own connections says nothing"
