"""An outage of Pulsar: when it begins and ends, what it takes, and what the log says of it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from pulsar_client.pulsar_kit import T, client
from support.fake_pulsar import Command, Session, fake_pulsar
from support.waiting import until

from kop.pulsar_client import EARLIEST, PulsarError, outage, pool
from kop.pulsar_client.address import PulsarAddress
from kop.pulsar_client.outage import Outage, Over

LOST = PulsarError("ConnectionLost")


A, B = PulsarAddress("a", 6650, False), PulsarAddress("b", 6650, False)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param("0 a-", (0, None), id="a start that reaches nobody is none"),
        pytest.param("0 a+, 1 none, 2 a+", (0, None), id="a connection that comes back at once"),
        pytest.param("0 a+, 1 none, 2 a-, 9 a-", (1, None), id="it lasts"),
        pytest.param("0 a+, 1 none, 2 a-, 12 a+, 26.9", (1, None), id="just back"),
        pytest.param("0 a+, 1 none, 2 a-, 12 a+, 13 a+, 27", (1, Over(10.0, 0)), id="over"),
        pytest.param("0 a+, 1 none, 2 a-, 12 a+, 13 none, 20 a+, 21", (1, None), id="a short connection ends nothing"),
        pytest.param(
            "0 a+, 1 none, 2 a-, 12 a+, 13 none, 13.5 a-, 20 a+, 35", (1, Over(18.0, 0)), id="nor begins another one"
        ),
        pytest.param("0 a+, 1 none, 2 a-, 3 a+, 18, 40 none, 41 a-, 44 a+, 59", (2, Over(3.0, 0)), id="two"),
        pytest.param("0 a+, 8 a-, 10 a-, 36 a+, 51", (1, Over(28.0, 0)), id="it is silent, then it answers again"),
        pytest.param("0 a+, 1 b-b", (0, None), id="a broker that never stood, while another does"),
        pytest.param("0 a+, 0 b+, 1 b-b, 2 fails, 3, 4 b-b, 17.9", (1, None), id="one of two: something failed"),
        pytest.param("0 a+, 0 b+, 1 b-b, 2 fails, 3, 4 b-b, 18", (1, Over(2.0, 1)), id="one of two: nothing fails"),
        pytest.param("0 a+, 0 b+, 1 b-b, 16, 20 b-b, 40 b-b", (1, Over(0.0, 0)), id="it stays away"),
        pytest.param("0 a+, 0 b+, 1 b-b, 16, 20 b+, 40 b-b", (2, Over(0.0, 0)), id="it came and went again"),
        pytest.param("0 a+, 0 b+, 1 b-b, 3 a-, 20, 31 a+, 46", (1, Over(30.0, 0)), id="one of two, then the other"),
    ],
)
def test_when_an_outage_begins_and_ends(steps: str, expected: tuple[int, Over | None]) -> None:
    """`a+` answers, `a-` does not and nobody does, `b-b` does not while the other does, `none`: all is disconnected."""
    machine, over = Outage(), None
    for step in steps.split(", "):
        at, _, what = step.partition(" ")
        now, broker = float(at), B if what.startswith("b") else A
        if what.endswith("+"):
            machine.answers(broker, now)
        elif what == "none":
            machine.lost(others=False)
        elif "-" in what:
            machine.fails(broker, LOST, now, others=what.endswith("b"))
        elif what == "fails":
            machine.takes(LOST)
        else:
            over = machine.settled(now)
    assert (machine.times, over) == expected


def test_an_outage_takes_what_it_causes_and_nothing_else() -> None:
    machine = Outage()
    machine.answers(A, 0.0)
    assert not machine.takes(LOST)
    assert not machine.fails(A, PulsarError("AuthenticationError"), 1.0, others=False)
    assert machine.fails(A, PulsarError("Timeout"), 1.0, others=False)
    taken = [LOST, PulsarError("Timeout"), PulsarError("ServiceNotReady"), TimeoutError()]
    assert all(machine.takes(error) for error in taken)
    assert not machine.takes(PulsarError("TopicTerminatedError"))
    assert not machine.takes(ValueError())
    machine.answers(A, 5.0)
    assert machine.settled(20.0) is None, "something failed since the last look"
    assert machine.takes(LOST)
    assert machine.settled(35.0) is None
    assert machine.settled(50.0) == Over(4.0, 5)
    assert not machine.takes(LOST)


def test_what_fails_with_a_connection_is_of_the_outage_that_begins_then() -> None:
    machine = Outage()
    machine.answers(A, 0.0)
    machine.lost(others=False)
    assert machine.takes(LOST)
    assert machine.fails(A, LOST, 1.0, others=False)
    machine.certain()
    assert machine.takes(LOST)
    assert machine.failures == 2


def test_a_connection_that_comes_back_takes_what_failed_meanwhile_and_no_more() -> None:
    machine = Outage()
    machine.answers(A, 0.0)
    machine.lost(others=True)
    assert machine.takes(LOST)
    machine.answers(A, 0.5)
    machine.certain()
    assert not machine.takes(LOST)
    assert (machine.times, machine.active) == (0, False)


def test_failures_that_go_on_do_not_prolong_an_outage_for_ever() -> None:
    machine = Outage()
    machine.answers(A, 0.0)
    machine.fails(A, LOST, 1.0, others=False)
    machine.answers(A, 5.0)
    for now in range(20, 125, 15):
        assert machine.takes(LOST)
        assert machine.settled(now) is None
    assert machine.takes(LOST)
    assert machine.settled(125.0) == Over(4.0, 8)


async def test_an_outage_is_three_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)
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


def is_still(session: Session, command: Command) -> bool:
    """Answer nothing, as a broker whose process is stopped."""
    return True


async def test_a_broker_that_stands_still_is_an_outage_before_its_connections_are_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(pool, "PULSE_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "kop.pulsar_client")
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda _: None)
            await made.open_producer(T, name="p")
            await asyncio.sleep(0.5)  # some looks at what answers
            assert not caplog.records, "a broker that has nothing to say answers pings"
            broker.hook = is_still
            await until(lambda: made.outage.active)
            broker.hook = None
            await until(lambda: not made.outage.active)
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        assert "no Pulsar broker answers: Timeout" in lines[0][1]
        assert "Pulsar answers again" in lines[1][1]


async def test_one_of_two_brokers_that_is_gone_is_one_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "SETTLE_SECONDS", 1.5)
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "kop.pulsar_client")
    async with fake_pulsar() as first, fake_pulsar() as second:
        first.create(T)
        second.create(T)
        first.owner = second.url
        async with client(first.url) as made:
            readers = [await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda _: None) for _ in range(5)]
            producer = await made.open_producer(T, name="p")
            await second.stop()
            await until(lambda: made.outage.failures >= 12)
            first.owner = None  # its topics are served by the other one from now on
            await until(lambda: producer.connected and all(each.connected for each in readers))
            await until(lambda: not made.outage.active)
            assert made.outage.times == 1
        lines = sorted((record.levelname, record.getMessage()) for record in caplog.records)
        assert [level for level, _ in lines] == ["INFO", "INFO", "WARNING"], lines
        assert f"the Pulsar broker {second.url.removeprefix('pulsar://')} does not answer" in lines[2][1]
