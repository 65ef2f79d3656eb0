"""A partition's log over a Pulsar without sockets: which offset an append is told, and what every fault ends in."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from storage.batches import batch, records
from storage.fake_pulsar_client import (
    KEEPS_ALL,
    STAMP,
    Broker,
    FakeAdmin,
    FakeEngine,
    FakeProducer,
    FakeReader,
    outcome,
    settle,
)
from support.waiting import until

from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import Position, PulsarError, TxnId
from kop.pulsar_client.address import PulsarAddress
from kop.pulsar_client.packed import pack
from kop.records import transcode
from kop.records.batch import is_transactional, read_header
from kop.storage.base import AppendResult, LogPolicy
from kop.storage.pulsar.faults import Refused, refusal_name
from kop.storage.pulsar.layout import transaction_name
from kop.storage.pulsar.partition import appends, entry_sizes, tail_delays, throttle
from kop.storage.pulsar.partition import log as log_module
from kop.storage.pulsar.partition import producer as producer_module
from kop.storage.pulsar.partition import tail as tail_module
from kop.storage.pulsar.partition.decompression import MOST_AT_ONCE
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading import stored_batches
from kop.storage.pulsar.reading.stored_batches import Outcome, Stored, Stretch, Wanted
from kop.turns import Turns

STORED = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE
AGAIN = ErrorCode.KAFKA_STORAGE_ERROR
GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
WRONG = "offsets_told_wrong"
ASKED = "tail_late/offset_asked"
NOWHERE: Any = object()
"""Stored, and its records have no offsets of their own."""


class Play:
    """Runs a script on a log that holds three records of somebody else's.

    a append two records   S the broker stores the next entry   s the same, the index moves by 1   R the next receipt
    D a receipt "duplicate"   X a receipt "Timeout"   F somebody else's entry of three   L a new ledger
    G four offsets without an entry that anybody sees   T the tail brings all   ! the tail is lost
    """

    def __init__(
        self,
        producer: int,
        policy: LogPolicy = KEEPS_ALL,
        *,
        broker: Broker | None = None,
        offsets: str = "index",
        open_bytes: int = 1 << 20,
    ) -> None:
        self.broker = Broker() if broker is None else broker
        self.broker.foreign()
        self.engine = FakeEngine(self.broker, offsets, open_bytes=open_bytes)
        self.log = self.engine.log(policy)
        self.producer = producer
        self.futures: list[asyncio.Future[Any]] = []
        self.sequence = 0

    def append(
        self, sequence: int | None = None, values: tuple[str, ...] = ("x", "y"), epoch: int = 0, **how: Any
    ) -> None:
        first = self.sequence if sequence is None else sequence
        data = batch(values, producer=self.producer, epoch=epoch, sequence=first, **how)
        self.sequence = first + len(values)
        self.futures.append(self.log.append(data, read_header(data), now_ms=0))

    async def run(self, script: str) -> None:
        broker = self.broker
        steps: dict[str, Callable[[], object]] = {
            "a": self.append,
            "S": broker.store,
            "s": lambda: broker.store(1),
            "R": broker.tell,
            "D": lambda: broker.tell(duplicate=True),
            "X": lambda: broker.tell("Timeout"),
            "F": broker.foreign,
            "L": broker.new_ledger,
            "G": lambda: broker.gap(4),
            "T": lambda: broker.tail.deliver(),  # noqa: PLW0108 - the tail of then
            "!": lambda: broker.tail.on_lost(PulsarError("TopicNotFound", "so says the test")),
        }
        for step in script:
            if step != " ":
                steps[step]()
                await settle()

    @property
    def outcomes(self) -> list[int | ErrorCode | None]:
        return [outcome(future) for future in self.futures]

    @property
    def counts(self) -> dict[str, int]:
        return self.engine.faults.counts


PRODUCERS = pytest.mark.parametrize("producer", [-1, 41])
SCRIPTS: dict[str, tuple[str, list[Any], dict[str, int]]] = {
    "the entry before is known": ("aSR", [3], {}),
    "one behind the other": ("aSR aSR aSR", [3, 5, 7], {}),
    "receipts later than entries": ("aaa SSS RRR", [3, 5, 7], {}),
    "the tail agrees": ("aSR aSR T", [3, 5], {}),
    "the tail is faster": ("aST", [3], {}),
    "the tail is faster, then the receipt": ("aST R", [3], {}),
    "half by the tail": ("aa ST S RR", [3, 5], {}),
    "a foreign entry before ours: wait": ("aF SR", [None], {}),
    "a foreign entry before ours: the tail tells": ("aF SRT", [6], {}),
    "a foreign entry between two": ("aa S F S RR", [3, None], {}),
    "a foreign entry between two, then the tail": ("aa S F S RRT", [3, 8], {}),
    "behind a foreign entry the chain goes on": ("aF SRT aSR", [6, 8], {}),
    "a new ledger: wait": ("aL SR", [None], {}),
    "a new ledger: the tail tells": ("aL SRT", [3], {}),
    "in the new ledger the chain goes on": ("aL SRT aSR", [3, 5], {}),
    "a gap: wait": ("aG SR", [None], {}),
    "a gap: the tail tells": ("aG SRT", [7], {}),
    "a gap, the receipt later": ("aG STR", [7], {}),
    "the index moves too little: not told, not overlapping": (
        "aL sRT",
        [NOWHERE],
        {"entries_unreadable/miscounted": 1},
    ),
    "a breach of the chain is counted": ("a sR T", [3], {WRONG: 1}),
    "a lost receipt, the tail brings it": ("aS D T", [3], {}),
    "the tail brings it, the receipt says duplicate": ("aST D", [3], {}),
    "two duplicates": ("aa SS DD T", [3, 5], {}),
    "nothing is told before a receipt or the tail": ("aS", [None], {}),
    "the tail is lost with a batch under way": ("a! SR", [3], {"tail_lost/failed": 1}),
    "the tail is lost with two batches under way": ("aa! SR F SR", [3, 8], {"tail_lost/failed": 1, ASKED: 1}),
    "the tail is lost with a stored batch that waits for it": ("aL SR!", [3], {"tail_lost/failed": 1, ASKED: 1}),
    "what ended before the tail was lost stays": ("aSR a! SR", [3, 5], {"tail_lost/failed": 1}),
}


def seen(play: Play) -> tuple[object, ...]:
    """All that a log tells of itself."""
    log = play.log
    cached = log.tail.cached
    kept = [bytes(data) for data in cached.buffers[cached.first :]]
    bounds = (log.high_watermark, log.last_position, log.size_bytes, log.clock_ahead)
    return play.outcomes, bounds, cached.start, cached.lasts[cached.first :], kept, play.counts


@pytest.mark.usefixtures("tail_in_time")
@pytest.mark.parametrize("offsets", ["index", "packed"])
@pytest.mark.parametrize("producer", [-1, 41])
async def test_receipts_that_come_together_do_what_they_do_one_by_one(
    producer: int, offsets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "MARK_EVERY", 3)
    for seed in range(60):
        dice = random.Random(seed)
        together, alone = Play(producer, offsets=offsets), Play(producer, offsets=offsets)
        for play in (together, alone):
            await play.run("a")
        for _ in range(dice.randint(2, 12)):
            step = dice.choice(["a", "aa", "aaaa", "S", "SS", "SSSS", "F", "L", "T", "beside", "receipts", "receipts"])
            for play in (together, alone):
                if step == "beside":  # the next entry of the new ledger has the number that would be next in the old
                    await play.run("L" + "F" * (play.log.last_position.entry + 1))
                elif step != "receipts":
                    unsent = sum(sent.position is None for sent in play.broker.sent)
                    await play.run(step if "S" not in step else "S" * min(len(step), unsent))
                elif play is together:
                    play.broker.tell_together()
                else:
                    for _ in range(sum(sent.position is not None and not sent.answered for sent in play.broker.sent)):
                        play.broker.tell()
                await settle()
            assert seen(together) == seen(alone), f"seed {seed}, behind {step}"
            for told, sent in zip(together.outcomes, together.broker.sent, strict=False):
                if told is not None:
                    assert sent.position is not None
                    index = {entry.position: entry.index or 0 for entry in together.broker.entries}[sent.position]
                    true = index - sent.count + 1 if offsets == "index" else pack(sent.position)
                    assert told == true, f"seed {seed}, behind {step}"
        for play in (together, alone):
            await play.log.close()
            assert None not in play.outcomes
            assert play.engine.queued_bytes == 0


@PRODUCERS
@pytest.mark.parametrize("case", SCRIPTS)
async def test_what_an_append_is_told(case: str, producer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script, expected, counts = SCRIPTS[case]
    # A slow machine must not make the tail late before the script has come to its end.
    monkeypatch.setattr(appends, "LATE_TAIL_SECONDS", 1.0 if ASKED in counts else 3600.0)
    play = Play(producer)
    await play.run(script)
    if ASKED in counts:
        await until(lambda: None not in play.outcomes)
    expected = [(STORED if producer >= 0 else AGAIN) if offset is NOWHERE else offset for offset in expected]
    assert play.outcomes == expected
    assert play.counts == counts
    await play.log.close()
    assert None not in play.outcomes, "every future has ended when the log is closed"
    await settle()
    assert play.engine.queued_bytes == 0


@PRODUCERS
async def test_what_is_told_is_what_is_read(producer: int) -> None:
    play = Play(producer)

    def ours(offset: int) -> list[int]:
        cached = play.log.read_cached(offset, 1 << 20, min_one=True)
        assert cached is not None
        return [record.offset for record in records(cached.buffers) if record.value in {b"x", b"y"}]

    await play.run("aSR aF SRT")
    assert ours(3) == [3, 4, 8, 9]
    play.broker.mark_delete = None
    await play.run("aG SRT aL SRT aSR F T")
    assert play.outcomes == [3, 8, 14, 16, 18]
    # Where Pulsar does not say that it left the tail alone, what lies in a gap is read, not answered from memory.
    assert play.log.read_cached(9, 1 << 20, min_one=True) is None
    assert play.log.read_cached(13, 1 << 20, min_one=True) is None
    assert ours(14) == [14, 15, 16, 17, 18, 19]
    assert play.log.high_watermark == 23
    await play.log.close()


@PRODUCERS
@pytest.mark.usefixtures("tail_in_time")
async def test_log_append_time_comes_with_the_tail(producer: int) -> None:
    play = Play(producer, LogPolicy(log_append_time=True))
    await play.run("aSR")
    assert play.outcomes == [None], "the receipt does not tell the time"
    await play.run("T")
    assert play.futures[0].result().base_offset == 3
    assert play.futures[0].result().log_append_time == STAMP
    cached = play.log.read_cached(3, 1 << 20, min_one=True)
    assert cached is not None
    assert read_header(cached.buffers[0]).max_timestamp == STAMP
    await play.log.close()


async def test_the_offsets_behind_a_fence_follow_from_the_fences_own() -> None:
    play = Play(41)
    await play.log.attach()
    play.log.join_transaction(41, 0, transaction_name(transcode.EntryTransaction(1, 2)))
    play.broker.gap(1)  # the marker of the transaction before
    play.broker.foreign(1, name="fences")
    fence = play.broker.position
    play.log.fenced(fence)
    await until(lambda: play.broker.asked == [fence])
    await settle()
    play.broker.ask_error = PulsarError("NotFound", "so says the test")
    play.append(transactional=True)
    play.append(transactional=True)
    await settle()
    await play.run("SSRR")
    assert play.outcomes == [5, 7]
    assert play.log.high_watermark == 3
    await play.log.close()


async def in_transaction(play: Play) -> None:
    """A transaction is open, and its fence is the last entry."""
    await play.log.attach()
    play.log.join_transaction(41, 0, transaction_name(transcode.EntryTransaction(1, 2)))
    play.broker.foreign(1, name="fences")
    fence = play.broker.position
    play.log.fenced(fence)
    await until(lambda: play.broker.asked == [fence])
    await settle()


async def test_a_transaction_that_nobody_writes_in_is_forgotten() -> None:
    """Its producer is asked for it again. One that takes a batch now and then keeps it."""
    play = Play(41)
    await in_transaction(play)
    play.log.join_transaction(42, 0, transaction_name(transcode.EntryTransaction(1, 3)))
    play.append(transactional=True)
    await settle()
    await play.run("SR")
    play.log.close_idle(play.log.loop.time(), 10)
    assert [play.log.in_transaction(producer, 0) for producer in (41, 42)] == [True, False]
    play.log.close_idle(play.log.loop.time() + 100, 10)
    assert not play.log.in_transaction(41, 0)
    await play.log.close()


@pytest.mark.parametrize("sent_in", [False, True])
async def test_a_batch_that_waits_until_its_transaction_ends_is_not_sent(sent_in: bool) -> None:
    """Its producer may take seconds to open, while a killed gateway seems to have its name. Behind the end of the
    transaction the batch would be stored for nobody, or hold readers back.
    """
    play = Play(41)
    await in_transaction(play)
    play.log.join_transaction(41, 0, transaction_name(transcode.EntryTransaction(1, 3, sent_in)))
    play.broker.opening_takes = asyncio.Event()
    play.append(transactional=True)
    await settle()
    play.log.services.ended_transactions.add(TxnId(1, 3))
    play.broker.opening_takes.set()
    await until(lambda: play.outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER])
    play.log.join_transaction(41, 1, transaction_name(transcode.EntryTransaction(1, 4)))
    play.append(sequence=0, epoch=1, transactional=True)
    await settle()
    await play.run("SR")
    assert play.outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 4], "the next transaction goes on at once"
    await play.log.close()


async def test_what_is_not_transactional_is_refused_of_a_producer_that_writes_in_a_transaction() -> None:
    play = Play(41)
    await in_transaction(play)
    play.append()
    assert play.outcomes == [ErrorCode.INVALID_TXN_STATE]
    play.append(sequence=0, transactional=True)
    play.append(sequence=0, epoch=1)
    await settle()
    await play.run("SSRR")
    assert play.outcomes == [ErrorCode.INVALID_TXN_STATE, 4, 6]
    await play.log.close()


@pytest.mark.parametrize("room", [2, 1, 0])
async def test_a_committed_batch_is_served_in_the_bytes_that_came_in_where_there_is_room(room: int) -> None:
    play = Play(41, open_bytes=room * 400)
    await in_transaction(play)
    play.append(transactional=True)
    play.append(transactional=True)
    await settle()
    await play.run("SSRR")
    assert play.outcomes == [4, 6]
    assert play.log.high_watermark == 3
    assert (play.log.services.open_batches.size > 0) is (room > 0)
    await play.run("T")
    cached = play.log.read_cached(4, 1 << 20, min_one=True)
    assert cached is not None
    assert [(each.offset, each.value) for each in records(cached.buffers)] == [
        (4, b"x"),
        (5, b"y"),
        (6, b"x"),
        (7, b"y"),
    ]
    as_they_came = [is_transactional(each) for each in cached.buffers]
    assert as_they_came == [False] * (2 - room) + [True] * room, "the oldest went"
    assert play.log.services.open_batches.size == 0
    assert not play.counts
    await play.log.close()


@pytest.mark.parametrize("how", ["aborted", "the tail is lost", "the log is closed"])
async def test_a_batch_that_the_tail_never_brings_is_not_kept(how: str) -> None:
    play = Play(41)
    await in_transaction(play)
    play.append(transactional=True)
    await settle()
    await play.run("SR")
    assert play.outcomes == [4]
    if how == "aborted":
        play.broker.entries.pop()
        await play.run("FT")
        assert play.log.high_watermark == 9
    elif how == "the tail is lost":
        await play.run("!")
    else:
        await play.log.close()
    assert play.log.services.open_batches.size == 0
    await play.log.close()


async def test_after_the_tail_was_lost_the_next_batch_attaches_again_and_nothing_is_missing() -> None:
    play = Play(41)
    await play.run("aSR aS !")
    assert play.outcomes == [3, None]
    assert not play.log.attached
    play.append(2)  # the client sends it again
    await settle()
    await play.run("R")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3, 5, 5]
    await play.run("aSR")
    assert play.outcomes[3] == 7
    assert play.log.high_watermark == 9
    await play.log.close()


async def test_what_is_idle_is_closed_though_the_tail_was_lost() -> None:
    """Another gateway may want the names, and nobody may ask this one for the partition again."""
    play = Play(41)
    await play.run("aSR T")
    plain = batch(["x"])
    play.futures.append(play.log.append(plain, read_header(plain), now_ms=0))
    await settle()
    await play.run("SR T")
    play.log.join_transaction(41, 0, transaction_name(transcode.EntryTransaction(1, 2)))
    await play.run("!")
    assert not play.log.attached
    assert play.broker.open_names == {"pid-41", "gateway"}
    now = play.log.loop.time()
    play.log.close_idle(now + 100, 10)
    await settle()
    assert play.broker.open_names == {"gateway"}
    assert not play.log.in_transaction(41, 0)
    play.log.close_idle(now + 100 + play.engine.settings.tail_seconds + 1, 10)
    await settle()
    assert play.broker.open_names == set()
    assert not play.log.producing
    await play.run("aSR")
    assert play.outcomes == [3, 5, 6]
    await play.log.close()


async def test_a_transaction_is_forgotten_though_its_log_never_attached() -> None:
    """While a batch of it waits for that, it is known."""
    play = Play(41)
    play.broker.attach_error = PulsarError("ServiceNotReady", "soon")
    play.log.join_transaction(41, 0, transaction_name(transcode.EntryTransaction(1, 2)))
    play.append(transactional=True)
    play.log.close_idle(play.log.loop.time(), 10)
    assert play.log.in_transaction(41, 0)
    await settle()
    assert play.outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    play.log.close_idle(play.log.loop.time(), 10)
    assert not play.log.in_transaction(41, 0)
    await play.log.close()


async def test_a_log_that_attaches_for_long_is_not_let_go() -> None:
    """Its producers are still there from before the tail was lost."""
    play = Play(-1)
    await play.run("aSR T !")
    turns = play.log.services.attaching = Turns(1, slow_seconds=3600)
    taken = turns.turn()
    await taken.__aenter__()
    waiting = asyncio.ensure_future(play.log.attach())
    await settle()
    now, long = play.log.loop.time(), play.engine.settings.tail_seconds + 1
    for round_ in range(3):
        play.log.close_idle(now + round_ * long, 10)
    await taken.__aexit__(None, None, None)
    await waiting
    assert play.log.attached
    assert play.broker.open_names == {"gateway"}
    await play.log.close()


async def test_a_stream_that_was_left_does_not_reach_the_log() -> None:
    play = Play(-1)
    await play.run("aSR T")
    old = play.broker.tail
    await play.run("!")
    await play.log.attach()
    play.broker.foreign()
    play.broker.foreign()
    old.closed = False
    old.deliver()
    assert play.log.high_watermark == 5
    play.broker.tail.deliver()
    assert play.log.high_watermark == 11
    await play.log.close()


async def test_a_tail_that_ends_while_it_begins_is_no_attached_log(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(-1)
    opened = play.broker.open_reader

    async def open_reader(*args: Any, **named: Any) -> FakeReader:
        reader = await opened(*args, **named)
        if not reader.probe:
            reader.on_lost(PulsarError("TopicNotFound", "gone again"))
        return reader

    with monkeypatch.context() as patched:
        patched.setattr(play.broker, "open_reader", open_reader)
        await play.run("a")
    assert play.outcomes == [AGAIN]
    assert not play.log.attached
    await play.run("aSR")
    assert play.outcomes == [AGAIN, 3]
    await play.log.close()


async def test_appends_keep_their_order_while_the_log_attaches() -> None:
    play = Play(41)
    play.append()
    for _ in range(1000):
        if play.log.attached:
            break
        await asyncio.sleep(0)
    play.append()  # attached, but what waited has not been handed on
    await settle()
    assert [sent.sequence_id for sent in play.broker.sent] == [0, 2]
    await play.log.close()


async def test_an_attach_that_fails_fails_what_waits_and_the_next_try_succeeds() -> None:
    play = Play(41)
    play.broker.attach_error = PulsarError("ServiceNotReady", "soon")
    await play.run("aa")
    assert play.outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    play.broker.attach_error = None
    play.append(0)
    await settle()
    await play.run("SR")
    assert play.outcomes[2] == 3
    await play.log.close()


async def test_an_attach_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "ATTACH_SECONDS", 0.02)
    play = Play(41)
    monkeypatch.setattr(play.broker, "open_reader", lambda *_, **__: asyncio.sleep(3600))  # for ever
    play.append()
    await until(lambda: play.outcomes == [ErrorCode.REQUEST_TIMED_OUT])
    await play.log.close()


async def test_the_clock_of_attaching_starts_with_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(41)
    turns = play.log.services.attaching = Turns(1, slow_seconds=3600)
    taken = turns.turn()
    await taken.__aenter__()
    monkeypatch.setattr(log_module, "ATTACH_SECONDS", 0.0)  # a clock that ran while it waits would end it at once
    play.append()
    await asyncio.sleep(0.05)  # nothing can be waited for: it must not end
    assert play.outcomes == [None]
    monkeypatch.setattr(log_module, "ATTACH_SECONDS", 25.0)
    await taken.__aexit__(None, None, None)
    await until(lambda: play.log.attached)
    await until(lambda: bool(play.broker.sent))
    await play.run("SR")
    assert play.outcomes == [3]
    await play.log.close()


async def test_requests_do_not_wait_for_ever_for_their_logs_turn_which_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "WAIT_SECONDS", 0.02)
    play = Play(41)
    turns = play.log.services.attaching = Turns(1, slow_seconds=3600)
    taken = turns.turn()
    await taken.__aenter__()
    with pytest.raises(BackendError) as late:
        await play.log.attach()
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert play.counts["reads_refused/timeout"] == 1
    await taken.__aexit__(None, None, None)
    await until(lambda: play.log.attached)
    await play.log.close()


def long_about_attaching(monkeypatch: pytest.MonkeyPatch) -> tuple[Play, asyncio.Event]:
    """Return a play whose log attaches when the event is set, since Pulsar gives it no reader before. It sends batches
    meanwhile.
    """
    monkeypatch.setattr(log_module, "SEND_SECONDS", 0.02)
    play, readers_come = Play(41), asyncio.Event()
    open_reader = play.broker.open_reader

    async def late(*args: Any, **how: Any) -> FakeReader:
        await readers_come.wait()
        return await open_reader(*args, **how)

    monkeypatch.setattr(play.broker, "open_reader", late)
    return play, readers_come


async def test_batches_are_sent_and_answered_in_order_while_a_log_is_long_about_attaching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pulsar may recover a transaction buffer for minutes. It gives nothing to readers meanwhile, and stores what
    producers send.
    """
    play, readers_come = long_about_attaching(monkeypatch)
    await play.run("aa")
    assert not play.broker.sent
    await until(lambda: len(play.broker.sent) == 2)
    await play.run("SSRRaSR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3, 5, 7]
    assert [sent.sequence_id for sent in play.broker.sent] == [0, 2, 4]
    assert not play.log.attached
    readers_come.set()
    await until(lambda: play.log.attached)
    assert play.log.high_watermark == 9
    await play.run("aSRT")
    assert (play.outcomes[3], play.log.high_watermark) == (9, 11)
    await play.log.close()


async def test_batches_wait_longer_for_a_log_whose_turn_to_attach_has_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those of a thousand partitions would be sent while they attach, and each be asked for."""
    monkeypatch.setattr(log_module, "SEND_SECONDS", 0.01)
    play = Play(41)
    turns = play.log.services.attaching = Turns(1, slow_seconds=3600)
    taken = turns.turn()
    await taken.__aenter__()
    await play.run("a")
    await asyncio.sleep(0.05)  # nothing can be waited for: it must not be sent
    assert not play.broker.sent
    monkeypatch.setattr(log_module, "WAIT_SECONDS", 0.02)
    other = Play(41)
    other.log.services.attaching = turns
    await other.run("a")
    await until(lambda: len(other.broker.sent) == 1)
    assert not play.broker.sent
    await taken.__aexit__(None, None, None)
    await until(lambda: len(play.broker.sent) == 1)
    for each in (play, other):
        await each.run("SR")
        assert each.outcomes == [3]
        await each.log.close()


async def test_batches_that_were_sent_before_a_log_attached_keep_their_offsets_when_it_fails_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "SEND_SECONDS", 0.02)
    monkeypatch.setattr(log_module, "ATTACH_SECONDS", 0.1)
    play = Play(41)
    monkeypatch.setattr(play.broker, "open_reader", lambda *_, **__: asyncio.sleep(3600))  # for ever
    await play.run("a")
    await until(lambda: len(play.broker.sent) == 1)
    await until(lambda: "reads_refused/timeout" in play.counts)
    await play.run("SR")
    await until(lambda: play.outcomes == [3])
    await play.log.close()


@pytest.mark.parametrize("script", ["aS", "a!S"])
async def test_an_entry_that_was_stored_while_the_log_was_attached_is_not_sent_again(script: str) -> None:
    """Also if the tail was lost then: what it does not bring is searched for. Pulsar's deduplication may have forgotten
    the entry.
    """
    play = Play(41)
    await play.run(script)
    await play.log.attach()
    coming = asyncio.create_task(play.broker.producers[-1].come_back())
    await settle()
    await play.run("T")
    assert await coming == []
    await until(lambda: play.outcomes == [3])
    await play.log.close()


async def test_an_entry_that_was_stored_before_the_log_attached_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play, readers_come = long_about_attaching(monkeypatch)
    await play.run("a")
    await until(lambda: len(play.broker.sent) == 1)
    await play.run("S")
    readers_come.set()
    await play.log.attach()
    coming = asyncio.create_task(play.broker.producers[-1].come_back())
    await play.run("T")
    assert await coming == []
    await until(lambda: play.outcomes == [3])
    await play.log.close()


async def test_an_entry_that_was_not_stored_before_the_log_attached_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play, readers_come = long_about_attaching(monkeypatch)
    await play.run("a")
    await until(lambda: len(play.broker.sent) == 1)
    readers_come.set()
    await play.log.attach()
    assert await play.broker.producers[-1].come_back() == [0]
    await play.log.close()


async def test_a_clock_that_runs_ahead_is_noticed_and_the_log_start_not_told_before_the_log_attaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play, readers_come = long_about_attaching(monkeypatch)
    hour = 3_600_000
    ahead = play.engine.rest.now_ms() + hour
    play.append(timestamp=ahead)
    await until(lambda: len(play.broker.sent) == 1)
    await play.run("SR")
    await until(lambda: play.outcomes == [3])
    assert play.futures[0].result().log_start_offset == -1
    readers_come.set()
    await play.log.attach()
    assert play.log.clock_ahead >= hour
    await play.log.close()


# --- an idempotent producer's failed batch is never passed


async def test_an_entry_that_pulsar_refuses_takes_none_with_it() -> None:
    """Those behind it are stored: they end with their own receipts. The refused one can be stored in a new epoch."""
    play = Play(41)
    await play.run("aaaa S")
    play.broker.refuse_next()
    await play.run("SSRRRR")
    assert play.outcomes == [3, TOO_LARGE, 5, 7]
    play.append(2)
    play.append(3, ("x",))
    play.append(2, ("x", "y", "z"))
    play.append(4)
    assert play.outcomes[4:] == [ErrorCode.UNKNOWN_PRODUCER_ID] * 3 + [5]
    play.append(8)
    play.append(0, epoch=1)
    await settle()
    await play.run("SRSR")
    assert play.outcomes[8:] == [9, 11]
    assert len(play.broker.producers) == 1
    assert play.counts == {"writes_refused/not_allowed_error": 1}
    await play.log.close()


async def test_an_entry_that_pulsar_refuses_takes_no_sequence_when_none_is_behind_it() -> None:
    play = Play(41)
    await play.run("aaa S")
    play.broker.refuse_next()
    play.broker.refuse_next()
    await play.run("RRR")
    assert play.outcomes == [3, TOO_LARGE, TOO_LARGE]
    play.append(3)
    assert play.outcomes[3] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    play.append(2, ("x",))
    play.append(3, ("y",))
    await settle()
    await play.run("SSRR")
    assert play.outcomes[4:] == [5, 6]
    await play.log.close()


async def test_the_topics_limit_on_sizes_is_known_before_a_sequence_is_taken() -> None:
    play = Play(41)
    play.broker.size_limit = 500
    await play.run("a")
    play.append(values=("x" * 1000,))
    play.append()
    await settle()
    assert len(play.broker.sent) == 1
    assert play.outcomes == [None, TOO_LARGE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert play.counts == {"writes_refused/not_allowed_error": 1}
    play.append(2)
    await settle()
    await play.run("SSRR")
    assert play.outcomes[::3] == [3, 5]
    await play.log.close()


async def test_a_limit_on_sizes_that_changes_is_learned_from_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_sizes, "DOUBT_SECONDS", 0.0)
    play = Play(41)
    await play.run("aSR")
    limit = play.log.entry_size_limit
    play.broker.size_limit = 500
    play.append(values=("x" * 1000,))
    await settle()
    play.broker.refuse_next()
    await play.run("R")
    assert play.outcomes[1] is TOO_LARGE
    await until(lambda: limit.bytes == 500)
    play.append(2, ("x" * 1000,))
    assert play.outcomes[2] is TOO_LARGE, "it is not sent"
    play.broker.size_limit = None
    play.append(2, ("x" * 1000,))
    await until(lambda: limit.bytes == 0)
    play.append(2, ("x" * 1000,))
    await settle()
    await play.run("SR")
    assert play.outcomes[-1] == 5
    await play.log.close()


@pytest.mark.parametrize("error", [None, "ServiceUnavailable"], ids=["a limit", "not known"])
async def test_what_stands_behind_a_large_batch_is_not_stored_before_it_where_pulsar_refuses_it(
    error: str | None,
) -> None:
    """Somebody lowered the limit of the topic, or Pulsar does not tell it. The client goes on as with Apache Kafka."""
    play = Play(41)
    play.broker.size_limit = 400_000
    play.broker.size_limit_error = None if error is None else PulsarError(error, "so says the test")
    await play.run("aSR")
    play.append(values=("x" * 100_000, "y"))
    await play.run("aa")
    assert len(play.broker.sent) == 2, "what stands behind the large batch waits"
    play.broker.refuse_next()
    await play.run("R")
    assert play.outcomes == [3, TOO_LARGE, *[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2]
    play.append(2, ("x",))
    play.append(3, ("y",))
    play.append(4)
    await play.run("SSSRRR")
    assert play.outcomes[4:] == [5, 6, 7]
    await play.log.close()


async def test_what_stands_behind_a_large_batch_goes_on_in_order_once_pulsar_took_it() -> None:
    play = Play(41)
    play.broker.size_limit = 400_000
    await play.run("aSR")
    for _ in range(2):
        play.append(values=("x" * 100_000,))
        await play.run("a")
    play.append(2, ("x" * 100_000,))
    await settle()
    assert len(play.broker.sent) == 2
    await play.run("SR SS")
    assert [sent.sequence_id for sent in play.broker.sent] == [0, 2, 3, 5], "the second large one holds up again"
    await play.run("RR SR T")
    assert play.outcomes == [3, 5, 6, 8, 9, 5], "the last one is a retry of the first large one"
    await play.log.close()


@pytest.mark.parametrize(
    ("producer", "size", "limit", "error"),
    [
        (41, 10_000, 400_000, None),
        (41, 100_000, None, None),
        (41, 100_000, None, "NotAllowed"),
        (-1, 100_000, 400_000, None),
    ],
    ids=["small", "no limit", "no policies of topics", "not idempotent"],
)
async def test_what_stands_behind_a_batch_is_sent_at_once_where_nothing_speaks_against_it(
    producer: int, size: int, limit: int | None, error: str | None
) -> None:
    play = Play(producer)
    play.broker.size_limit = limit
    play.broker.size_limit_error = None if error is None else PulsarError(error, "so says the test")
    await play.run("a")
    play.append(values=("x" * size,))
    await play.run("a")
    assert len(play.broker.sent) == 3
    await play.run("SSSRRR")
    assert play.outcomes == [3, 5, 6]
    await play.log.close()


async def test_what_stands_behind_a_large_batch_that_the_tail_brought_goes_on_when_the_connection_is_back() -> None:
    """The batch is not sent again, so that it gets no receipt."""
    play = Play(41)
    play.broker.size_limit = 400_000
    play.append(values=("x" * 100_000,))
    await play.run("aST")
    assert play.outcomes[0] == 3
    assert len(play.broker.sent) == 1
    await play.broker.producers[-1].come_back()
    await settle()
    await play.run("SRT")
    assert play.outcomes == [3, 4]
    await play.log.close()


async def test_what_stands_behind_a_large_batch_that_fails_fails_with_it() -> None:
    play = Play(41)
    play.broker.size_limit = 400_000
    play.append(values=("x" * 100_000,))
    await play.run("aaX")
    assert play.outcomes[0] is ErrorCode.REQUEST_TIMED_OUT
    assert play.outcomes[1] is play.outcomes[2] is ErrorCode.REQUEST_TIMED_OUT
    assert len(play.broker.sent) == 1
    await play.log.close()


@pytest.mark.parametrize("limit", [200, None], ids=["the gateway knows the limit", "only the broker knows it"])
async def test_a_batch_that_another_gateway_stored_is_found_where_the_limit_on_sizes_is_lower_now(
    limit: int | None,
) -> None:
    """A Pulsar broker looks at the size before it looks for duplicates: its refusal does not tell "not stored"."""
    play = Play(41)
    name = play.log.services.producer_naming().of(41)
    play.broker.foreign(3, name)
    play.broker.sequences[name] = 2
    play.broker.foreign(3)
    play.broker.size_limit = limit
    play.append(0, ("x" * 100, "y" * 100, "z" * 100))
    await settle()
    play.broker.refuse_next()
    await play.run("R")
    await until(lambda: play.outcomes == [3])
    await play.run("aSRT")
    assert play.outcomes == [3, 9], "the refusal of the retry moved no sequence"
    assert play.counts["sequences/duplicate_found"] == 1
    await play.log.close()


async def test_a_batch_that_pulsar_refuses_and_may_have_is_not_called_stored_where_it_is_not_found() -> None:
    play = Play(41)
    play.broker.sequences[play.log.services.producer_naming().of(41)] = 2
    play.append(0, ("x" * 100, "y" * 100, "z" * 100))
    await settle()
    play.broker.refuse_next()
    await play.run("R")
    await until(lambda: play.outcomes == [ErrorCode.REQUEST_TIMED_OUT])
    assert play.counts == {"sequences/duplicate_not_found": 1}
    await play.log.close()


async def test_a_batch_whose_receipt_was_lost_is_found_where_the_limit_on_sizes_is_lower_now() -> None:
    """The client of Pulsar comes back, is told what is stored, and sends again what has no receipt."""
    play = Play(41)
    await play.run("aaS")
    stored, behind = play.broker.sent
    play.broker.producers[-1].last_sequence_id = 1
    stored.refused = behind.refused = True
    await play.run("R")
    await until(lambda: play.outcomes[0] == 3)
    await play.run("R")
    assert play.outcomes == [3, TOO_LARGE], "the other one was not stored"
    play.append(2, ("smaller",))
    await settle()
    await play.run("SRT")
    assert play.outcomes == [3, TOO_LARGE, 5]
    await play.log.close()


async def test_a_limit_that_is_doubted_twice_is_asked_for_once() -> None:
    asked: list[float] = []
    work: list[Any] = []
    now = 0.0

    async def ask() -> int | None:
        asked.append(now)
        return 7

    limit = entry_sizes.EntrySizeLimit(lambda: now, ask, work.append)
    await asyncio.gather(limit.learn(), limit.learn())
    assert (asked, limit.bytes) == ([0.0], 7)
    limit.doubt()
    assert not work, "it was asked a moment ago"
    now = 2.0
    limit.doubt()
    limit.doubt()
    (question,) = work
    await question
    assert asked == [0.0, 2.0]
    now = 60.0
    await limit.learn()
    assert asked == [0.0, 2.0, 60.0]


async def test_which_entries_pulsar_takes_surely_goes_by_what_it_told_of_the_limit() -> None:
    answers: list[Any] = [
        PulsarError("ServiceUnavailable", ""),
        1 << 20,
        1000,
        None,
        5000,
        PulsarError("NotAllowed", ""),
    ]
    now = 0.0

    async def ask() -> int | None:
        answer = answers.pop(0)
        if isinstance(answer, PulsarError):
            raise answer
        return answer

    limit = entry_sizes.EntrySizeLimit(lambda: now, ask, lambda _: None)
    told = [limit.surely_taken]
    for _ in range(6):
        await limit.learn()
        told.append(limit.surely_taken)
        now += 60
    told = [size if size == sys.maxsize else size + entry_sizes.ENTRY_FRAMING for size in told]
    least = entry_sizes.ALWAYS_TAKEN
    assert told == [least, least, 1 << 17, 1000, sys.maxsize, 5000, sys.maxsize]
    assert limit.bytes == 0


async def test_what_has_ended_keeps_no_batch_in_memory() -> None:
    """The window keeps where the last batches lie, an error no frames."""
    play = Play(41)
    size = 100_000
    tracemalloc.start()
    try:
        await play.run("aSRT")
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            play.append(values=("x" * size,))
            await settle()
            await play.run("SRT")
        play.log.entry_size_limit.bytes = 1000
        following = play.sequence
        for _ in range(5):
            play.append(following, ("x" * size,))
        assert play.outcomes[-5:] == [TOO_LARGE] * 5
        play.log.services.cache.drop(play.log.tail.cached)
        play.broker.entries.clear()
        play.broker.sent.clear()
        kept = [future.exception() for future in play.futures]
        play.futures.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2 * size
        assert any(kept)
    finally:
        tracemalloc.stop()
    play.append(following)
    await play.log.close()


async def test_a_refused_batch_is_gone_without_the_garbage_collector() -> None:
    play = Play(41, LogPolicy(max_uncompressed_bytes=1000))
    play.append(values=("x" * 900,))
    await settle()
    data = batch(["x" * 100_000], producer=41, sequence=1, codec=1)
    gc.collect()
    gc.disable()
    try:
        future = play.log.append(data, read_header(data), now_ms=0)
        error = future.exception()
        assert error is not None
        held = weakref.ref(future)
        traceback, error.__traceback__ = error.__traceback__, None
        assert (traceback, error.__cause__, error.__context__) == (None, None, None)
        await settle()
        del future
        assert held() is None
    finally:
        gc.enable()
    await play.log.close()


@pytest.mark.parametrize("error", ["Timeout", "ChecksumError", "PersistenceError", "ProducerBlockedQuotaExceededError"])
async def test_what_stands_behind_a_failed_batch_fails_with_it(error: str) -> None:
    play = Play(41)
    await play.run("aaa")
    play.broker.tell(error)
    await settle()
    assert None not in play.outcomes
    assert not any(
        isinstance(outcome, int) and outcome >= 0 and not isinstance(outcome, ErrorCode) for outcome in play.outcomes
    )
    assert play.broker.producers[0].closed, "Pulsar is asked again what it has"
    assert play.counts == {refusal_name(Refused.WRITES, error): 1}
    play.append(0)
    await settle()
    assert len(play.broker.producers) == 2
    await play.run("SR")
    assert play.outcomes[3] == 3
    await play.log.close()


@PRODUCERS
async def test_a_producer_that_is_lost_while_nothing_waits_refuses_nothing(
    producer: int, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(lost: FakeProducer) -> None:
        play.broker.open_names.discard(lost.name)
        lost.on_lost(PulsarError("GuardFailed", "the topic was deleted"))

    play = Play(producer)
    await play.run("aSR")
    lose(play.broker.producers[0])
    await settle()
    assert (play.counts, caplog.messages) == ({}, [])
    await play.run("aSRa")  # by a second one, which has a batch under way when it is lost
    assert play.outcomes == [3, 5, None]
    lose(play.broker.producers[1])
    await settle()
    assert play.outcomes[2] is AGAIN
    assert play.counts == {refusal_name(Refused.WRITES, "GuardFailed"): 1}
    assert len(caplog.messages) == 1
    await play.log.close()


async def test_a_batch_refused_before_it_is_sent_is_not_passed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", ())
    play = Play(41)
    await play.run("aSR")
    play.broker.refuse_over = 500
    play.append(values=("x" * 1000,))
    play.append()
    assert len(play.broker.sent) == 1, "neither was sent"
    await settle()
    assert play.outcomes[:2] == [3, ErrorCode.MESSAGE_TOO_LARGE]
    assert play.outcomes[2] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    await play.log.close()


async def test_a_plain_batch_that_fails_takes_no_other_with_it() -> None:
    play = Play(-1)
    await play.run("aaX")
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT, None]
    play.broker.sent.pop(0)
    await play.run("SR")
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT, 3]
    await play.log.close()


async def test_a_retry_of_a_pending_batch_joins_it() -> None:
    play = Play(41)
    await play.run("a")
    play.append(0)
    await settle()
    assert len(play.broker.sent) == 1
    await play.run("SR")
    play.append(0)
    assert play.outcomes == [3, 3, 3]
    await play.log.close()


async def test_a_retry_through_another_gateway_is_confirmed_by_pulsar() -> None:
    play = Play(41)
    play.broker.sequences["pid-41"] = 3  # another gateway has stored 0 to 3
    play.append(0)
    play.append(0)
    play.append(2)
    await settle()
    assert [sent.sequence_id for sent in play.broker.sent] == [0, 2], "sent again, each once"
    assert play.outcomes == [None] * 3, "what Pulsar only has in hand is not yet stored"
    await play.run("DD")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [STORED] * 3, "nothing that is stored bears the name"
    play.append(4)
    await settle()
    play.broker.sent[-1].position = play.broker.put(play.broker.sent[-1].metadata, play.broker.sent[-1].payload, 2, 2)
    await play.run("R")
    assert play.outcomes[3] == 3
    await play.log.close()


async def test_what_pulsar_has_in_hand_and_cannot_store_is_no_duplicate() -> None:
    play = Play(41)
    play.broker.sequences["pid-41"] = 3
    play.append(0)
    await settle()
    play.broker.tell("PersistenceError")
    await settle()
    assert play.outcomes == [AGAIN]
    await play.log.close()


async def test_a_pulsar_that_knows_less_than_the_client_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", (0.01, 0.01))
    play = Play(41)
    play.broker.sequences["pid-41"] = 3  # it is still reading what was stored before it crashed
    opened = play.broker.open_producer

    async def open_producer(*args: Any, **named: Any) -> FakeProducer:
        if len(play.broker.producers) == 1:
            play.broker.sequences["pid-41"] = 9
        return await opened(*args, **named)

    monkeypatch.setattr(play.broker, "open_producer", open_producer)
    play.append(10)
    await until(lambda: play.broker.sent)
    await play.run("SR")
    assert play.outcomes == [3]
    assert play.counts == {"sequences/ahead_of_pulsar": 1}
    await play.log.close()


@pytest.mark.parametrize("epoch", [0, 3])
async def test_what_pulsar_stored_and_forgot_is_found_in_the_log(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """A topic that is loaded may replay what was stored twice, and forget what came between."""
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", (0.01, 0.01))
    play = Play(41)
    play.broker.sequences["pid-41"] = 3
    play.broker.foreign(6, "pid-41", epoch << 47 | 4)
    play.append(10, epoch=epoch)
    await until(lambda: play.broker.sent)
    assert play.broker.sent[0].sequence_id == epoch << 47 | 10
    await play.run("SR")
    assert play.outcomes == [9]
    assert play.counts == {"sequences/ahead_of_pulsar": 2, "sequences/forgotten_by_pulsar": 1}
    await play.log.close()


async def test_a_pulsar_that_knows_nothing_of_a_producer_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", (0.01, 0.01))
    play = Play(41)
    opened = play.broker.open_producer

    async def open_producer(*args: Any, **named: Any) -> FakeProducer:
        if len(play.broker.producers) == 1:
            play.broker.sequences["pid-41"] = 9
        return await opened(*args, **named)

    monkeypatch.setattr(play.broker, "open_producer", open_producer)
    play.append(10)
    await until(lambda: play.broker.sent)
    await play.run("SR")
    assert play.outcomes == [3]
    await play.log.close()


async def test_a_client_that_is_really_ahead_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", (0.01, 0.01))
    play = Play(41)
    play.broker.sequences["pid-41"] = 3
    play.append(10)
    await until(lambda: play.outcomes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
    assert len(play.broker.producers) == 3
    await play.log.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_whose_missing_batch_comes_behind_others_waits_for_no_doubts(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """One batch was refused and those behind it were under way: its retry says that Pulsar has not forgotten it."""
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", (1.0, 3600.0) if late else (3600.0,))
    play = Play(41)
    play.broker.sequences["pid-41"] = 3
    play.append(6)
    if late:
        await settle()
    play.append(4)
    await until(lambda: play.broker.sent)
    await play.run("SR")
    assert play.outcomes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 3]
    assert len(play.broker.producers) == 1 + late
    await play.log.close()


# --- nothing waits for ever


HELD = {"subscriptions": {"r": {"dispatchThrottledMsgEventsByTopicLimit": 4}}}


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(tail_module, "STUCK_SECONDS", 0.05)


@pytest.mark.usefixtures("no_patience")
async def test_a_tail_that_pulsar_moved_past_entries_is_found() -> None:
    play = Play(-1)
    await play.run("aSRT F")
    tail, end = play.broker.tail, play.log.high_watermark
    tail.move_to_end()
    assert play.log.high_watermark == end
    await play.log.refresh()
    assert play.broker.tail is not tail
    assert play.log.high_watermark == end + 3
    assert play.counts == {"entries_passed_over/tail": 1}
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_a_tail_that_pulsar_holds_back_is_not_given_up() -> None:
    """The log ends behind what Pulsar names as its last entry, and the tail brings it later."""
    play = Play(41)
    play.broker.stats = HELD
    await play.run("aSRT F")
    tail = play.broker.tail
    play.broker.asked.clear()
    await play.log.refresh()
    assert play.log.high_watermark == 8
    assert play.broker.tail is tail
    assert play.counts == {"tail_late/dispatch_rate": 1, "tail_late/end_asked": 1}
    assert play.log.read_cached(5, 1 << 20, min_one=True) is None, "no reader has brought it yet"
    await play.run("aSR")
    assert play.outcomes[-1] == 8, "the chain goes on behind the end"
    await play.run("F T aSR T")
    assert play.outcomes[-1] == 13
    assert play.log.high_watermark == 15
    assert play.broker.tail is tail
    assert WRONG not in play.counts
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("off", [0, 1])
async def test_offsets_that_were_told_before_the_end_was_asked_for_are_checked_by_the_tail(off: int) -> None:
    play = Play(-1)
    play.broker.stats = HELD
    await play.run("a F SR")
    await until(lambda: None not in play.outcomes)
    await play.log.refresh()
    assert play.log.high_watermark == 8
    last = play.broker.entries[-1]
    assert last.index is not None
    play.broker.entries[-1] = replace(last, index=last.index + off)
    await play.run("T")
    assert play.counts.get(WRONG, 0) == off
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_a_tail_that_brings_nothing_without_a_reason_is_given_up() -> None:
    play = Play(-1)
    await play.run("aSRT F")
    tail = play.broker.tail
    await play.log.refresh()
    assert play.broker.tail is not tail
    assert play.log.high_watermark == 8
    assert play.counts == {"tail_late/no_reason": 1, "tail_lost/stuck": 1}
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_a_slow_tail_is_not_given_up() -> None:
    play = Play(-1)
    await play.run("aSRT F F")
    tail = play.broker.tail
    refreshed = asyncio.ensure_future(play.log.refresh())
    await until(lambda: play.counts == {"tail_late/no_reason": 1})
    tail.next += 1
    tail.on_entry(play.broker.entries[tail.next - 1])
    await refreshed
    assert play.broker.tail is tail
    assert play.log.high_watermark == 11
    assert play.counts == {"tail_late/no_reason": 1, "tail_late/end_asked": 1}
    await play.log.close()


READY = {"state": "Ready", "maxReadPosition": "7:99"}
RECOVERING = {"state": "Initializing", "maxReadPosition": "7:99"}


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("buffer", [None, READY])
async def test_a_tail_that_pulsar_knows_no_more_is_replaced(buffer: dict[str, Any] | None) -> None:
    """A consumer may be left over from a topic object whose transaction buffer could not be recovered.

    Pulsar answers each question for its last entry with an error.
    """
    play = Play(-1)
    play.broker.buffer = buffer
    await play.run("aSRT F")
    tail = play.broker.tail
    tail.left_over = True
    await play.log.look_at_ends()
    assert not play.log.attached
    assert play.counts == {"tail_lost/not_served": 1}
    await play.log.refresh()
    assert play.broker.tail is not tail
    await until(lambda: tail.closed)
    assert play.log.high_watermark == 8
    await play.run("F T aSR")
    assert play.outcomes[-1] == 11
    assert play.log.high_watermark == 13
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_who_asks_for_the_end_gets_it_though_pulsar_knows_the_tail_no_more() -> None:
    play = Play(-1)
    await play.run("aSRT F")
    play.broker.tail.left_over = True
    await play.log.refresh()
    assert play.log.high_watermark == 8
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("why", ["cursor", "buffer", "connection", "nothing stored", "open transaction"])
async def test_a_tail_stays_where_pulsar_may_still_serve_it(why: str) -> None:
    play = Play(-1)
    await play.run("aSRT")
    if why != "nothing stored":
        await play.run("F")
    tail, last = play.broker.tail, play.log.last_position
    tail.left_over = True
    play.broker.keeps_cursors = why == "cursor"
    tail.connected = why != "connection"
    if why == "buffer":
        play.broker.buffer = RECOVERING
    elif why == "open transaction":
        play.broker.buffer = {"state": "Ready", "maxReadPosition": f"{last.ledger}:{last.entry}"}
    for _ in range(2):
        if why == "nothing stored":
            await play.log.look_at_ends()
        else:
            with pytest.raises(KopError, match="recover Transaction Buffer"):
                await play.log.look_at_ends()
    assert play.log.attached
    assert play.broker.tail is tail
    assert not {"tail_lost/not_served", "tail_lost/failed"} & set(play.counts)
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_a_tail_whose_cursor_comes_between_two_looks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    play, stats, looks = Play(-1), FakeAdmin.internal_stats, 0

    async def appears(admin: FakeAdmin, name: str) -> dict[str, Any]:
        nonlocal looks
        told = await stats(admin, name)
        looks += not told["cursors"]
        play.broker.keeps_cursors = looks > 0
        return told

    await play.run("aSRT F")
    tail = play.broker.tail
    tail.left_over, tail.last_named = True, play.log.last_position
    undo = play.log.on_advance(lambda: None)
    monkeypatch.setattr(FakeAdmin, "internal_stats", appears)
    await play.log.look_at_ends()
    assert looks == 1
    assert play.log.attached
    assert play.broker.tail is tail
    undo()
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_a_tail_that_pulsar_knows_no_more_is_replaced_where_somebody_waits_though_it_names_an_old_end() -> None:
    play = Play(-1)
    await play.run("aSRT F")
    tail = play.broker.tail
    tail.left_over, tail.last_named = True, play.log.last_position
    await play.log.look_at_ends()
    assert play.log.attached, "nobody waits"
    told = asyncio.Event()
    undo = play.log.on_advance(told.set)
    await play.log.look_at_ends()
    assert not play.log.attached
    await told.wait()
    undo()
    await play.log.refresh()
    assert play.log.high_watermark == 8
    await play.log.close()


@PRODUCERS
@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("named", [True, False])
async def test_a_late_tail_is_looked_at_when_an_entry_was_answered_that_it_did_not_bring(
    producer: int, named: bool
) -> None:
    play = Play(producer)
    await play.run("aSRT")
    tail = play.broker.tail
    tail.left_over = True
    if named:
        tail.last_named = play.log.last_position
    await play.run("aF SR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3, 8]
    await until(lambda: not play.log.attached)
    assert play.counts["tail_lost/not_served"] == 1
    await play.log.refresh()
    assert play.broker.tail is not tail
    assert play.log.high_watermark == 10
    await play.run("aSR T")
    assert play.outcomes[-1] == 10
    assert WRONG not in play.counts
    await play.log.close()


@pytest.mark.usefixtures("no_patience")
async def test_an_open_transaction_behind_the_last_entry_does_not_excuse_a_tail_that_brings_nothing() -> None:
    play = Play(-1)
    play.broker.stats = {"ongoingTxnCount": 1}
    play.broker.buffer = READY | {"ongoingTxnSize": 1}
    await play.run("aSRT F")
    tail = play.broker.tail
    await play.log.look_at_ends()
    assert play.counts == {"tail_late/no_reason": 1, "tail_lost/stuck": 1}
    await play.log.refresh()
    assert play.broker.tail is not tail
    assert play.log.high_watermark == 8
    await play.log.close()


async def test_a_log_attaches_while_pulsar_holds_all_readers_back() -> None:
    play = Play(-1)
    play.broker.foreign()
    play.broker.holds_readers = True
    async with asyncio.timeout(log_module.ATTACH_SECONDS / 2):
        await play.log.attach()
    assert (play.log.log_start_offset, play.log.high_watermark) == (0, 6)
    assert play.broker.asked == [Position(7, 0), Position(7, 1)]
    play.broker.asked.clear()
    await play.run("aSR")
    assert play.outcomes == [6]
    await play.log.close()


@PRODUCERS
async def test_batches_do_not_wait_for_a_log_that_attaches_again(
    producer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(producer)
    await play.run("aSRT")
    open_reader, go_on = play.broker.open_reader, asyncio.Event()

    async def open_late(*arguments: Any, **how: Any) -> FakeReader:
        await go_on.wait()
        return await open_reader(*arguments, **how)

    monkeypatch.setattr(play.broker, "open_reader", open_late)
    await play.run("! aSR")
    assert play.outcomes == [3, 5], "the chain goes on"
    await play.run("F aSR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3, 5, 10]
    await play.run("aSR")
    assert play.outcomes[3] == 12
    assert not play.log.attached
    go_on.set()
    await settle()
    await play.run("aSR")
    await until(lambda: play.log.attached)
    await play.run("T aSR")
    assert play.outcomes[4:] == [14, 16]
    assert play.log.high_watermark == 18
    assert set(play.counts) == {"tail_lost/failed", ASKED}
    await play.log.close()


async def test_what_comes_while_pulsar_is_asked_where_an_empty_log_begins_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    play = Play(-1, broker=broker)
    broker.entries.clear()
    await play.log.attach()
    start = play.log.log_start_offset
    assert play.log.high_watermark == start
    stats = play.engine.rest.internal_stats

    async def slow(name: str) -> Any:
        answer = await stats(name)
        if not play.futures:
            await play.run("aSRT")
        return answer

    monkeypatch.setattr(play.engine.rest, "internal_stats", slow)
    await play.log.ask_start()
    assert play.outcomes == [3]
    assert play.log.high_watermark == 5
    assert play.log.log_start_offset == start
    await play.log.close()


async def test_a_log_attaches_where_rest_tells_of_no_entry() -> None:
    play = Play(-1)
    play.broker.foreign()
    play.broker.ask_error = PulsarError("ServiceNotReady", "so says the test")
    await play.log.attach()
    assert (play.log.log_start_offset, play.log.high_watermark) == (0, 6)
    await play.log.close()


@PRODUCERS
async def test_a_tail_that_stands_still_keeps_nobody_waiting(producer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulsar is asked where the entry lies; the log ends where readers may read."""
    monkeypatch.setattr(tail_module, "LATE_SECONDS", 3600.0)  # the tail is not given up meanwhile
    play = Play(producer)
    await play.run("aF SR aaa SSS RRR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [6, 8, 10, 12]
    assert [asked.entry for asked in play.broker.asked] == [2], "the chain goes on behind the answer"
    assert play.log.high_watermark == 3
    await until(lambda: play.counts == {ASKED: 1, "tail_late/no_reason": 1})
    await play.run("aF SR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes[-1] == 17
    await play.run("aF SRT aSR")
    assert play.outcomes[-2:] == [22, 24]
    assert play.log.high_watermark == 26
    assert set(play.counts) == {ASKED, "tail_late/no_reason"}, "the tail finds each where it was told to be"
    assert play.engine.queued_bytes == 0
    await play.log.close()


@PRODUCERS
async def test_log_append_time_is_told_without_the_tail(producer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "LATE_TAIL_SECONDS", 1.0)  # a slow machine must not make it late at once
    play = Play(producer, LogPolicy(log_append_time=True))
    await play.run("aaSSRR")
    assert play.outcomes == [None, None]
    await until(lambda: None not in play.outcomes)
    assert [(future.result().base_offset, future.result().log_append_time) for future in play.futures] == [
        (3, STAMP),
        (5, STAMP),
    ]
    assert play.log.high_watermark == 3
    await play.run("T")
    assert play.log.high_watermark == 7
    await play.log.close()


@PRODUCERS
async def test_the_first_batch_of_a_new_log_waits_for_nothing(producer: int) -> None:
    play = Play(producer)
    play.broker.entries.clear()
    play.broker.position, play.broker.index = Position(7, -1), -1
    await play.run("aSR aSR")
    assert play.outcomes == [0, 2]
    assert play.broker.asked == []
    await play.run("T")
    assert play.counts == {}
    assert play.log.high_watermark == 4
    await play.log.close()


@PRODUCERS
async def test_a_question_without_an_answer_is_asked_again(producer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "QUESTION_SECONDS", 0.05)
    play = Play(producer)
    play.broker.hanging_questions = 1
    await play.run("aF SR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [6]
    assert len(play.broker.asked) == 2
    await play.log.close()


@PRODUCERS
async def test_an_offset_that_nobody_tells_is_an_error_that_clients_retry(
    producer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "PLACE_SECONDS", 0.3)
    play = Play(producer)
    play.broker.ask_error = PulsarError("ServiceNotReady", "so says the test")
    await play.run("aF SR")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    assert play.counts["offsets_unknown/not_found_in_time"] == 1
    play.broker.ask_error = None
    if producer >= 0:
        play.append(0)  # it is in the window and stored: where it lies is looked for
        await until(lambda: None not in play.outcomes)
        assert play.outcomes[1] == 6
        assert len(play.broker.sent) == 1
    await play.run("T aSR")
    assert play.outcomes[-1] == 8
    await play.log.close()


@pytest.mark.parametrize(
    ("stats", "buffer", "expected"),
    [
        ({}, {}, "tail_late/no_reason"),
        (
            {"subscriptions": {"r": {"dispatchThrottledMsgEventsByTopicLimit": 0}}},
            {"state": "Ready"},
            "tail_late/no_reason",
        ),
        ({"subscriptions": {"r": {"dispatchThrottledMsgEventsByTopicLimit": 4}}}, {}, "tail_late/dispatch_rate"),
        ({"subscriptions": {"r": {"dispatchThrottledBytesEventsByBrokerLimit": 1}}}, {}, "tail_late/dispatch_rate"),
        ({"ongoingTxnCount": 1}, {"state": "Ready"}, "tail_late/transaction"),
        ({"ongoingTxnCount": 0}, {"state": "Initializing"}, "tail_late/transaction_buffer"),
    ],
)
def test_why_readers_are_held_back(stats: dict[str, Any], buffer: dict[str, Any], expected: str) -> None:
    assert tail_delays.reason(stats, buffer) == expected


@pytest.mark.parametrize(("readable", "held"), [("7:2", True), ("7:3", False), ("8:0", False)])
def test_a_transaction_holds_back_only_what_lies_behind_its_first_record(readable: str, held: bool) -> None:
    buffer = {"state": "Ready", "maxReadPosition": readable}
    expected = "tail_late/transaction" if held else "tail_late/no_reason"
    assert tail_delays.reason({"ongoingTxnCount": 1}, buffer, Position(7, 3)) == expected


async def test_a_dispatch_rate_holds_a_tail_back_only_while_it_holds_reads_back() -> None:
    """Pulsar's counts of that only grow, and those of other subscriptions count, too."""
    broker, now = Broker(), 0.0
    engine: Any = FakeEngine(broker)
    engine.loop = SimpleNamespace(time=lambda: now)
    source: Any = SimpleNamespace(context=engine, partition_name="t-0", title="t-0")
    delays = tail_delays.TailDelays(source)
    expected = [(0, 4, True), (1, 4, True), (59, 4, True), (60, 4, False), (61, 5, True), (120, 5, True)]
    expected += [(121, 5, True), (181, 5, False), (400, 5, False), (640, 6, True)]
    for at, times, held in expected:
        now, broker.stats = at, {"subscriptions": {"r": {"dispatchThrottledMsgEventsByTopicLimit": times}}}
        assert await delays.held(Position(7, 3)) is held, at


async def test_a_transaction_that_holds_readers_back_is_told_only_if_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    broker, now = Broker(), 0.0
    engine: Any = FakeEngine(broker)
    engine.loop = SimpleNamespace(time=lambda: now)
    source: Any = SimpleNamespace(context=engine, partition_name="t-0", title="t-0")
    delays = tail_delays.TailDelays(source)
    broker.stats = {"ongoingTxnCount": 1}
    for at, readable, told in [(0, "7:1", 0), (40, "7:2", 0), (50, "7:2", 0), (90, "7:2", 1), (91, "7:2", 1)]:
        now, broker.buffer = at, {"state": "Ready", "maxReadPosition": readable}
        assert await delays.held(Position(7, 3))
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) == told, at
    assert engine.faults.counts == {"tail_late/transaction": 5}


@pytest.mark.parametrize("own_rate", [True, False])
async def test_a_partition_with_a_publish_rate_of_its_own_is_written_over_another_connection(
    own_rate: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pulsar also counts what waits because of another topic on the same connection: that stays where it is."""
    monkeypatch.setattr(throttle, "LATE_SECONDS", -1.0)  # each receipt is late
    monkeypatch.setattr(throttle, "MOST_LATENESS", 0.0)
    monkeypatch.setattr(throttle, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(throttle, "BETWEEN_SECONDS", 0.0)
    play = Play(41)
    play.broker.has_publish_rate = own_rate
    for count in range(3):
        play.broker.stats = {"publishRateLimitedTimes": count}
        await play.run("aSR")
    lanes = play.broker.lanes
    assert lanes[0] == ""
    assert len(lanes) == (2 if own_rate else 1)
    assert bool(lanes[-1]) is own_rate
    assert ("t-0 is written to faster than its publish rate allows" in caplog.text) is own_rate
    assert ("another topic" in caplog.text) is not own_rate
    other = lanes[-1]
    play.log.close_idle(play.log.loop.time() + 100, 10)
    await settle()
    await play.run("aSR")
    assert lanes[-1] == other, "a producer that is opened later gets it, too"
    assert play.outcomes == [3, 5, 7, 9]
    await play.log.close()


async def test_pulsar_is_asked_again_whose_rate_it_is_where_it_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(throttle, "LATE_SECONDS", -1.0)  # each receipt is late
    monkeypatch.setattr(throttle, "MOST_LATENESS", 0.0)
    monkeypatch.setattr(throttle, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(throttle, "BETWEEN_SECONDS", 0.0)
    play = Play(41)
    answer = play.engine.rest.has_publish_rate
    answers: list[bool | None] = [None, True]

    async def has_publish_rate(topic: str) -> bool:
        if (own_rate := answers.pop(0)) is None:
            raise PulsarError("Timeout", "so says the test")
        play.broker.has_publish_rate = own_rate
        return await answer(topic)

    monkeypatch.setattr(play.engine.rest, "has_publish_rate", has_publish_rate)
    for count in (0, 1, 1, 2, 3):
        play.broker.stats = {"publishRateLimitedTimes": count}
        await play.run("aSR")
    assert answers == []
    assert "t-0 is written to faster than its publish rate allows" in caplog.text
    assert len(play.broker.lanes) == 2
    assert play.broker.lanes[1]
    await play.log.close()


# --- what is stored already is answered with its offset


@pytest.mark.parametrize("held", [False, True, "nearly"])
async def test_a_retry_of_what_another_gateway_stored_has_its_true_offset(
    held: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatch rate holds a reader back, or lets an entry come now and then."""
    if held:
        monkeypatch.setattr(stored_batches, "STANDS_SECONDS", 0.05)
    play = Play(41)
    broker = play.broker
    for first, count in ((0, 2), (2, 1), (3, 1), (4, 2)):
        broker.foreign(count, "pid-41", first)
        broker.foreign(2)
    broker.sequences["pid-41"] = 5
    await play.log.attach()
    broker.asked.clear()
    broker.holds_readers = held is True
    broker.slow_readers = held == "nearly"
    play.append(0)
    play.append(2)  # stored in two entries with others between
    play.append(4)
    await settle()
    await play.run("DDD")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3, STORED, 13]
    assert play.counts == {"sequences/duplicate_found": 2}
    assert bool(broker.asked) == bool(held)
    await play.run("aSR")
    assert play.outcomes[3] == 17
    await play.log.close()


@pytest.mark.parametrize(("producer", "expected"), [(41, ErrorCode.UNKNOWN_PRODUCER_ID), (-1, AGAIN)])
async def test_a_duplicate_that_is_not_stored_is_never_told_as_stored(producer: int, expected: ErrorCode) -> None:
    """Pulsar takes for a duplicate what lies below the highest sequence id that it stored, refused entries too.

    A client that is not idempotent has no epoch that it could begin: it is told that it may send the batch again.
    """
    play = Play(producer)
    name = "pid-41" if producer >= 0 else "gateway"
    play.append(0)
    await settle()
    await play.run("SR")
    play.append(2)
    await settle()
    play.broker.foreign(2, name, 4)
    await play.run("D")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3, expected]
    assert play.counts == {"sequences/duplicate_not_stored": 1}
    play.append(0, epoch=1)
    await settle()
    await play.run("SRT")
    assert play.outcomes[2] == 7
    await play.log.close()


@pytest.mark.parametrize("script", ["aD", "aF SR"])
async def test_closing_waits_for_no_question(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Pulsar was asked about an entry is given up with the log."""
    play = Play(41)
    await play.run(script[0])
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.sleep(3600)  # for ever

    monkeypatch.setattr(play.engine.rest, "entry_head", never)
    monkeypatch.setattr(play.engine.rest, "internal_stats", never)
    await play.run(script[1:])
    await asked.wait()
    before = asyncio.all_tasks()
    await play.log.close()
    assert play.outcomes == [AGAIN]
    await settle()
    assert len(asyncio.all_tasks()) < len(before)


async def test_a_search_that_does_not_end_is_an_error_that_clients_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(41)
    play.broker.foreign(2, "pid-41", 0)
    play.broker.sequences["pid-41"] = 1
    await play.log.attach()
    with monkeypatch.context() as overloaded:
        overloaded.setattr(stored_batches, "SEARCH_SECONDS", 0.0)
        overloaded.setattr(appends, "PLACE_SECONDS", 0.0)
        play.append(0)
        await settle()
        await play.run("D")
        await until(lambda: None not in play.outcomes)
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    play.append(0)
    await settle()
    await play.run("D")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes[1] == 3
    await play.log.close()


@pytest.mark.parametrize("code", ["ServerFailure", "NotFound"])
@pytest.mark.parametrize("trouble", ["entry", "reader"])
async def test_a_search_that_did_not_see_every_entry_is_an_error_that_clients_retry(
    trouble: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DUPLICATE_SEQUENCE_NUMBER is the end of a batch for its client: it is told where all was looked at."""
    monkeypatch.setattr(stored_batches, "STANDS_SECONDS", 0.05)
    play = Play(41)
    broker = play.broker
    broker.foreign(1)
    broker.foreign(2, "pid-41", 0)
    broker.sequences["pid-41"] = 1
    await play.log.attach()
    if trouble == "entry":
        broker.holds_readers = True
    else:
        broker.loses_search_readers = True
    broker.ask_error = PulsarError(code, "so says the test")
    with monkeypatch.context() as short:
        short.setattr(appends, "PLACE_SECONDS", 0.0)
        play.append(0)
        await settle()
        await play.run("D")
        await until(lambda: None not in play.outcomes)
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    broker.ask_error = None
    play.append(0)
    await settle()
    await play.run("D")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes[1] == 4
    await play.log.close()


async def test_a_search_that_did_not_see_every_entry_is_repeated_for_a_while() -> None:
    """A client that gets the answers of later batches first takes this one for stored, and knows no offset of it."""
    play = Play(41)
    broker = play.broker
    broker.foreign(1)
    broker.foreign(2, "pid-41", 0)
    broker.sequences["pid-41"] = 1
    await play.log.attach()
    broker.loses_search_readers = True
    broker.ask_error = PulsarError("NotFound", "so says the test")
    play.append(0)
    await settle()
    await play.run("D")
    await until(lambda: broker.asked)
    await settle()
    assert play.outcomes == [None]
    broker.ask_error = None
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [4]
    await play.log.close()


@pytest.mark.parametrize("outage", [False, True])
async def test_a_search_that_fails_again_and_again_is_told_once_and_not_in_an_outage(
    outage: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = 0

    async def fail(*_: object) -> NoReturn:
        nonlocal searches
        searches += 1
        raise PulsarError("ConnectionLost", "so says the test")

    monkeypatch.setattr(stored_batches.StoredBatches, "find", fail)
    play = Play(41)
    play.broker.foreign(2, "pid-41", 0)
    play.broker.sequences["pid-41"] = 1
    await play.log.attach()
    if outage:
        broker = PulsarAddress("a", 6650, False)
        play.broker.outage.answers(broker, 0.0)
        play.broker.outage.fails(broker, PulsarError("ConnectionLost"), 1.0, others=False)
    caplog.set_level(logging.INFO)
    play.append(0)
    await settle()
    await play.run("D")
    await until(lambda: searches >= 3)
    told = [record for record in caplog.records if "cannot search Pulsar" in record.getMessage()]
    assert len(told) == (not outage)
    assert play.broker.outage.failures >= 3 * outage
    await play.log.close()


async def test_a_retry_is_found_where_the_newest_ledger_has_no_entry_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(41)
    play.broker.foreign(2, "pid-41", 0)
    play.broker.new_ledger()
    play.broker.sequences["pid-41"] = 1
    await play.log.attach()
    play.broker.asked.clear()
    play.append(0)
    await settle()
    await play.run("D")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3]
    assert not play.broker.asked, "the reader saw the last entry"
    await play.log.close()


class Fails:
    """An `AppendWaiter` with a defect."""

    def reserve(self, size: int) -> None:
        pass

    def appended(self, place: int, result: AppendResult) -> None:
        raise RuntimeError("so says the test")

    def append_failed(self, place: int, error: KopError) -> None:
        raise RuntimeError("so says the test")


@pytest.mark.parametrize("receipt", ["R", "X"])
async def test_a_waiter_that_fails_keeps_no_other_from_its_answer(
    receipt: str, caplog: pytest.LogCaptureFixture
) -> None:
    play = Play(41)
    data = batch(("x", "y"), producer=41, sequence=0)
    play.log.submit(data, read_header(data), now_ms=0, waiter=Fails(), place=0)
    await settle()
    play.append(0)
    await play.run("S" + receipt)
    assert play.outcomes == [3 if receipt == "R" else ErrorCode.REQUEST_TIMED_OUT]
    assert "so says the test" in caplog.text
    assert play.engine.queued_bytes == 0
    await play.log.close()


async def test_a_batch_of_which_pulsar_drops_the_rest_with_a_stored_part_is_not_told_as_stored() -> None:
    """Pulsar drops an entry that begins with a stored message as a whole. So it does where a batch is cut otherwise."""
    play = Play(41)
    play.broker.foreign(3, name="pid-41", sequence_id=0)
    play.broker.sequences["pid-41"] = 2
    play.append(0, ("a", "b", "c", "d", "e"))
    await settle()
    await play.run("D")
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [ErrorCode.UNKNOWN_PRODUCER_ID]
    assert play.counts == {"sequences/duplicate_not_stored": 1}
    await play.log.close()


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (1, 1), (2, 2), (3, 1), (1, 3), (2, 5)])
async def test_other_records_under_stored_sequences_are_out_of_order(first: int, count: int, seen: bool) -> None:
    """As Kafka says, which compares whole batches. `seen`: the log knows by its tail what is stored."""
    play = Play(41)
    broker = play.broker
    if seen:
        await play.log.attach()
    broker.foreign(4, name="pid-41", sequence_id=0)
    broker.sequences["pid-41"] = 3
    await play.log.attach()
    await play.run("T")
    play.append(first, tuple("abcdefg"[:count]))
    await settle()
    if broker.sent:
        await play.run("D")
    await until(lambda: None not in play.outcomes)
    play.append(0, ("a", "b", "c", "d"))
    await settle()
    if any(not sent.answered for sent in broker.sent):
        await play.run("D")
    await until(lambda: None not in play.outcomes)
    play.append(4, ("e",))
    await settle()
    await play.run("SR")
    assert play.outcomes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 3, 7]
    await play.log.close()


