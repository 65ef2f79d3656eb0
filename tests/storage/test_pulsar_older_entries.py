"""Topics with entries from before their brokers gave entries an index: those have no offsets, the log starts behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from storage.batches import append, attached, batch, read_values
from storage.engines import PulsarStore
from storage.fake_pulsar_client import Broker, FakeAdmin, FakeEngine, settle
from support.pulsar import OwnBroker, Urls
from support.waiting import SECONDS, until

from kop.cli.check_pulsar import Caution, entry_index
from kop.cli.common import CliError
from kop.cli.older_entries import older_entries_of, topics_with_older_entries
from kop.errors import ErrorCode, KopError
from kop.pulsar_client import Client, Position
from kop.pulsar_client.admin import FOREVER, Admin, StoredEntry
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.storage.pulsar.partition import appends
from kop.storage.pulsar.partition.log import PulsarLog

OLDER = "entries_unreadable/older_than_index"
NAMESPACE = "public/older"


class Ledgers(Broker):
    """Ledgers of three-message entries; some were written by a broker that gives no index."""

    def write(self, *ledgers: tuple[int, bool]) -> None:
        """Ledgers of so many entries, with an index or not."""
        for entries, numbered in ledgers:
            self.new_ledger()
            for _ in range(entries):
                if numbered:
                    self.foreign()
                else:
                    self.without_index()

    def without_index(self) -> None:
        index = self.index
        self.foreign()
        self.index = index
        self.entries[-1].index = None


class LedgerAdmin(FakeAdmin):
    """What REST says of them."""

    def __init__(self, broker: Ledgers) -> None:
        super().__init__(broker)
        self.asked = 0

    async def internal_stats(self, name: str) -> dict[str, Any]:
        counts: dict[int, int] = {}
        for entry in self.broker.entries:
            counts[entry.position.ledger] = counts.get(entry.position.ledger, 0) + 1
        last = self.broker.entries[-1].position
        counts[last.ledger] = 0  # as of one that is open
        return {
            "totalSize": 0,
            "numberOfEntries": len(self.broker.entries),
            "ledgers": [{"ledgerId": ledger, "entries": count} for ledger, count in counts.items()],
            "lastConfirmedEntry": f"{last.ledger}:{last.entry}",
        }

    async def closed_index(self, name: str) -> int | None:
        return self.broker.index

    async def entry(self, name: str, ledger: int, entry: int) -> StoredEntry:
        self.asked += 1
        stored_entry = next(stored for stored in self.broker.entries if stored.position == Position(ledger, entry))
        return StoredEntry(ledger, entry, stored_entry.index, None, None, {}, b"")


def log_over(*ledgers: tuple[int, bool]) -> tuple[PulsarLog, Ledgers, LedgerAdmin]:
    broker = Ledgers()
    broker.write(*ledgers)
    admin = LedgerAdmin(broker)
    return FakeEngine(broker, rest=admin).log(), broker, admin


@pytest.mark.parametrize(
    ("ledgers", "start", "end"),
    [
        ([(2, False), (2, True)], 0, 6),
        ([(2, False), (2, False), (3, False), (2, True), (1, True)], 0, 9),
        ([(2, False)], 0, 0),
        ([(2, False), (2, False)], 0, 0),
        ([(2, False), (2, True), (2, False)], 0, 6),  # told not to again
        ([(2, False), (2, True), (2, False), (1, True)], 0, 9),
        ([(2, True), (2, False), (1, True)], 0, 9),
        ([(2, True), (2, False)], 0, 6),
    ],
)
async def test_a_log_starts_at_the_first_entry_with_an_offset(
    ledgers: list[tuple[int, bool]], start: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    log, broker, _ = log_over(*ledgers)
    await log.attach()
    assert (log.log_start_offset, log.high_watermark) == (start, end)
    older = not ledgers[0][1]
    assert log.context.faults.counts == ({OLDER: 1} if older else {})
    assert ("entries from before the Pulsar brokers gave them an index" in caplog.text) == older
    broker.tail.deliver()
    assert log.attached
    await log.ask_start()
    assert log.log_start_offset == start
    broker.new_ledger()
    broker.foreign()
    broker.tail.deliver()
    assert log.high_watermark == end + 3
    reading = asyncio.ensure_future(log.read(start, 1 << 20, min_one=True))
    await settle()
    broker.tail.deliver()
    assert (await reading).size
    await log.close()


async def test_the_first_of_many_ledgers_is_found_with_a_few_questions() -> None:
    log, _, admin = log_over(*[(1, False)] * 600, *[(1, True)] * 400)
    await log.attach()
    assert (log.log_start_offset, log.high_watermark) == (0, 1200)
    assert log.search.begin == Position(608, 0)
    assert admin.asked <= 12
    await log.close()


async def test_an_entry_without_an_offset_that_is_written_now_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(appends, "PLACE_SECONDS", 0.2)
    log, broker, _ = log_over((2, True))
    await log.attach()
    appended = append(log, batch(["x"]))
    await settle()
    broker.new_ledger()
    broker.store()
    broker.entries[-1].index = None
    broker.tell()
    assert not appended.done(), "its place is not known"
    broker.tail.deliver()
    with pytest.raises(KopError) as refused:
        await appended
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert not log.attached
    assert "the Pulsar brokers send no entry index" in caplog.text
    await log.close()


# --- a real Pulsar, which is told to give an index later


async def write(urls: Urls, topic: str, *values: str) -> None:
    """As a Pulsar client."""
    client = Client(urls.service_url, request_timeout=SECONDS)  # a broker that has just started is slow
    await client.start()
    producer = await client.open_producer(f"persistent://{NAMESPACE}/{topic}-partition-0", name="p")
    for number, value in enumerate(values):
        about = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1).SerializeToString()
        await producer.send(about, value.encode(), sequence_id=number, highest_sequence_id=number, num_messages=1)
    await producer.close()
    await client.close()


@pytest.mark.timeout(900)
async def test_a_cluster_that_turns_the_index_on_keeps_its_topics(own_broker: OwnBroker, tmp_path: Path) -> None:
    broker = own_broker
    broker.index(False)
    urls = broker.start()
    async with Admin(urls.admin_url, timeout=30) as admin:
        await admin.create_namespace(NAMESPACE)
        await admin.set_namespace_retention(NAMESPACE, FOREVER)
        for topic in ("mixed", "only"):
            await admin.create_partitioned(f"persistent://{NAMESPACE}/{topic}", 1, {})
            await write(urls, topic, "old 0", "old 1")
            await admin.unload(f"persistent://{NAMESPACE}/{topic}-partition-0")
            await write(urls, topic, "old 2")
        with pytest.raises(CliError) as refused:
            entry_index(await admin.broker_config())
    broker.stop()
    (broker.directory / "extra.conf").write_text(refused.value.message.partition("\n")[2])  # as `kop check` says
    urls = broker.start()
    await write(urls, "mixed", "new 0", "new 1")
    store = PulsarStore(urls.service_url, urls.admin_url, NAMESPACE)
    async with store.opened() as engine:
        mixed, only = await attached(engine, "mixed"), await attached(engine, "only")
        assert (mixed.log_start_offset, mixed.high_watermark) == (0, 2)
        assert (only.log_start_offset, only.high_watermark) == (0, 0)
        assert engine.counts[OLDER] == 2
        assert (await append(mixed, batch(["kafka"]))).base_offset == 2
        assert (await append(only, batch(["kafka", "too"]))).base_offset == 0
        await only.refresh()  # behind entries without offsets it may be answered before the tail has brought it
        assert await read_values(mixed) == ["new 0", "new 1", "kafka"]
        assert await read_values(only) == ["kafka", "too"]
        position = await mixed.find_by_time(0)
        assert position is not None
        assert position.offset == 0
    async with Admin(urls.admin_url, timeout=30) as admin:
        assert not isinstance(entry_index(await admin.broker_config()), Caution)
        older = [f"{NAMESPACE}/mixed", f"{NAMESPACE}/only"]
        assert await topics_with_older_entries(admin, NAMESPACE, SECONDS) == (older, 2, 2)
        counts = await older_entries_of(admin, ["mixed", "only", "absent"], NAMESPACE)
        assert counts == {("mixed", 0): 3, ("only", 0): 3}
    await write(urls, "only", "native")
    async with store.opened() as engine:
        mixed, only = await attached(engine, "mixed"), await attached(engine, "only")
        await until(lambda: only.high_watermark == 3)
        assert await read_values(mixed) == ["new 0", "new 1", "kafka"]
        assert await read_values(only) == ["kafka", "too", "native"]
