"""The tail that pauses while nobody needs it: when it does, and what makes it go on."""

from __future__ import annotations

import asyncio

import pytest
from storage.fake_pulsar_client import outcome, settle
from storage.test_pulsar_log import Play
from support.waiting import until

from kop.pulsar_client import Position, PulsarError
from kop.storage.pulsar.partition import log as log_module
from kop.storage.pulsar.partition import tail_demand
from kop.storage.pulsar.partition.tail_demand import CALM_SECONDS, CHECK_SECONDS, SLOWEST_SECONDS, TailDemand


def paused(now: float = 0.0) -> TailDemand:
    demand = TailDemand(now)
    assert demand.chained(now + CALM_SECONDS, 100)
    return demand


def test_it_pauses_when_entries_followed_each_other_for_a_while() -> None:
    demand = TailDemand(0)
    assert not demand.chained(0.9 * CALM_SECONDS, 100)
    assert demand.chained(1.1 * CALM_SECONDS, 200)
    assert not demand.chained(1.2 * CALM_SECONDS, 300), "it pauses already"


def test_few_entries_are_no_reason_to_pause() -> None:
    demand = TailDemand(0)
    assert not demand.chained(1.1 * SLOWEST_SECONDS, 100)
    assert demand.chained(1.2 * SLOWEST_SECONDS, 200)


def test_whoever_needs_it_puts_the_pause_off() -> None:
    demand = TailDemand(0)
    assert not demand.needed(0.5 * CALM_SECONDS), "it does not pause"
    assert not demand.chained(1.4 * CALM_SECONDS, 100)
    assert demand.chained(1.5 * CALM_SECONDS, 200)


def test_where_it_was_needed_soon_it_stays_for_longer() -> None:
    demand, now, stays = TailDemand(0), 0.0, []
    for _ in range(9):
        begin = now
        while not demand.chained(now, int(now * 10)):
            now += 0.5
        stays.append(now - begin)
        assert demand.needed(now)
        assert not demand.needed(now)
    assert stays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_silence_makes_it_go_on() -> None:
    demand = paused()
    assert not demand.look(1.5, 101)
    assert not demand.look(2.0, 102)
    assert demand.look(2.5, 102)
    assert not demand.paused


def test_it_goes_on_now_and_then_to_compare_offsets_and_that_is_no_reason_to_stay() -> None:
    demand, now, end = paused(), CALM_SECONDS, 100
    while True:
        now, end = now + tail_demand.LOOK_SECONDS, end + 1
        if demand.look(now, end):
            break
    assert CHECK_SECONDS <= now - CALM_SECONDS < CHECK_SECONDS + 1
    assert not demand.chained(now + 0.9 * CALM_SECONDS, end + 1)
    assert demand.chained(now + CALM_SECONDS, end + 2)


@pytest.fixture
def never_silent(tail_in_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test says when it is silent."""
    monkeypatch.setattr(tail_demand, "CALM_SECONDS", 0.0)
    monkeypatch.setattr(log_module, "LOOK_SECONDS", 3600.0)


async def paused_play() -> Play:
    """A log of one producer whose tail has brought all, and pauses."""
    play = Play(41)
    await play.run("aSRT")
    while not play.log.tail_pauses:
        for _ in range(16):
            play.append()
            play.broker.store()
            play.broker.tell()
        await settle()
        play.broker.tail.deliver()
        assert len(play.futures) < 1000
    assert None not in play.outcomes
    return play


@pytest.mark.usefixtures("never_silent")
async def test_offsets_are_told_while_it_pauses_and_are_right_when_it_goes_on() -> None:
    play = await paused_play()
    ends = play.log.high_watermark
    for _ in range(10):
        await play.run("aSR")
    assert play.outcomes[-10:] == list(range(ends, ends + 20, 2))
    assert play.broker.tail.sought == []
    last = play.log.last_position
    play.broker.foreign()  # nothing but the position of the next receipt tells of it
    await play.run("aSR")
    assert play.outcomes[-1] is None
    assert play.broker.tail.sought == [last], "it goes on behind the last entry that was placed"
    play.broker.tail.deliver()
    await settle()
    assert play.outcomes[-1] == ends + 23
    assert play.log.high_watermark == ends + 25
    await play.run("aSRT")
    assert play.outcomes[-1] == ends + 25
    assert not {"offsets_told_wrong", "entries_passed_over/acknowledged"} & play.counts.keys()


@pytest.mark.usefixtures("never_silent")
@pytest.mark.parametrize(
    "what",
    ["a new ledger", "somebody waits", "somebody reads to the end", "the log is asked for its end", "a duplicate"],
)
async def test_what_makes_it_go_on(what: str) -> None:
    play = await paused_play()
    last = play.log.last_position
    match what:
        case "a new ledger":
            await play.run("aLSR")
        case "somebody waits":
            undo = play.log.on_advance(lambda: None)
            await settle()
            undo()
        case "somebody reads to the end":
            read = play.log.read_cached(play.log.high_watermark - 1, 1 << 20, min_one=True)
            assert read is not None
            assert read.buffers
            assert play.log.tail_pauses
            play.log.read_cached(play.log.high_watermark, 1 << 20, min_one=True)
        case "the log is asked for its end":
            play.broker.foreign()
            asked = asyncio.create_task(play.log.refresh())
            await settle()
            play.broker.tail.deliver()
            await asked
            await settle()
        case "a duplicate":
            await play.run("aD")
    await settle()
    assert play.broker.tail.sought == [last]


@pytest.mark.usefixtures("never_silent")
async def test_asking_for_an_end_that_is_known_needs_no_tail() -> None:
    play = await paused_play()
    await play.log.refresh()
    assert play.broker.tail.sought == []


async def test_silence_of_a_log_lets_the_tail_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_demand, "CALM_SECONDS", 0.0)
    monkeypatch.setattr(log_module, "LOOK_SECONDS", 0.02)
    play = await paused_play()
    play.broker.foreign()
    await until(lambda: play.broker.tail.sought)
    end = play.log.high_watermark
    play.broker.tail.deliver()
    assert play.log.high_watermark == end + 3


@pytest.mark.usefixtures("never_silent")
async def test_wrong_offsets_are_found_when_it_goes_on() -> None:
    play = await paused_play()
    play.broker.tail.deliver()
    undo = play.log.on_advance(lambda: None)
    await settle()
    play.append()
    play.broker.store(1)  # the index counts otherwise
    play.broker.tell()
    await settle()
    play.broker.tail.deliver()
    await settle()
    assert play.counts["offsets_told_wrong"] == 1
    undo()


@pytest.mark.usefixtures("never_silent")
async def test_a_lost_tail_and_a_closed_log_look_no_more() -> None:
    play = await paused_play()
    await play.run("!")
    assert not play.log.attached
    await play.run("aSR")
    assert outcome(play.futures[-1]) is not None
    await play.log.close()
    assert play.log.last_position >= Position(7, 0)


@pytest.mark.usefixtures("never_silent")
async def test_a_tail_that_cannot_go_on_at_once_asks_for_entries_all_the_same() -> None:
    """The reader comes back by itself later. Without having asked it would get nothing then."""
    play = await paused_play()
    tail = play.broker.tail
    tail.seek_error = PulsarError("Timeout", "so says the test")
    tail.permits, tail.asked = 0, 0
    play.log.on_advance(lambda: None)
    await settle()
    assert len(tail.sought) == 1
    assert tail.asked > 0
    assert play.log.attached