async def test_other_records_are_no_retry_of_a_batch_that_is_being_looked_for() -> None:
    play = Play(41)
    broker = play.broker
    broker.foreign(4, name="pid-41", sequence_id=0)
    broker.sequences["pid-41"] = 3
    await play.log.attach()
    play.append(0, ("a", "b", "c", "d"))
    await settle()
    for count in (1, 4, 1):  # while the first one has no receipt
        play.append(0, tuple("abcd"[:count]))
    await settle()
    await play.run("D")
    play.append(0, ("a",))  # while the stored batch is searched for
    play.append(0, ("a", "b", "c", "d"))
    await settle()
    await play.run("D" * sum(not sent.answered for sent in broker.sent))
    await until(lambda: None not in play.outcomes, seconds=20)
    wrong = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert play.outcomes == [3, wrong, 3, wrong, wrong, 3]
    await play.log.close()


@pytest.mark.parametrize("pieces", [(2, 2), (1, 3), (1, 1, 1, 1)])
async def test_a_batch_that_was_stored_in_pieces_is_known_however_it_would_be_cut_now(
    pieces: tuple[int, ...],
) -> None:
    play = Play(41)
    broker = play.broker
    first = 0
    for count in pieces:
        broker.foreign(count, name="pid-41", sequence_id=first)
        first += count
    broker.sequences["pid-41"] = 3
    await play.log.attach()
    play.append(0, ("a", "b", "c", "d"))
    await settle()
    await play.run("D" * sum(not sent.answered for sent in broker.sent))
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [3]
    await play.log.close()


