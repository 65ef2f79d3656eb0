"""Upkeep of the engine over Pulsar while one broker hangs, against stand-ins: one partition never answers."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.waiting import until

from kop.errors import BackendError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import FOREVER, Retention
from kop.pulsar_client.outage import Outage
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar import upkeep
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.layout import PulsarTopic
from kop.storage.pulsar.topics import compaction
from kop.storage.pulsar.topics.compaction import CURSOR, Compactions
from kop.storage.pulsar.upkeep import Upkeep

HANGS = 3


class StandIn:
    """One partition's log: `HANGS` lies on a broker that never answers."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.topic = TopicInfo("__offsets", UUID(int=1 << 70), 20, {}, True)
        self.title = self.partition_name = f"__offsets-{index}"
        self.attached, self.deleted = True, False
        self.policy = LogPolicy(delete=False, compact=True)
        self.holds_lease = self.producing = True
        self.looks = self.idle_looks = 0
        self.error: Exception | None = None

    async def look_at_ends(self) -> None:
        self.looks += 1
        if self.index == HANGS:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    def close_idle(self, now: float, seconds: float) -> None:
        self.idle_looks += 1


class StandInEngine:
    """As much of the engine's parts as upkeep asks; `hangs` is the name of what never answers."""

    full_name = "persistent://public/kafka/__kop"

    def __init__(self, hangs: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self.stand_ins = [StandIn(index) for index in range(20)]
        self.faults = Faults(self.loop.time, Outage())
        self.settings = SimpleNamespace(idle_seconds=0.01, list_seconds=0.02)
        self.hangs = hangs
        self.errors: dict[str, Exception] = {}
        self.times: dict[str, int] = {}
        self.client = SimpleNamespace(partitions=lambda name: self.round("broker"))
        self.admin = self
        self.stored: dict[str, Any] = {}
        """The internal statistics of each partition."""
        self.retention = FOREVER

    def partitions(self) -> list[StandIn]:
        return list(self.stand_ins)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def upkeep(self) -> Upkeep:
        parts: Any = self
        return Upkeep(
            parts,
            parts,
            self.partitions,
            look_at_retention=lambda: self.round("retention"),
            look_at_compactions=lambda: self.round("compactions"),
            list_topics=lambda: self.round("listing"),
            close_idle=lambda now, seconds: None,
        )

    def compactions(self) -> Compactions:
        context: Any = self
        return Compactions(
            context, self.partitions, lambda _: PulsarTopic("persistent://public/kafka/__offsets", False, {})
        )

    async def properties(self) -> None:
        await self.round("rest")

    async def round(self, what: str) -> None:
        self.times[what] = self.times.get(what, 0) + 1
        if what in self.errors:
            raise self.errors[what]
        if what == self.hangs:
            await asyncio.Event().wait()

    async def stats(self, partition: str, *, backlogs: bool) -> dict[str, Any]:
        if partition.endswith(f"-{HANGS}"):
            await asyncio.Event().wait()
        return {"subscriptions": {CURSOR: {"backlogSize": 5, "earliestMsgPublishTimeInBacklog": 1}}}

    async def internal_stats(self, partition: str) -> dict[str, Any]:
        return self.stored

    async def get_retention(self, full_name: str, *, applied: bool = False) -> Retention:
        return self.retention

    async def set_retention(self, full_name: str, retention: Retention) -> None:
        self.retention = retention


PARTS = {"broker", "rest", "listing", "retention", "compactions"}


@pytest.mark.parametrize("hangs", sorted(PARTS))
async def test_a_part_of_upkeep_that_hangs_stops_no_other(hangs: str) -> None:
    engine = StandInEngine(hangs)
    engine.stand_ins[5].attached = False  # its producers may be idle, too
    looked_after = engine.upkeep()
    looked_after.start()
    goes_on = sorted(PARTS - {hangs})
    await until(lambda: all(engine.times.get(part, 0) > 5 for part in goes_on))
    await until(lambda: all(stand_in.idle_looks > 5 for stand_in in engine.stand_ins))
    assert engine.times[hangs] == 1, "no second one is begun behind it"
    await looked_after.close()


async def test_one_partition_that_never_answers_keeps_the_ends_of_no_other_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(upkeep, "AT_ONCE", 2)
    engine = StandInEngine()
    engine.stand_ins[5].error = BackendError("told where it came up")
    engine.stand_ins[7].error = ValueError("not thought of")
    looked_after = engine.upkeep()
    for rounds in (1, 2):
        await looked_after.look_at_ends()
        assert [stand_in.looks for stand_in in engine.stand_ins] == [rounds] * 20
    assert engine.faults.counts == {"upkeep_failed": 4}
    assert "__offsets-3 failed: it took too long" in caplog.text
    assert "__offsets-7 failed: ValueError" in caplog.text


async def test_one_partition_that_never_answers_keeps_no_other_from_the_look_at_its_compaction(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compaction, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(compaction, "AT_ONCE", 2)
    engine = StandInEngine()
    compactions = engine.compactions()
    with caplog.at_level(logging.WARNING):
        await compactions.look()
    assert sorted(index for _, index in compactions.uncompacted) == [index for index in range(20) if index != HANGS]
    assert engine.faults.counts == {"compaction/not_checked": 1}
    assert "cannot look after the compaction of __offsets-3: no answer in time" in caplog.text


LOST, NOT_YET = "has lost its subscription", "no compaction of persistent://public/kafka/__offsets has succeeded yet"


@pytest.mark.parametrize(
    ("stored", "told", "counts"),
    [
        pytest.param({"cursors": {CURSOR: {}}}, NOT_YET, {}, id="not compacted yet"),
        pytest.param({"compactedLedger": {"ledgerId": 5}}, LOST, {"compaction/without_cursor": 1}, id="no cursor"),
        pytest.param({}, LOST, {"compaction/without_cursor": 1}, id="neither"),
    ],
)
async def test_a_retention_that_was_changed_is_set_again_where_compaction_lets_nothing_go(
    stored: dict[str, Any], told: str, counts: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    engine = StandInEngine()
    engine.stand_ins = engine.stand_ins[:1]
    engine.stored, engine.retention = stored, Retention(60, -1)
    await engine.compactions().look()
    assert engine.retention == FOREVER
    assert engine.faults.counts == counts
    assert [text in caplog.text for text in (LOST, NOT_YET)] == [told == LOST, told == NOT_YET]


async def test_the_gateway_is_healthy_while_rest_is_silent_and_not_where_it_refuses_or_no_broker_answers() -> None:
    engine = StandInEngine()
    looked_after = engine.upkeep()
    looked_after.start()
    engine.errors["rest"] = PulsarError("Timeout", "no answer", retriable=True)
    await until(lambda: engine.times.get("rest", 0) > 3 and engine.times.get("broker", 0) > 3)
    assert looked_after.failure is None
    assert engine.faults.counts["upkeep_failed"] >= 3

    engine.errors["rest"] = PulsarError("Unauthorized", "expired", retriable=False)
    await until(lambda: looked_after.failure is not None)
    assert "refuses this broker: Unauthorized: expired" in str(looked_after.failure)
    del engine.errors["rest"]
    await until(lambda: looked_after.failure is None)

    engine.errors["broker"] = PulsarError("ConnectionLost", "gone", retriable=True)
    await until(lambda: looked_after.failure is not None)
    assert looked_after.failure == "Pulsar does not answer: ConnectionLost: gone"
    del engine.errors["broker"]
    await until(lambda: looked_after.failure is None)
    await looked_after.close()
