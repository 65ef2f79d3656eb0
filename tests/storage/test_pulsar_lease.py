"""Who pushes whom out of a log that has one writer alone, and when; over a Pulsar without sockets.

A Pulsar broker may hang for ever where an exclusive producer is pushed out while its client closes it.
"""

from __future__ import annotations

import asyncio

import pytest
from storage.fake_pulsar_client import Broker, FakeEngine
from support.waiting import until

from kop.storage.pulsar.partition import producer as producer_module
from kop.storage.pulsar.partition.log import PulsarLog

OTHER = "kop-c-leader-other"
FENCED = ["exclusive", "exclusive_with_fencing"]


async def log_of(engine: FakeEngine) -> PulsarLog:
    log = engine.log()
    await log.attach()
    return log


async def test_the_writer_of_a_free_log_pushes_nobody_out() -> None:
    broker = Broker()
    log = await log_of(FakeEngine(broker))
    await log.lead(lambda: None)
    assert broker.accesses == ["exclusive"]
    assert broker.lanes == ["coordinators"]


async def test_a_broker_that_is_gone_is_pushed_out_at_once() -> None:
    broker = Broker()
    engine = FakeEngine(broker)
    broker.exclusive_holder, engine.live_leaders[OTHER] = OTHER, False
    await (await log_of(engine)).lead(lambda: None)
    assert broker.accesses == FENCED


async def test_a_live_broker_is_waited_for() -> None:
    broker = Broker()
    engine = FakeEngine(broker)
    broker.exclusive_holder, engine.live_leaders[OTHER] = OTHER, True
    log = await log_of(engine)
    leading = asyncio.ensure_future(log.lead(lambda: None))
    await until(lambda: len(broker.accesses) > 2)
    broker.exclusive_holder = None
    await leading
    assert set(broker.accesses) == {"exclusive"}


async def test_a_live_broker_that_dies_meanwhile_is_pushed_out() -> None:
    broker = Broker()
    engine = FakeEngine(broker)
    broker.exclusive_holder, engine.live_leaders[OTHER] = OTHER, True
    log = await log_of(engine)
    leading = asyncio.ensure_future(log.lead(lambda: None))
    await until(lambda: len(broker.accesses) > 2)
    engine.live_leaders[OTHER] = False
    await leading
    assert broker.accesses[-2:] == FENCED


@pytest.mark.parametrize(
    ("holder", "live", "limit"),
    [
        pytest.param(OTHER, True, "LIVE_HOLDER_SECONDS", id="a live broker that keeps the log"),
        pytest.param(OTHER, None, "UNKNOWN_HOLDER_SECONDS", id="a broker that was never seen"),
        pytest.param("leader", True, "UNKNOWN_HOLDER_SECONDS", id="a former producer of this broker"),
        pytest.param("null", None, "UNKNOWN_HOLDER_SECONDS", id="Pulsar names nobody"),
    ],
)
async def test_who_does_not_leave_is_pushed_out_in_the_end(
    holder: str, live: bool | None, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LIVE_HOLDER_SECONDS", "UNKNOWN_HOLDER_SECONDS"):
        monkeypatch.setattr(producer_module, name, 0.3 if name == limit else 1000.0)
    broker = Broker()
    engine = FakeEngine(broker)
    broker.exclusive_holder = holder
    if live is not None:
        engine.live_leaders[holder] = live
    loop = asyncio.get_running_loop()
    log = await log_of(engine)
    begun = loop.time()
    await log.lead(lambda: None)
    assert round(loop.time() - begun, 3) >= 0.3  # the clock counts whole milliseconds, in binary fractions
    assert broker.accesses.count("exclusive_with_fencing") == 1
    assert broker.accesses[-2:] == FENCED


@pytest.mark.parametrize("live", [True, False], ids=["live", "perhaps taken for dead"])
async def test_a_lead_that_is_given_back_is_closed_or_its_connection_dropped(live: bool) -> None:
    broker = Broker()
    engine = FakeEngine(broker)
    log = await log_of(engine)
    await log.lead(lambda: None)
    engine.counts_as_live = live
    await log.resign()
    (producer,) = broker.producers
    assert producer.closed
    assert producer.dropped_connection is not live