@PRODUCERS
async def test_a_duplicate_that_is_found_nowhere_ends(producer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "LATE_TAIL_SECONDS", 1.0)  # a slow machine must not make it late at once
    play = Play(producer)
    await play.run("aD")
    assert play.outcomes == [None], "the tail may bring it"
    await until(lambda: None not in play.outcomes)
    assert play.outcomes == [STORED if producer >= 0 else ErrorCode.REQUEST_TIMED_OUT]
    assert play.counts == {"sequences/duplicate_not_found": 1}
    await play.log.close()


@pytest.mark.parametrize(
    ("entries", "wanted", "expected"),
    [
        ("", (0, 2), Stored(Outcome.UNKNOWN)),
        ("p0+2", (0, 2), Stored(Outcome.FOUND, 0, 1)),
        ("p0+5", (0, 5), Stored(Outcome.FOUND, 0, 1)),
        ("p0+5", (0, 1), Stored(Outcome.OTHERS)),
        ("p0+5", (1, 1), Stored(Outcome.OTHERS)),
        ("p0+5", (3, 2), Stored(Outcome.OTHERS)),
        ("p0+5", (3, 3), Stored(Outcome.OTHERS)),
        ("p0+2 p2+4", (0, 4), Stored(Outcome.OTHERS)),
        ("p0+2 p2+4", (1, 5), Stored(Outcome.OTHERS)),
        ("p0+2 p2+4", (0, 6), Stored(Outcome.FOUND, 0, 2)),
        ("p0+2 p0+2 p2+2", (0, 2), Stored(Outcome.FOUND, 0, 1)),
        ("p0+2 p2+2", (0, 4), Stored(Outcome.FOUND, 0, 2)),
        ("p0+2 q9+1 p2+2", (0, 4), Stored(Outcome.SCATTERED, -1, 3)),
        ("p0+2 p4+2", (2, 2), Stored(Outcome.ABSENT)),
        ("p0+2 q0+1 p4+2", (2, 1), Stored(Outcome.ABSENT)),
        ("p0+2 / p4+2", (2, 2), Stored(Outcome.UNKNOWN)),
        ("p0+2 q0+1 / q1+1 p4+2", (2, 2), Stored(Outcome.UNKNOWN)),
        ("q0+1 / p0+2 p4+2", (2, 2), Stored(Outcome.ABSENT)),
        ("p0+2 p4+2 / q7+1", (2, 2), Stored(Outcome.ABSENT)),
        ("p4+2", (2, 2), Stored(Outcome.UNKNOWN)),
        ("^ p4+2", (2, 2), Stored(Outcome.ABSENT)),
        ("p0+2", (2, 2), Stored(Outcome.UNKNOWN)),
        ("p0+3 p4+2", (2, 2), Stored(Outcome.OTHERS)),
        ("p0+3 p4+2", (0, 4), Stored(Outcome.ABSENT)),
        ("p0+3", (2, 2), Stored(Outcome.OTHERS)),
        ("p0+3", (0, 4), Stored(Outcome.ABSENT)),
        ("p0+3 q0+1", (0, 4), Stored(Outcome.ABSENT)),
        ("p0+3 / q0+1", (2, 2), Stored(Outcome.OTHERS)),
        ("p0+3 / q0+1", (0, 4), Stored(Outcome.UNKNOWN)),
        ("p0+3 q0+1 $", (0, 4), Stored(Outcome.UNKNOWN)),
    ],
)
def test_what_a_stretch_of_the_log_proves(entries: str, wanted: tuple[int, int], expected: Stored) -> None:
    """`p0+2`: producer p, two messages from sequence id 0 on; `/` a gap; `^` the beginning of the log; `$` cut off."""
    stretch = Stretch(from_beginning=entries.startswith("^"))
    base = 0
    for number, word in enumerate(entries.strip("^$").replace("/ ", "/").split(), 1):
        gap, name = word[0] == "/", word.lstrip("/")[0]
        sequence_id, count = map(int, word.lstrip("/")[1:].split("+"))
        base += 10 if gap else 0
        stretch.add(name, sequence_id, count, base, number, gap=gap)
        base += count
    if entries.endswith("$"):
        stretch.cut_off()
    assert stretch.find(Wanted("p", *wanted)) == expected


