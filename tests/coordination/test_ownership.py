"""Taking partitions of a state topic over and letting them go, against a log that obeys the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from support.waiting import SECONDS, until

from kop.coordination import ownership as module
from kop.coordination.ownership import Ownership
from kop.errors import BackendError, ErrorCode

NONE, LOADING, ELSEWHERE = ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


class World:
    """Four partitions; `mine` says which of them this broker is given."""

    name = "__state"
    topic_id = UUID(int=1000)
    partitions = 4
    brokers_fresh = True

    def __init__(self) -> None:
        self.mine: set[int] = set()
        self.changed: Callable[[], None] = lambda: None
        self.led: dict[int, Callable[[], None]] = {}
        self.story: list[tuple[str, int]] = []
        self.refuse: set[int] = set()
        self.told = False
        """True if the log has said why it refuses."""
        self.doubtful: set[int] = set()
        self.robbed: set[int] = set()
        self.broken: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.installed: list[int] = []
        self.under_test = Ownership[int](
            self,  # type: ignore[arg-type]  # World has all that Ownership uses of a log
            self,  # type: ignore[arg-type]  # and all that it uses of brokers
            self,
            self.load,
            self.install,
            self.unload,
        )

    # the live brokers

    def is_leader(self, topic_id: UUID, partition: int) -> bool:
        assert topic_id == self.topic_id
        return partition in self.mine

    def leader(self, topic_id: UUID, partition: int) -> int:
        return 1 if partition in self.mine else 2 + partition % 2

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    # the log

    async def open(self) -> None:
        """It is there."""

    async def reopen(self) -> None:
        pass

    def partition_of(self, key: str) -> int:
        return int(key)

    def flush(self) -> None:
        """Nothing is queued."""

    def leads(self, partition: int) -> bool:
        return partition in self.led and partition not in self.doubtful

    async def lead(self, partition: int, lost: Callable[[], None]) -> None:
        self.story.append(("lead", partition))
        await asyncio.sleep(0)
        if partition in self.refuse:
            refusal = BackendError("another one holds it")
            refusal.told = self.told
            raise refusal
        self.led[partition] = lost

    async def verify_lead(self, partition: int) -> None:
        self.story.append(("verify", partition))
        self.doubtful.discard(partition)
        if partition in self.robbed and (lost := self.led.pop(partition, None)):
            lost()

    async def resign(self, partition: int) -> None:
        if self.led.pop(partition, None):
            self.story.append(("resign", partition))

    # the coordinator

    async def load(self, partition: int) -> int:
        assert partition in self.led
        self.story.append(("load", partition))
        await asyncio.sleep(0)
        if partition in self.broken:
            raise ValueError("a record that nobody can read")
        await self.gate.wait()
        return partition

    def install(self, partition: int, loaded: int) -> None:
        assert partition == loaded
        self.installed.append(partition)

    def unload(self, partition: int) -> None:
        self.story.append(("unload", partition))

    async def settle(self, *mine: int) -> None:
        self.mine = set(mine)
        self.changed()
        for _ in range(20):
            await asyncio.sleep(0.002)  # what is under way is of some turns of the loop; what follows waits in a pause

    @property
    def states(self) -> list[ErrorCode]:
        return [self.under_test.refusal(str(index)) for index in range(self.partitions)]


def run(test: Callable[[World], Any]) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        await world.under_test.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_what_is_ours_is_led_loaded_and_served_and_the_rest_is_elsewhere() -> None:
    async def test(world: World) -> None:
        world.mine = {0, 2}
        await world.under_test.start()
        assert world.states[1] == world.states[3] == ELSEWHERE
        await world.settle(0, 2)
        assert world.states == [NONE, ELSEWHERE, NONE, ELSEWHERE]
        assert not world.under_test.refusal_of_all
        assert [step for step in world.story if step[1] == 0] == [("lead", 0), ("load", 0)]

    run(test)


def test_who_may_have_been_replaced_answers_nothing_from_memory() -> None:
    async def test(world: World) -> None:
        world.mine = {0, 1}
        await world.under_test.start()
        await world.settle(0, 1)
        world.doubtful = {1}
        assert [world.under_test.refusal(str(index), surely=True) for index in range(3)] == [NONE, LOADING, ELSEWHERE]
        by_number = [world.under_test.refusal_of_partition(index, surely=True) for index in range(-1, 4)]
        assert by_number == [ELSEWHERE, NONE, LOADING, ELSEWHERE, ELSEWHERE], "those that are not there are nobody's"
        assert world.states[1] == NONE, "a write finds out by itself"
        await world.under_test.verify([1])
        assert world.under_test.refusal("1", surely=True) == NONE

    run(test)


def test_each_change_of_the_live_brokers_asks_whether_what_was_in_doubt_is_still_held() -> None:
    async def test(world: World) -> None:
        world.mine = {0, 1, 2}
        await world.under_test.start()
        await world.settle(0, 1, 2)
        world.doubtful, world.robbed = {1, 2}, {2}
        world.story.clear()
        await world.settle(0, 1, 2)
        assert [step for step in world.story if step[0] == "verify"] == [("verify", 1), ("verify", 2)]
        assert ("unload", 2) in world.story, "another one had it meanwhile"
        assert world.states[:2] == [NONE, NONE]

    run(test)


def test_a_partition_that_goes_to_another_broker_is_unloaded_before_it_is_resigned() -> None:
    async def test(world: World) -> None:
        world.mine = {0, 1}
        await world.under_test.start()
        await world.settle(0, 1)
        world.story.clear()
        await world.settle(1)
        assert world.story == [("unload", 0), ("resign", 0)]
        assert world.states == [ELSEWHERE, NONE, ELSEWHERE, ELSEWHERE]

    run(test)


def test_alone_the_start_ends_when_all_is_served() -> None:
    async def test(world: World) -> None:
        world.mine = {0, 1, 2, 3}
        await world.under_test.start()
        assert world.states == [NONE] * 4

    run(test)


def test_a_partition_that_cannot_be_had_keeps_neither_the_start_nor_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.02)

    async def test(world: World) -> None:
        world.mine, world.refuse = {0, 1, 2, 3}, {2}
        await world.under_test.start()
        assert world.states == [NONE, NONE, ELSEWHERE, NONE]
        assert world.under_test.refusal_of_all == LOADING, "a list of everything would lack some"
        said = "1 of 4 partitions of __state are not served: 2: KAFKA_STORAGE_ERROR: another one holds it"
        assert world.under_test.waiting_for == said
        assert f"{said}; trying again, all other partitions are served" in caplog.text
        world.refuse = set()
        await until(lambda: world.states == [NONE] * 4)
        assert world.under_test.waiting_for is None
        assert not world.under_test.refusal_of_all

    run(test)


def test_a_partition_that_never_answers_keeps_the_start_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_LOAD_SECONDS", 0.05)

    async def test(world: World) -> None:
        world.mine = {0}
        world.gate.clear()
        await world.under_test.start()
        assert world.states[0] == LOADING
        assert world.under_test.waiting_for is not None
        world.gate.set()
        await until(lambda: world.states[0] == NONE)

    run(test)


def test_a_load_that_fails_for_a_reason_nobody_thought_of_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.02)

    async def test(world: World) -> None:
        world.mine, world.broken = {0, 1}, {1}
        await world.under_test.start()
        assert world.states[:2] == [NONE, ELSEWHERE]
        assert ("resign", 1) in world.story, "another broker may have it meanwhile"
        world.broken = set()
        await until(lambda: world.states[1] == NONE)

    run(test)


def test_a_lead_that_is_lost_while_it_loads_serves_nothing_and_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.02)

    async def test(world: World) -> None:
        world.gate.clear()
        world.mine = {0}
        starting = asyncio.create_task(world.under_test.start())
        await until(lambda: ("load", 0) in world.story)
        term = world.under_test.term(0)
        world.led.pop(0)()
        assert world.states[0] == ELSEWHERE
        assert world.under_test.term(0) > term
        await starting
        assert world.installed == []
        await until(lambda: world.story.count(("load", 0)) == 2)
        world.gate.set()
        await until(lambda: world.states[0] == NONE)
        assert world.installed == [0]

    run(test)


def test_leads_that_move_are_one_line_and_a_lost_one_that_is_not_back_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOVES_SECONDS", 0.05)
    caplog.set_level("INFO", module.__name__)

    async def test(world: World) -> None:
        world.mine = {0, 1, 2}
        await world.under_test.start()
        world.led.pop(0)()  # the other broker knows already that it is given to it
        await world.settle(2)
        await until(lambda: bool(caplog.records))
        world.led.pop(2)()
        await until(lambda: len(caplog.records) == 2)

    run(test)
    (moved, lost) = caplog.records
    assert moved.levelname == "INFO"
    assert "leads of 2 partitions of" in moved.getMessage()
    assert moved.getMessage().endswith("moved to brokers 2 and 3")
    assert lost.levelname == "WARNING"
    assert "does not coordinate 1 partitions of" in lost.getMessage()


@pytest.mark.parametrize("told", [False, True])
def test_a_lost_lead_says_why_it_is_not_back_and_no_partition_repeats_what_is_told(
    told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOVES_SECONDS", 0.1)
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)

    async def test(world: World) -> None:
        world.mine = {0, 1}
        await world.under_test.start()
        world.refuse, world.told = {0, 1}, told
        for partition in (0, 1):
            world.led.pop(partition)()
        await until(lambda: "does not coordinate" in caplog.text)

    run(test)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    lost = "this broker does not coordinate 2 partitions of __state that are given to it: 0, 1: KAFKA_STORAGE_ERROR: "
    assert lost + "another one holds it; trying again" in lines
    assert len([line for line in lines if line.startswith("cannot coordinate")]) == (0 if told else 2)


def test_a_loss_that_an_earlier_term_tells_of_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)

    async def test(world: World) -> None:
        world.mine = {0}
        await world.under_test.start()
        earlier = world.led[0]
        await world.settle()
        await world.settle(0)
        await until(lambda: world.states[0] == NONE)
        earlier()
        assert world.states[0] == NONE

    run(test)


def test_one_that_was_taken_away_is_asked_for_again_only_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.5)

    async def test(world: World) -> None:
        await world.under_test.start()
        await world.settle(0)
        world.story.clear()
        world.led.pop(0)()
        assert world.states[0] == ELSEWHERE
        assert world.story == [("unload", 0)]
        await asyncio.sleep(0.05)  # nothing can be waited for: within the pause nothing shall come
        assert ("lead", 0) not in world.story
        await until(lambda: world.states[0] == NONE)
        assert world.story == [("unload", 0), ("lead", 0), ("load", 0)]

    run(test)


def test_one_that_was_taken_away_and_is_not_ours_any_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.02)

    async def test(world: World) -> None:
        await world.under_test.start()
        await world.settle(0)
        world.story.clear()
        world.mine = set()
        world.led.pop(0)()
        await asyncio.sleep(0.1)  # nothing can be waited for: after the pause nothing shall come either
        assert world.story == [("unload", 0)]

    run(test)


def test_a_refusal_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.02)

    async def test(world: World) -> None:
        await world.under_test.start()
        world.refuse = {0}
        await world.settle(0)
        assert world.states[0] in {ELSEWHERE, LOADING}
        world.refuse = set()
        await until(lambda: world.states[0] == NONE)

    run(test)


def test_a_take_over_ends_when_the_partition_is_given_to_another_broker_meanwhile() -> None:
    """It may wait long for that broker, which rightly leads the log, and would push it out in the end."""

    async def test(world: World) -> None:
        world.gate.clear()
        world.mine = {1, 2}
        starting = asyncio.create_task(world.under_test.start())
        await until(lambda: ("load", 1) in world.story)
        await world.settle(2)
        assert ("resign", 1) in world.story
        assert world.led.keys() == {2}
        world.gate.set()
        await starting
        assert world.states == [ELSEWHERE, ELSEWHERE, NONE, ELSEWHERE]
        await world.settle(1, 2)
        assert world.states == [ELSEWHERE, NONE, NONE, ELSEWHERE]

    run(test)


def test_a_start_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.01)
    waiting = "still starting: 1 of 4 partitions of __state are not served: 1: they are being read"

    async def test(world: World) -> None:
        world.gate.clear()
        world.mine = {1}
        starting = asyncio.create_task(world.under_test.start())
        await until(lambda: waiting in caplog.text)
        world.gate.set()
        await starting
        assert world.states[1] == NONE

    run(test)
