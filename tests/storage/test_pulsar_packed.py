"""Offsets packed from message ids: gaps, ledgers that come and go, what does not fit.

What all engines have in common runs over them in the suite, seen without the gaps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from storage.batches import LIMIT, NOW, append, attached, batch, first, make, read_all, read_values, records, refused
from storage.engines import PulsarStore
from storage.fake_pulsar_client import KEEPS_ALL, Broker, FakeAdmin, FakeEngine, settle
from storage.test_pulsar_log import AGAIN, Play
from support.pulsar import Urls, fresh_namespace
from support.slowness import beyond_slowness
from support.waiting import SECONDS, until

from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import Entry, Position
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.packed import LAST_ENTRY, MOST_LEDGERS, MOST_MESSAGES, pack, unpack
from kop.records import transcode
from kop.records.batch import read_header
from kop.storage.base import LogPolicy, PartitionLog
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.offsets import mapping
from kop.storage.pulsar.offsets.mapping import PartitionEntries
from kop.storage.pulsar.partition import log as log_module
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.batches import Converter
from kop.storage.pulsar.reading.source import PartitionSource

TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE
REFUSED = "packed_offsets/batch_beyond"


# --- without a broker


class PlainBroker(Broker):
    """One that sends neither index nor time, as Pulsar comes."""

    def put(self, metadata: bytes, payload: bytes, moves: int, count: int) -> Position:
        position = super().put(metadata, payload, moves, count)
        self.entries[-1] = replace(self.entries[-1], index=None, broker_timestamp=0)
        return position


class PackedPlay(Play):
    """On a broker without indexes."""

    def __init__(self, producer: int, policy: LogPolicy = KEEPS_ALL) -> None:
        super().__init__(producer, policy, broker=PlainBroker(), offsets="packed")

    @property
    def places(self) -> list[Any]:
        """Outcomes; offsets as (ledger, entry)."""
        return [
            (*unpack(outcome)[0], *unpack(outcome)[1:])[:2]
            if isinstance(outcome, int) and not isinstance(outcome, ErrorCode)
            else outcome
            for outcome in self.outcomes
        ]


SCRIPTS = {
    "the entry before is known": ("aSR", [(7, 1)], {}),
    "one behind the other": ("aSR aSR aSR", [(7, 1), (7, 2), (7, 3)], {}),
    "the tail agrees": ("aSR aSR T", [(7, 1), (7, 2)], {}),
    "the tail is faster, then the receipt": ("aST R", [(7, 1)], {}),
    "a foreign entry before ours: the log end must not pass it": ("aF SR", [None], {}),
    "a foreign entry before ours: the tail brings it": ("aF SRT", [(7, 2)], {}),
    "behind a foreign entry the chain goes on": ("aF SRT aSR", [(7, 2), (7, 3)], {}),
    "a new ledger: wait for what the old one may hold": ("aL SR", [None], {}),
    "a new ledger: the tail tells": ("aL SRT", [(8, 0)], {}),
    "in the new ledger the chain goes on": ("aL SRT aSR", [(8, 0), (8, 1)], {}),
    "an entry that nobody sees": ("aG SRT", [(7, 2)], {}),
    "how far an index would have moved is of no matter": ("aL sRT aSR", [(8, 0), (8, 1)], {}),
    "a lost receipt, the tail brings it": ("aS D T", [(7, 1)], {}),
    "the tail is lost with a batch under way": ("a! SR", [(7, 1)], {"tail_lost/failed": 1}),
}


async def test_behind_a_foreign_entry_the_place_tells_the_offset() -> None:
    play = PackedPlay(-1)
    await play.run("aF SR")
    await until(lambda: None not in play.outcomes)
    assert play.places == [(7, 2)]
    assert play.log.high_watermark == pack(Position(7, 0), 2) + 1
    await play.run("T")
    assert play.log.high_watermark == pack(Position(7, 2), 1) + 1
    await play.log.close()


@pytest.mark.usefixtures("tail_in_time")
@pytest.mark.parametrize("producer", [-1, 41])
@pytest.mark.parametrize("case", SCRIPTS)
async def test_what_an_append_is_told(case: str, producer: int) -> None:
    script, expected, counts = SCRIPTS[case]
    play = PackedPlay(producer)
    await play.run(script)
    assert play.places == expected
    assert play.counts == counts
    await play.log.close()
    assert None not in play.outcomes


async def test_what_is_told_is_what_is_read_and_gaps_are_stepped_over() -> None:
    play = PackedPlay(-1)
    await play.run("aSR aF SRT aG SRT aL SRT aSR F T")
    cached = play.log.read_cached(pack(Position(7, 1)), 1 << 20, min_one=True)
    assert cached is not None
    read_back = records(cached.buffers)
    ours = [record.offset for record in read_back if record.value in {b"x", b"y"}]
    assert play.places == [(7, 1), (7, 3), (7, 5), (8, 0), (8, 1)]
    assert ours == [offset for base in play.outcomes if base is not None for offset in (base, base + 1)]
    assert [header.record_count for header in map(read_header, cached.buffers)] == [2, 3, 2, 2, 2, 2, 3]
    assert play.log.high_watermark == pack(Position(8, 2), 2) + 1
    for buffer, after in zip(cached.buffers, cached.buffers[1:], strict=False):
        gap = play.log.read_cached(read_header(buffer).next_offset, 1, min_one=True)
        assert gap is not None, "who has read to the end of a batch finds the next one in memory"
        assert list(gap.buffers) == [after]
    end = play.log.read_cached(play.log.high_watermark, 1 << 20, min_one=True)
    assert end is not None
    assert not end.size
    await play.log.close()


async def test_who_stands_at_the_end_is_served_from_memory() -> None:
    play = PackedPlay(-1)
    await play.log.attach()
    for script, position in (("F T", Position(7, 1)), ("aSR", Position(7, 2)), ("a L SRT", Position(8, 0))):
        end = play.log.high_watermark
        await play.run(script)
        result = play.log.read_cached(end, 1 << 20, min_one=True)
        assert result is not None
        assert records(result.buffers)[0].offset == pack(position)
    await play.log.close()


@pytest.mark.usefixtures("tail_in_time")
async def test_without_the_brokers_time_log_append_time_is_the_senders() -> None:
    play = PackedPlay(-1, LogPolicy(log_append_time=True))
    await play.run("aSR")
    assert play.outcomes == [None]
    await play.run("T")
    sent = transcode.parse_entry(play.broker.sent[0].metadata).publish_time
    assert sent > NOW
    assert play.futures[0].result().log_append_time == sent
    await play.log.close()


async def test_a_batch_of_too_many_records_is_refused_and_the_next_one_goes_through() -> None:
    play = PackedPlay(41)
    play.append(values=("v",) * (MOST_MESSAGES + 1))
    play.append(0, values=("v",) * MOST_MESSAGES)
    await settle()
    await play.run("SRT")
    assert play.outcomes == [TOO_LARGE, pack(Position(7, 1))]
    assert play.log.high_watermark == pack(Position(7, 2))
    assert play.counts == {REFUSED: 1}
    await play.log.close()


async def test_a_batch_that_would_be_split_is_refused() -> None:
    play = PackedPlay(-1)
    play.log.context.client.max_message_size = 2048
    play.append(values=("v" * 400,) * 8)
    await settle()
    assert play.outcomes == [TOO_LARGE]
    assert not play.broker.sent
    assert play.counts == {REFUSED: 1}
    await play.log.close()


async def test_a_ledger_that_does_not_close_takes_no_more() -> None:
    play = PackedPlay(-1)
    await play.log.attach()
    play.broker.position = Position(7, mapping.REFUSE_AT - 2)
    await play.run("FT a SR a")
    assert play.places == [(7, mapping.REFUSE_AT), AGAIN]
    assert play.counts == {REFUSED: 1}
    await play.run("L F T a SR")
    assert play.places[-1] == (8, 1), "a new ledger heals it"
    await play.log.close()


async def test_a_ledger_that_cannot_be_closed_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    play = PackedPlay(-1)
    assert not play.log.services.mapping.closes_ledger(Position(7, mapping.CLOSE_AT - 1))
    await settle()
    assert play.counts == {}
    position = Position(7, mapping.CLOSE_AT - mapping.CLOSE_AT % (1 << 14) + (1 << 14))
    assert play.log.services.mapping.closes_ledger(position)
    log = play.log
    source = PartitionSource(log.context, log.partition_name, log.title, log.services.mapping, log.check_exists)
    await source.close_ledger(position.ledger)
    await settle()
    assert play.counts["packed_offsets/ledger_not_closed"] == 1
    assert "pulsar-admin topics unload" in caplog.text
    await play.log.close()


async def test_behind_the_last_entry_that_has_offsets_nothing_is_told_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "REFUSE_AT", LAST_ENTRY + 99)
    play = PackedPlay(-1)
    await play.log.attach()
    play.broker.position = Position(7, LAST_ENTRY - 2)
    await play.run("F T aaa SSS RRR")
    assert play.outcomes == [None] * 3
    await play.run("T")
    assert play.outcomes == [AGAIN] * 3
    assert play.log.high_watermark == pack(Position(8, 0))
    assert play.counts["packed_offsets/entry_beyond"] == 1
    await play.run("L aSRT")
    assert play.places[-1] == (8, 0)
    await play.log.close()


def entry(position: Position, count: int = 3) -> Entry:
    data = batch(["v"] * count)
    (made,) = transcode.to_entries(
        data, read_header(data), producer_name="them", sequence_base=0, publish_time=9, max_size=5 << 20
    )
    return Entry(position, None, 0, count, memoryview(made.metadata), memoryview(made.payload))


def test_an_entry_of_too_many_messages_is_an_error_in_its_place() -> None:
    faults = Faults(time.monotonic, Outage())
    packed = mapping.offset_mapping("packed", faults)
    converter = Converter(
        "t-0", pack(Position(7, 4)), packed, append_time=False, count=faults.count, max_message_bytes=1 << 20
    )
    (good,) = converter.feed(packed.place(entry(Position(7, 4))))
    (bad,) = converter.feed(packed.place(entry(Position(7, 5), MOST_MESSAGES + 1)))
    (after,) = converter.feed(packed.place(entry(Position(7, 6))))
    assert good.error is after.error is None
    assert bad.error is not None
    assert bad.error.code is ErrorCode.CORRUPT_MESSAGE
    assert (bad.base, bad.last + 1, after.base) == (pack(Position(7, 5)), pack(Position(7, 6)), pack(Position(7, 6)))
    assert faults.counts["packed_offsets/entry_beyond"] == 1


def test_a_cluster_with_larger_ledger_ids_is_refused() -> None:
    packed = mapping.offset_mapping("packed", Faults(time.monotonic, Outage()))
    position = Position(MOST_LEDGERS, 0)
    for attempt in (lambda: packed.place(entry(position)), lambda: packed.first_id(position, 1000)):
        with pytest.raises(KopError, match=r"kop\.pulsar\.offsets=index"):
            attempt()
    with pytest.raises(BackendError, match="producer ids at once"):
        packed.first_id(Position(1, 0), MOST_MESSAGES + 1)


class EmptyLedger(FakeAdmin):
    """Of a partition whose entries are deleted: its open ledger 12 has none yet."""

    async def internal_stats(self, name: str) -> dict[str, Any]:
        ledgers = [{"ledgerId": 3, "entries": 9}, {"ledgerId": 12, "entries": 0}]
        return {"totalSize": 0, "numberOfEntries": 0, "ledgers": ledgers, "lastConfirmedEntry": "12:-1"}


async def test_an_empty_log_answers_older_offsets_with_nothing_and_later_ones_not() -> None:
    broker = Broker()
    log = FakeEngine(broker, "packed", EmptyLedger(broker)).log()
    result = await log.read(0, LIMIT, min_one=True)
    assert (result.size, log.log_start_offset, log.high_watermark) == (0, pack(Position(12, 0)), pack(Position(12, 0)))
    for offset in (-1, log.high_watermark + 1):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            await log.read(offset, LIMIT, min_one=True)
    await log.close()


# --- on a real broker, whose index is not looked at


@pytest.fixture
def packed(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace, "packed")


async def new_ledger(engine: PulsarEngine, log: PulsarLog) -> None:
    await engine.admin.unload(log.partition_name)


async def put(log: PartitionLog, *values: str) -> int:
    return (await append(log, batch(values))).base_offset


async def offsets_from(log: PartitionLog, offset: int) -> list[int]:
    """Of all records from an offset on."""
    offsets: list[int] = []
    while offset < log.high_watermark:
        part = await log.read(offset, LIMIT, min_one=True)
        assert part.size
        offsets += [record.offset for record in records(part.buffers)]
        offset = read_header(part.buffers[-1]).next_offset
    return offsets


async def test_offsets_are_the_message_ids(packed: PulsarStore) -> None:
    async with packed.opened() as engine:
        log = await make(engine)
        for number in range(5):
            base = await put(log, *["v"] * (number + 1))
            position, place = unpack(base)
            stored = await engine.admin.entry(log.partition_name, *position)
            assert (position.entry, place, stored.num_messages) == (number, 0, number + 1)
        assert unpack(log.high_watermark) == (Position(position.ledger, 4), 5)
        assert log.log_start_offset == pack(Position(position.ledger, 0))


async def test_ledgers_come_and_every_gap_can_be_read_from(packed: PulsarStore) -> None:
    async with packed.opened() as engine:
        log = await make(engine)
        bases = [await put(log, f"0.{i}", "x") for i in range(3)]
        await new_ledger(engine, log)
        bases += [await put(log, f"1.{i}", "x") for i in range(3)]
        assert bases == sorted(bases)
        assert len({unpack(base)[0].ledger for base in bases}) == 2
        await log.refresh()  # in a new ledger producers may be answered before the tail has come so far
        end = log.high_watermark
        assert not beyond_slowness(engine.counts)
    async with packed.opened() as engine:
        log = await attached(engine)
        assert (log.log_start_offset, log.high_watermark) == (bases[0], end)
        for base, after in zip(bases, [*bases[1:], None], strict=True):
            for offset in (base + 2, base + 99):
                if after is None and offset > end:
                    continue
                got = await offsets_from(log, offset)
                assert got == [
                    number
                    for first_of_ledger in bases
                    if first_of_ledger > base
                    for number in (first_of_ledger, first_of_ledger + 1)
                ]
        assert [record.offset for record in await read_all(log)] == [n for base in bases for n in (base, base + 1)]
        assert await put(log, "next") > end
        assert not beyond_slowness(engine.counts)


async def test_a_reader_goes_on_through_gaps_and_looks_twice_between_ledgers(
    packed: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed.settings = packed.settings.model_copy(update={"kop_cache_bytes": 0})
    async with packed.opened() as engine:
        log = await make(engine)
        for part in range(3):
            for number in range(20):
                await put(log, f"{part}.{number}", "x")
            await new_ledger(engine, log)
        await log.refresh()  # in a new ledger producers may be answered before the tail has come so far
        located: list[int] = []
        locate = engine.mapping.locate

        async def counted(entries: PartitionEntries, offset: int, back: int) -> Position:
            located.append(offset)
            return await locate(entries, offset, back)

        monkeypatch.setattr(engine.mapping, "locate", counted)
        assert await read_values(log, max_bytes=200) == [
            value for part in range(3) for number in range(20) for value in (f"{part}.{number}", "x")
        ]
        assert len(located) <= 3
        assert not beyond_slowness(engine.counts)


async def test_where_retention_took_ledgers_older_offsets_go_on_with_what_is_there(packed: PulsarStore) -> None:
    async with packed.opened() as engine:
        log = await make(engine)
        old = await put(log, "a", "b")
        end = log.high_watermark
        await new_ledger(engine, log)
        new = await put(log, "c", "d")
        await engine.admin.truncate(log.partition_name)
        async with asyncio.timeout(SECONDS):
            while log.log_start_offset == old:
                await log.refresh_start()
                await asyncio.sleep(0.1)  # Pulsar deletes ledgers after its answer
        assert log.log_start_offset == new
    async with packed.opened() as engine:
        log = await attached(engine)
        assert log.log_start_offset == new
        for offset in (old, end, 0):
            log.close_idle(float("inf"), 0)  # else the reader of the read before has these batches at hand
            result = await log.read(offset, LIMIT, min_one=True)
            assert [record.value for record in records(result.buffers)] == [b"c", b"d"]
        assert beyond_slowness(engine.counts) == {"packed_offsets/read_before_log_start": 3}
        await log.delete_records(new + 1)
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            await log.read(end, LIMIT, min_one=True)


async def test_an_emptied_log_goes_on_behind_all_that_was(packed: PulsarStore) -> None:
    async with packed.opened() as engine:
        log = await make(engine)
        await put(log, "a")
        end = log.high_watermark
        name = log.partition_name
        await new_ledger(engine, log)
        await engine.admin.truncate(name)

        async def emptied() -> bool:  # Pulsar deletes ledgers after its answer
            return not (await engine.admin.internal_stats(name))["numberOfEntries"]

        await until(emptied)
    async with packed.opened() as engine:
        log = await attached(engine)
        assert log.log_start_offset == log.high_watermark > end
        assert not (await log.read(end, LIMIT, min_one=True)).size
        heard = asyncio.Event()
        log.on_advance(heard.set)
        before = log.high_watermark
        assert await put(log, "b") >= before
        await until(heard.is_set, "the log moves")  # in a new ledger producers may be answered before the tail comes
        result = await log.read(end, LIMIT, min_one=True)
        assert [record.value for record in records(result.buffers)] == [b"b"]


async def test_a_ledger_is_closed_before_its_offsets_are_used_up(
    packed: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "CLOSE_AT", 10)
    monkeypatch.setattr(log_module, "MARK_EVERY", 6)
    async with packed.opened() as engine:
        log = await make(engine)
        bases: list[int] = []
        async with asyncio.timeout(SECONDS):
            while len({unpack(base)[0].ledger for base in bases}) < 2:
                bases.append(await put(log, str(len(bases))))
        await log.refresh()  # in a new ledger producers may be answered before the tail has come so far
        assert await read_values(log) == [str(number) for number in range(len(bases))]
        assert engine.counts["packed_offsets/ledger_closed"] >= 1


async def test_two_gateways_have_the_same_offsets_and_other_ids(packed: PulsarStore) -> None:
    async with packed.opened() as first_engine, packed.opened() as second_engine:
        here = await make(first_engine)
        await until(lambda: second_engine.topics.get("t") is not None)
        there = await attached(second_engine)
        bases = [await put((here, there)[number % 2], str(number)) for number in range(20)]
        assert bases == sorted(bases)
        for log in (here, there):
            await log.refresh()
            assert [(record.offset, record.value) for record in await read_all(log)] == [
                (base, str(number).encode()) for number, base in enumerate(bases)
            ]
        assert not beyond_slowness(first_engine.counts)
        assert not beyond_slowness(second_engine.counts)
        blocks = await asyncio.gather(
            *[engine.reserve_producer_ids() for engine in (first_engine, second_engine) for _ in range(5)]
        )
        assert len(set().union(*blocks)) == sum(map(len, blocks))


@pytest.mark.parametrize("order", [("packed", "index"), ("index", "packed")])
async def test_gateways_on_the_same_data_have_to_agree(packed: PulsarStore, order: tuple[str, str]) -> None:
    packed.settings = packed.settings.model_copy(update={"kop_pulsar_offsets": order[0]})
    async with packed.opened() as engine:
        await put(await make(engine), "a")
    packed.settings = packed.settings.model_copy(update={"kop_pulsar_offsets": order[1]})
    with pytest.raises(BackendError, match=rf"kop\.pulsar\.offsets={order[0]}"):
        await packed.open()
    packed.settings = packed.settings.model_copy(update={"kop_pulsar_offsets": order[0]})
    async with packed.opened() as engine:
        assert await read_values(first(engine)) == ["a"]