@PRODUCERS
@pytest.mark.parametrize("script", ["", "a", "aa", "aS", "aL SR", "aG SRT a"])
@pytest.mark.parametrize("how", ["close", "remove", "deleting"])
async def test_every_append_ends_with_the_log(how: str, script: str, producer: int) -> None:
    play = Play(producer)
    await play.run(script)
    play.append()
    if how == "close":
        await play.log.close()
    elif how == "remove":
        play.log.remove()
    else:
        play.log.deleted = True
        play.engine.gone = True
        if play.broker.readers:
            play.broker.tail.on_lost(PulsarError("TopicNotFound"))
    await settle()
    assert None not in play.outcomes
    if how != "close":
        assert play.outcomes[-1] is GONE
        play.append()
        assert play.outcomes[-1] is GONE
    assert play.engine.queued_bytes == 0
    await play.log.close()


@PRODUCERS
async def test_what_waited_for_a_producer_is_sent_over_several_turns_of_the_loop(producer: int) -> None:
    play = Play(producer)
    play.broker.opening_takes = asyncio.Event()
    for _ in range(40):
        play.append(values=("x" * 2**20,))
    await settle()
    play.broker.opening_takes.set()
    most = 0
    before = len(play.broker.sent)
    while len(play.broker.sent) < 41:
        await asyncio.sleep(0)
        most = max(most, len(play.broker.sent) - before)
        before = len(play.broker.sent)
        if before and len(play.futures) == 40:
            play.append()  # what comes meanwhile stands behind
    assert most <= MOST_AT_ONCE // 2**20 + 1
    ids = [sent.sequence_id for sent in play.broker.sent]
    assert ids == sorted(ids)
    await play.log.close()


