"""Gaps that Pulsar's transactions leave: consumers pass them quickly, and no record with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from batches import attached, make, records
from engines import PulsarStore
from fake_pulsar_client import Broker, make_log, settle
from support.native_transactions import NativeTransactions
from support.pulsar import Urls, fresh_namespace
from support.waiting import until

from kop.pulsar_client import Client, Position
from kop.records.batch import read_header
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.gaps import Gap

MARKER = {"X-Pulsar-marker-type": "21"}
ABORTED = {"X-Pulsar-txn-aborted": "true"}
RECORD = {"X-Pulsar-txn-uncommitted": "false"}


@pytest.mark.parametrize(
    ("gap", "entries"),
    [
        (Gap(5, 5, Position(7, 4), Position(7, 6)), 1),
        (Gap(5, 8, Position(7, 4), Position(7, 9)), 4),
        (Gap(5, 8, Position(7, 4), Position(7, 8)), 0),  # more offsets than entries: there were batches
        (Gap(5, 5, Position(7, 4), Position(8, 0)), 0),
        (Gap(5, 5, Position(7, 4), Position(7, 5)), 0),
    ],
)
def test_each_entry_that_is_kept_back_has_one_offset(gap: Gap, entries: int) -> None:
    assert gap.entries == entries
    assert gap.may_be_kept_back == (entries > 0)


class Tail:
    """A log that holds three records, then a gap of entries of which REST says these headers, and three records."""

    def __init__(self, *headers: dict[str, str] | None) -> None:
        self.broker = Broker()
        self.broker.foreign()
        self.log = make_log(self.broker)
        self.headers = headers

    async def bring(self) -> None:
        await self.log.attach()
        for headers in self.headers:
            self.broker.gap(1)
            if headers is not None:
                self.broker.headers[self.broker.position] = headers
        self.broker.foreign()
        self.broker.tail.deliver()

    def cached(self, offset: int) -> list[int] | None:
        """Offsets of records from memory, of the empty batch of a gap its last one; None: from storage."""
        found = self.log.read_cached(offset, 1 << 20, min_one=True)
        if found is None:
            return None
        return [
            offset
            for data in found.buffers
            for offset in [record.offset for record in records([data])] or [read_header(data).next_offset - 1]
        ]


@pytest.mark.parametrize("headers", [(MARKER,), (ABORTED, ABORTED, MARKER)], ids=["marker", "aborted"])
async def test_what_is_behind_a_transactions_end_is_answered_from_memory(headers: Any) -> None:
    tail = Tail(*headers)
    await tail.bring()
    last = 2 + len(headers)
    assert tail.cached(3) == [], "it is being asked what lies there"
    assert tail.cached(last + 1) == [last + 1, last + 2, last + 3]
    await settle()
    assert tail.cached(3) == [last, last + 1, last + 2, last + 3]
    await tail.log.close()


@pytest.mark.parametrize(
    "headers", [(RECORD,), (None,), (ABORTED, RECORD, MARKER)], ids=["record", "unknown", "between"]
)
async def test_where_a_record_may_lie_in_a_gap_it_is_looked_for(headers: Any) -> None:
    tail = Tail(*headers)
    await tail.bring()
    await settle()
    last = 2 + len(headers)
    assert tail.cached(3) is None
    assert tail.cached(last) is None
    assert tail.cached(last + 1) == [last + 1, last + 2, last + 3]
    await tail.log.close()


async def test_a_read_waits_until_it_is_known_what_lies_in_a_gap() -> None:
    tail = Tail(MARKER)
    await tail.bring()
    found = await tail.log.read(3, 1 << 20, min_one=True)
    assert [record.offset for record in records(found.buffers)] == [4, 5, 6]
    await tail.log.close()


# --- a real Pulsar


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as found:
        yield PulsarStore(found.service_url, found.admin_url, found.namespace)


async def follow(log: PulsarLog, end: int) -> list[bytes | None]:
    """Read as consumers do."""
    offset, values = 0, []
    while offset < end:
        found = log.read_cached(offset, 1 << 20, min_one=True)
        if found is None:
            found = await log.read(offset, 1 << 20, min_one=True)
        if not found.size:
            await asyncio.sleep(0.005)  # as a long poll
            continue
        values += [record.value for record in records(found.buffers)]
        offset = read_header(found.buffers[-1]).next_offset
    return values


@pytest.mark.pulsar
async def test_a_topic_of_transactions_is_read_with_a_few_readers(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0
    open_reader = Client.open_reader

    async def counted(self: Client, *args: Any, **how: Any) -> Any:
        nonlocal opened
        opened += 1
        return await open_reader(self, *args, **how)

    monkeypatch.setattr(Client, "open_reader", counted)
    rounds = 60
    wanted = [f"{number}".encode() for number in range(rounds) if number % 5 != 4] + [b"end"]
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await log.attach()
        opened = 0
        async with NativeTransactions(pulsar_store.urls[0], log.partition_name) as native:
            for number in range(rounds):
                await native.write(f"{number}".encode(), commit=number % 5 != 4)
            await native.plain(b"end")
        await until(lambda: log.high_watermark == 2 * rounds + 1)
        assert await follow(log, 2 * rounds + 1) == wanted
        assert opened == 0, "all of it is in memory"
    async with pulsar_store.opened() as engine:
        log = await attached(engine)
        opened = 0
        assert await follow(log, 2 * rounds + 1) == wanted
        assert opened <= 5
