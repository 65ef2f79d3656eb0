"""Gaps that Pulsar's transactions leave: consumers pass them quickly, and no record with them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from storage.batches import attached, make, records
from storage.engines import PulsarStore
from storage.fake_pulsar_client import Broker, FakeEngine, settle
from support.native_transactions import NativeTransactions
from support.pulsar import Urls, fresh_namespace
from support.waiting import until

from kop.pulsar_client import EARLIEST, Client, Position
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.reader import Reader
from kop.read_budget import BudgetShare, ReadBudget
from kop.records.batch import read_header
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.offsets.mapping import offset_mapping
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.batches import Converter, Gap
from kop.storage.pulsar.reading.cold_readers import ColdReader
from kop.storage.pulsar.reading.source import PartitionSource
from kop.storage.pulsar.reading.stream import Stream

BEFORE, BEHIND = Position(7, 4), Position(7, 6)


@pytest.mark.parametrize(
    ("gap", "mark_delete", "passed_over"),
    [
        (Gap(5, 5, BEFORE, BEHIND), Position(7, -1), False),  # the cursor stands before the gap: it was not moved
        (Gap(5, 5, BEFORE, BEHIND), BEFORE, False),
        (Gap(5, 5, BEFORE, BEHIND), Position(7, 5), True),
        (Gap(5, 5, BEFORE, BEHIND), Position(9, 0), True),
        (Gap(5, 5, BEFORE, BEHIND), None, True),
        (Gap(5, 99, BEFORE, BEHIND), Position(7, 3), False),  # how many offsets it has does not matter
        (Gap(5, 9, BEFORE, Position(8, 3)), Position(7, 3), False),
        (Gap(5, 9, BEFORE, Position(8, 3)), Position(8, 1), True),
        (Gap(5, 9, BEFORE, Position(7, 5)), None, False),  # there is no entry that could be passed over
        (Gap(5, 9, BEFORE, Position(8, 5)), None, True),
    ],
)
def test_a_reader_was_moved_over_a_gap_only_where_its_cursor_is_marked_behind_it(
    gap: Gap, mark_delete: Position | None, passed_over: bool
) -> None:
    assert gap.passed_over(mark_delete) == passed_over


class Tail:
    """A log that holds three records, then a gap of entries that nobody is sent, and three records."""

    def __init__(self, entries: int) -> None:
        self.broker = Broker()
        self.broker.foreign()
        self.log = FakeEngine(self.broker).log()
        self.entries = entries

    async def bring(self) -> None:
        await self.log.attach()
        for _ in range(self.entries):
            self.broker.gap(1)
        self.broker.foreign()
        self.broker.tail.deliver()

    def cached(self, offset: int) -> list[int] | None:
        """Offsets of records from memory, of the empty batch of a gap its last one; None: from storage."""
        result = self.log.read_cached(offset, 1 << 20, min_one=True)
        if result is None:
            return None
        return [
            offset
            for data in result.buffers
            for offset in [record.offset for record in records([data])] or [read_header(data).next_offset - 1]
        ]


@pytest.mark.parametrize("entries", [1, 3, 1000])
async def test_what_is_behind_a_gap_is_answered_from_memory_where_the_tail_was_not_moved(entries: int) -> None:
    tail = Tail(entries)
    await tail.bring()
    last = 2 + entries
    assert tail.cached(3) == [], "the broker is being asked"
    assert tail.cached(last + 1) == [last + 1, last + 2, last + 3]
    await settle()
    assert tail.cached(3) == [last, last + 1, last + 2, last + 3]
    assert tail.broker.mark_delete_asked == 1
    await tail.log.close()


@pytest.mark.parametrize("marked", [Position(7, 1), Position(7, 100), None], ids=["inside", "behind", "unknown"])
async def test_where_the_tail_may_have_been_moved_over_a_gap_records_are_looked_for(marked: Position | None) -> None:
    tail = Tail(3)
    tail.broker.mark_delete = marked
    await tail.bring()
    await settle()
    assert tail.cached(3) is None
    assert tail.cached(5) is None
    assert tail.cached(6) == [6, 7, 8]
    await tail.log.close()


async def test_offsets_without_any_entry_need_no_question() -> None:
    tail = Tail(0)
    tail.broker.index += 2  # an entry that failed when it was written took them
    await tail.bring()
    assert tail.cached(3) == [4, 5, 6, 7]
    await settle()
    assert tail.broker.mark_delete_asked == 0
    await tail.log.close()


async def test_a_gap_that_is_met_just_after_the_answer_about_another_one_is_asked_about_too() -> None:
    tail = Tail(3)

    def known() -> None:
        if tail.cached(3) and tail.broker.mark_delete_asked == 1 and not again:
            again.append(tail.log.high_watermark)
            tail.broker.gap(3)
            tail.broker.foreign()
            tail.broker.tail.deliver()

    again: list[int] = []
    await tail.bring()
    tail.log.on_advance(known)
    async with asyncio.timeout(100):
        await until(lambda: again)
        assert (await tail.log.read(again[0], 1 << 20, min_one=True)).size
    await tail.log.close()


async def test_a_read_waits_until_it_is_known_whether_the_tail_was_moved() -> None:
    tail = Tail(1)
    await tail.bring()
    result = await tail.log.read(3, 1 << 20, min_one=True)
    assert [record.offset for record in records(result.buffers)] == [4, 5, 6]
    await tail.log.close()


class Reading:
    """A cold reader that is brought what a fake broker holds, as far as the test says."""

    def __init__(self, *gaps: int) -> None:
        """`gaps`: entries that nobody is sent between two others, each with three records."""
        self.broker = Broker()
        self.broker.foreign()
        for entries in gaps:
            for _ in range(entries):
                self.broker.gap(1)
            self.broker.foreign()
        faults = Faults(asyncio.get_running_loop().time, Outage())
        mapping = offset_mapping("index", faults)
        converter = Converter("t-0", 0, mapping, append_time=False, count=faults.count, max_message_bytes=1 << 20)
        self.reader = ColdReader(converter, BudgetShare(ReadBudget(1 << 20), lambda: None))
        context: Any = SimpleNamespace(client=self.broker)
        source = PartitionSource(context, "t", "t-0", mapping, AsyncMock())
        self.stream = Stream(source, self.reader.on_entry, self.reader.on_lost, self.reader.on_many)

    async def bring(self, entries: int) -> None:
        if self.reader.stream is None:
            await self.stream.start(EARLIEST, budget=1 << 20)
            self.reader.stream = self.stream
        kept, self.broker.entries = self.broker.entries, self.broker.entries[:entries]
        self.broker.tail.deliver()
        self.broker.entries = kept

    def take(self) -> int:
        """The offset behind what can be taken without doubt."""
        return read_header(self.reader.take(1 << 40, 1 << 20, True).buffers[-1]).next_offset


async def test_one_answer_serves_all_gaps_that_came_before_the_question() -> None:
    reading = Reading(1, 2, 1, 1)
    await reading.bring(4)
    assert reading.take() == 3
    assert await reading.reader.was_moved() is False
    assert reading.take() == 3 + 4 + 5 + 4
    await reading.bring(5)  # Pulsar may have moved the reader meanwhile
    assert reading.reader.gap is not None
    reading.broker.mark_delete = reading.broker.position
    assert await reading.reader.was_moved() is True
    assert reading.reader.gap is not None
    assert reading.broker.mark_delete_asked == 2


async def test_an_answer_says_nothing_of_a_gap_that_came_after_the_question() -> None:
    reading = Reading(1, 1)
    await reading.bring(2)
    assert reading.take() == 3
    asking = asyncio.ensure_future(reading.reader.was_moved())
    await asyncio.sleep(0)
    assert reading.broker.mark_delete_asked == 1
    await reading.bring(3)
    assert await asking is False
    assert reading.take() == 3 + 4
    assert reading.reader.gap is not None


# --- a real Pulsar


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


async def follow(log: PulsarLog, end: int) -> list[bytes | None]:
    """Read as consumers do."""
    offset, values = 0, []
    while offset < end:
        result = log.read_cached(offset, 1 << 20, min_one=True)
        if result is None:
            result = await log.read(offset, 1 << 20, min_one=True)
        if not result.size:
            await asyncio.sleep(0.005)  # as a long poll
            continue
        values += [record.value for record in records(result.buffers)]
        offset = read_header(result.buffers[-1]).next_offset
    return values


def ends_with(log: PulsarLog, value: bytes) -> bool:
    """Whether the last offset of the log is that of a record with this value, which is in memory."""
    result = log.read_cached(log.high_watermark - 1, 1 << 20, min_one=True) if log.high_watermark else None
    return result is not None and [record.value for record in records(result.buffers)] == [value]


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Counter[str]:
    """How often a method of a class is called in this thread, from now on: gateways of other tests run in theirs."""
    counts: Counter[str] = Counter()
    method = getattr(owner, name)
    here = threading.get_ident()

    async def call(*args: Any, **how: Any) -> Any:
        if threading.get_ident() == here:
            counts[name] += 1
        return await method(*args, **how)

    monkeypatch.setattr(owner, name, call)
    return counts


@pytest.mark.pulsar
async def test_a_topic_of_transactions_is_read_with_a_few_readers_and_questions(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = counted(monkeypatch, Client, "open_reader")
    by_rest = counted(monkeypatch, Admin, "entry")
    questions = counted(monkeypatch, Reader, "mark_delete_position")
    rounds = 60
    wanted = [f"{number}".encode() for number in range(rounds) if number % 5 != 4] + [b"end"]
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await log.attach()
        opened.clear()
        async with NativeTransactions(pulsar_store.urls[0], log.partition_name) as native:
            for number in range(rounds):
                await native.write(f"{number}".encode(), commit=number % 5 != 4)
            await native.plain(b"end")
        # A coordinator that a test beside this one unloads while it ends a transaction writes a second marker.
        await until(lambda: ends_with(log, b"end"))
        end = log.high_watermark
        assert end >= 2 * rounds + 1
        assert await follow(log, end) == wanted
        assert not opened, "all of it is in memory"
    async with pulsar_store.opened() as engine:
        log = await attached(engine)
        opened.clear()
        questions.clear()
        assert await follow(log, end) == wanted
        assert opened.total() <= 5
        assert questions.total() <= 10
    assert not by_rest