async def test_closing_while_the_producer_opens_ends_what_waits() -> None:
    play = Play(41)
    play.broker.opening_takes = asyncio.Event()
    await play.run("aa")
    await play.log.close()
    assert play.outcomes == [AGAIN] * 2


async def test_opening_a_producer_takes_its_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "OPEN_SECONDS", 0.02)
    play = Play(41)
    play.broker.opening_takes = asyncio.Event()
    await play.run("a")
    await until(lambda: play.outcomes == [ErrorCode.REQUEST_TIMED_OUT])
    assert play.counts == {"writes_refused/timeout": 1}
    await play.log.close()


async def test_a_name_that_another_gateway_holds_sends_the_client_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "BUSY_SECONDS", 0.05)
    play = Play(41)
    play.broker.open_names.add("pid-41")
    await play.run("a")
    await until(lambda: play.outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER])
    play.broker.open_names.clear()
    play.append(0)
    await settle()
    await play.run("SR")
    assert play.outcomes[1] == 3
    await play.log.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ProducerBlockedQuotaExceededError", AGAIN),
        ("TopicTerminatedError", ErrorCode.POLICY_VIOLATION),
        ("IncompatibleSchema", ErrorCode.POLICY_VIOLATION),
        ("AuthorizationError", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("TopicNotFound", GONE),
        ("ConnectionLost", AGAIN),
    ],
)
async def test_a_producer_that_cannot_be_opened_has_a_named_error(code: str, expected: ErrorCode) -> None:
    play = Play(41)
    play.broker.open_error = PulsarError(code, "so says the test")
    play.append()
    play.append()
    await settle()
    assert play.outcomes == [expected] * 2
    assert play.counts == {refusal_name(Refused.WRITES, code): 1}
    assert play.log.producers() == []
    await play.log.close()


# --- batches in pieces


def big() -> tuple[str, ...]:
    return tuple("v" * 400 for _ in range(8))


def pieces(log: PulsarLog) -> None:
    log.context.client.max_message_size = 2048


async def test_a_split_batch_has_the_offset_of_its_first_record() -> None:
    play = Play(41)
    pieces(play.log)
    play.append(values=big())
    await settle()
    parts = len(play.broker.sent)
    assert parts > 1
    await play.run("SR" * (parts - 1))
    assert play.outcomes == [None], "all of it has to be stored"
    await play.run("SR")
    assert play.outcomes == [3]
    assert play.log.high_watermark == 11
    await play.log.close()


@PRODUCERS
async def test_a_split_batch_with_others_records_in_it_has_no_one_offset(producer: int) -> None:
    play = Play(producer)
    pieces(play.log)
    play.append(values=big())
    await settle()
    parts = len(play.broker.sent)
    await play.run("SF" + "S" * (parts - 1) + "R" * parts + "T")
    assert play.outcomes == [STORED if producer >= 0 else -1]
    await play.log.close()


async def test_a_split_batch_of_which_a_piece_is_refused_fails_as_one() -> None:
    play = Play(41)
    pieces(play.log)
    await play.run("aSR")
    play.append(values=big())
    await settle()
    await play.run("SRX")
    assert play.outcomes == [3, ErrorCode.REQUEST_TIMED_OUT]
    play.sequence = 2
    play.append(values=big())
    await settle()
    assert play.outcomes[2] is None, "the pieces that are stored are sent again and dropped by Pulsar"
    again = [sent for sent in play.broker.sent if sent.producer is play.broker.producers[1]]
    assert again[0].sequence_id == 2
    await play.log.close()


async def test_a_split_batch_half_refused_before_it_is_sent_ends() -> None:
    play = Play(41)
    pieces(play.log)
    play.broker.refuse_over = 300
    play.append(values=big())
    await settle()
    assert play.outcomes == [ErrorCode.MESSAGE_TOO_LARGE]
    await play.log.close()


@PRODUCERS
async def test_what_is_stored_is_not_sent_again_when_a_producer_comes_back(producer: int) -> None:
    play = Play(producer)
    await play.run("aa S")
    coming_back = asyncio.create_task(play.broker.producers[-1].come_back())
    await settle()
    assert not coming_back.done(), "what is stored is looked at first"
    await play.run("T")
    assert await coming_back == [play.broker.sent[1].sequence_id]
    await play.run("SR")
    assert play.outcomes == [3, 5]


async def test_a_producer_comes_back_where_the_end_of_the_log_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_module, "END_SECONDS", 0.05)
    caplog.set_level("INFO")
    play = Play(41)
    await play.run("aS")
    monkeypatch.setattr(play.broker, "open_reader", lambda *_, **__: asyncio.sleep(3600))  # for ever
    assert await play.broker.producers[-1].come_back() == [play.broker.sent[0].sequence_id]
    assert "Pulsar's deduplication alone tells what of producer pid-41 is stored" in caplog.text


async def test_a_batch_that_was_seen_stored_is_not_sent_again_though_pulsar_has_forgotten_it() -> None:
    play = Play(41)
    await play.run("aSXT")
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    play.broker.sequences.clear()  # a replay for deduplication is under way
    play.append(sequence=0)
    play.append()
    await until(lambda: play.outcomes[1] is not None)
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT, 3, None]
    assert [sent.sequence_id for sent in play.broker.sent] == [0, 2], "the client's second batch comes next"
    await play.run("SR")
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT, 3, 5]
    assert play.counts["sequences/forgotten_by_pulsar"] == 1


@pytest.mark.parametrize("more", [False, True])
async def test_the_end_is_known_while_pulsar_names_no_last_entry(monkeypatch: pytest.MonkeyPatch, more: bool) -> None:
    """It does not before a new topic's transaction buffer is recovered, which may take more than 10 s."""
    play = Play(41)
    await play.run("aSR")
    assert play.outcomes == [3]
    if more:
        play.broker.foreign()
    answers, asked, stats = asyncio.Event(), asyncio.Event(), play.engine.rest.internal_stats

    async def told(name: str) -> dict[str, Any]:
        asked.set()
        return await stats(name)

    async def in_time(reader: FakeReader, *, within: float | None = None) -> Position:
        await answers.wait()
        return play.broker.entries[-1].position

    monkeypatch.setattr("kop.storage.pulsar.reading.last_entry.LAST_SECONDS", 0.01)
    monkeypatch.setattr(FakeReader, "last_position", in_time)
    monkeypatch.setattr(play.engine.rest, "internal_stats", told)
    refreshing = asyncio.ensure_future(play.log.refresh())
    if more:
        await asked.wait()
        await settle()
        assert not refreshing.done(), "an entry of somebody else is stored behind the log's end"
        answers.set()
        await play.run("T")
    await refreshing
    assert play.log.high_watermark == (8 if more else 5)
    await play.log.close()


async def test_opening_waits_for_pulsar_to_recover_the_transaction_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other namespaces can keep the buffer waiting for 30 s, longer than any other answer may take."""
    play, waits = Play(41), []

    async def in_time(reader: FakeReader, *, within: float | None = None) -> Position:
        waits.append(within)
        return play.broker.entries[-1].position

    monkeypatch.setattr(FakeReader, "last_position", in_time)
    await play.log.attach()
    assert waits[0] == 30
    await play.log.close()
