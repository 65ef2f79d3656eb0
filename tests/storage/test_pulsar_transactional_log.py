"""Transactions over a real Pulsar: all at once or never, exact offsets at once, and nobody waits who need not."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pulsar
import pytest
from storage.batches import append, attached, batch, first, read_values, records, refused
from storage.batches import make as make_topic
from storage.engines import PulsarStore
from support.native_transactions import NativeTransactions
from support.pulsar import OwnBroker, Urls, fresh_namespace
from support.waiting import until

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import Position, PulsarError, Transactions, TxnId
from kop.pulsar_client.admin import RECOVERED
from kop.records import transcode
from kop.records.batch import read_header
from kop.storage.base import AppendResult, EndedTransaction, PartitionLog
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.layout import PROBE_TOPIC, transaction_of
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.stream import Stream
from kop.storage.pulsar.transactions.fences import Fences

T = TypeVar("T")
MINUTE = 60_000
AGAIN = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
"""With these a client sends a batch again."""
PASSES = AGAIN | {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE}
"""What passes where Pulsar is slow, or a test beside this one unloads the coordinator."""


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


@asynccontextmanager
async def opened(store: PulsarStore) -> AsyncIterator[PulsarEngine]:
    async with store.opened() as engine:
        yield engine


async def make(engine: PulsarEngine, name: str = "t", partitions: int = 1, **configs: str) -> PulsarLog:
    """A topic's first log. Its partitions take fences."""
    log = await make_topic(engine, name, partitions, **configs)
    for index in range(partitions):
        await takes_fences(first(engine, name, index))
    return log


async def takes_fences(log: PulsarLog) -> None:
    """Wait until Pulsar knows the partition's transactions. On a busy machine that takes longer than a fence waits: it
    would be sent again, and take another offset.
    """
    admin, name = log.context.admin, log.partition_name

    async def recovered() -> bool:
        try:
            await admin.internal_stats(name)  # which has the Pulsar broker load it
            return (await admin.transaction_buffer(name))["state"] in RECOVERED
        except PulsarError:
            return False

    await until(recovered)


class Writer:
    """A transactional producer, with all that handlers and the coordinator do for it, and its client's patience."""

    def __init__(self, engine: PulsarEngine, producer: int = 7, epoch: int = 0) -> None:
        self.engine = engine
        self.producer = producer
        self.epoch = epoch
        self.name = b""
        self.partitions: set[tuple[str, int]] = set()
        self.sequences: dict[tuple[str, int], int] = defaultdict(int)

    async def begin(self, *partitions: tuple[str, int]) -> None:
        self.name, self.partitions = await again(partial(self.engine.transactions.begin, MINUTE)), set()
        await again(partial(self.add, *partitions or [("t", 0)]))

    async def add(self, *partitions: tuple[str, int]) -> None:
        self.partitions |= set(partitions)
        await self.engine.transactions.add(self.name, partitions)

    def data(self, partition: tuple[str, int], values: tuple[str, ...], codec: int = 0) -> bytearray:
        sequence = self.sequences[partition]
        self.sequences[partition] += len(values)
        return batch(
            values, keys=values, producer=self.producer, epoch=self.epoch, sequence=sequence, transactional=True,
            codec=codec,
        )  # fmt: skip

    async def write(self, *values: str, to: tuple[str, int] = ("t", 0), codec: int = 0) -> int:
        """Returns the base offset."""
        data = self.data(to, values, codec)

        async def sent() -> AppendResult:
            return await resent(await attached(self.engine, *to), self, data)

        return (await again(sent)).base_offset

    async def end(self, *, commit: bool, engine: PulsarEngine | None = None) -> None:
        ended = EndedTransaction("txn-id", self.producer, self.epoch, frozenset(self.partitions), commit, 1, self.name)
        await again(partial((engine or self.engine).transactions.end, ended))


async def all_values(log: PartitionLog) -> list[str | None]:
    """What is readable now."""
    await log.refresh()
    return await read_values(log)


async def shows(log: PartitionLog, *values: str) -> None:
    async def come() -> bool:
        try:
            return await all_values(log) == list(values)
        except KopError as error:
            if error.code not in PASSES:
                raise
            return False

    await until(come, f"{values}")


def native_values(store: PulsarStore, engine: PulsarEngine, count: int) -> list[str]:
    """What a consumer of Pulsar's own client gets from the start on; `count` messages and no more."""
    client = pulsar.Client(store.urls[0], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(
            f"{engine.context.naming.full_name('t', False)}-partition-0",
            "native",
            initial_position=pulsar.InitialPosition.Earliest,
        )
        got = []
        for _ in range(count):
            message = consumer.receive(60_000)
            consumer.acknowledge(message)
            got.append(message.data().decode())
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)  # what must not come has no event
        consumer.unsubscribe()
        return got
    finally:
        client.close()


@pytest.mark.parametrize("codec", [0, 4])
async def test_a_commit_shows_all_at_once_and_an_abort_nothing(pulsar_store: PulsarStore, codec: int) -> None:
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        assert (await append(log, batch(["plain"]))).base_offset == 0
        writer = Writer(engine)
        await writer.begin()
        # The fence takes an offset, as a marker does in Kafka.
        assert await writer.write("a", "b", "c", codec=codec) == 2
        assert await writer.write("d", codec=codec) == 5
        assert (await append(log, batch(["behind"]))).base_offset == 6
        assert await all_values(log) == ["plain"], "nobody reads past an open transaction"
        assert log.high_watermark == 1
        await writer.end(commit=True)
        await shows(log, "plain", "a", "b", "c", "d", "behind")
        assert log.high_watermark == 7
        await writer.begin()
        assert await writer.write("x", "y", codec=codec) == 9, "7 is Pulsar's marker, 8 the fence"
        assert (await append(log, batch(["later"]))).base_offset == 11
        await writer.end(commit=False)
        await shows(log, "plain", "a", "b", "c", "d", "behind", "later")
        assert log.high_watermark == 12
        assert await asyncio.to_thread(native_values, pulsar_store, engine, 7) == [
            "plain", "a", "b", "c", "d", "behind", "later",
        ]  # fmt: skip
        await engine.admin.unload(f"{engine.context.naming.full_name('t', False)}-partition-0")
        assert (await append(log, batch(["last"]))).base_offset == 13
        await shows(log, "plain", "a", "b", "c", "d", "behind", "later", "last")
        assert (
            not {"offsets_told_wrong", "entries_unreadable/miscounted", "entries_unreadable/not_decoded"}
            & engine.counts.keys()
        )
    async with pulsar_store.opened() as other:
        assert await all_values(await attached(other)) == ["plain", "a", "b", "c", "d", "behind", "later", "last"]


async def test_a_transaction_over_several_partitions_and_topics(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine:
        await make(engine, "t", 3)
        await make(engine, "u")
        partitions = [("t", 0), ("t", 2), ("u", 0)]
        writer = Writer(engine)
        for round_, commit in enumerate([True, False, True]):
            await writer.begin(*partitions)
            await asyncio.gather(*(writer.write(f"{round_}", to=partition) for partition in partitions))
            await writer.end(commit=commit)
        for topic, partition in partitions:
            await shows(await attached(engine, topic, partition), "0", "2")
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await writer.begin(("t", 3))
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await writer.begin(("nowhere", 0))


async def test_entries_of_others_in_mid_transaction_keep_nobody_waiting(pulsar_store: PulsarStore) -> None:
    """The chain of entries is broken, the tail waits for the end: a wait for the tail would be one for ourselves."""
    async with opened(pulsar_store) as engine, pulsar_store.opened() as other:
        log, elsewhere = await make(engine), None
        writer = Writer(engine)
        name = f"{engine.context.naming.full_name('t', False)}-partition-0"
        await until(lambda: other.topics.get("t"))
        elsewhere = await attached(other)
        native = await engine.client.open_producer(name, name="native")
        await writer.begin()
        expected, offset = [], 1
        for number in range(5):
            data = batch([f"native {number}"])
            (entry,) = transcode.to_entries(
                data, read_header(data), producer_name="native", sequence_base=number, publish_time=1, max_size=1 << 20
            )
            await native.send(entry.metadata, entry.payload, sequence_id=number, num_messages=1)
            assert await writer.write(f"a {number}", f"b {number}") == offset + 1
            assert (await append(elsewhere, batch([f"other {number}"]))).base_offset == offset + 3
            assert await writer.write(f"c {number}") == offset + 4
            assert (await append(log, batch([f"plain {number}"]))).base_offset == offset + 5
            offset += 6
            expected += [f"{what} {number}" for what in ("native", "a", "b", "other", "c", "plain")]
        assert await all_values(log) == await all_values(elsewhere) == []
        await writer.end(commit=True)
        await shows(log, *expected)
        await shows(elsewhere, *expected)
        for each in (engine, other):
            assert "offsets_told_wrong" not in each.counts
            assert "offsets_unknown/not_found_in_time" not in each.counts


async def test_a_native_transaction_and_ours_interleave(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)
        name = f"{engine.context.naming.full_name('t', False)}-partition-0"
        async with NativeTransactions(pulsar_store.urls[0], name) as native:
            async with native.written(b"n1", b"n2", commit=False):
                await writer.begin()
                assert await writer.write("a", "b") == 3
                await writer.end(commit=True)
                await writer.begin()
                assert await writer.write("c") == 7, "5 is the marker of the commit, 6 the fence"
                assert await all_values(log) == []
            await writer.end(commit=True)
        await shows(log, "a", "b", "c")


async def test_a_broker_attaches_while_a_transaction_is_open_or_was_aborted(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine:
        await make(engine)
        writer = Writer(engine)
        await writer.begin()
        assert await writer.write("a", "b") == 1
        async with pulsar_store.opened() as other:
            log = await attached(other)
            assert (log.log_start_offset, log.high_watermark) == (0, 0)
            assert (await append(log, batch(["plain"]))).base_offset == 3
            assert await all_values(log) == []
            await writer.end(commit=False)
            await shows(log, "plain")
        await writer.begin()
        await writer.write("c")
        await writer.end(commit=False)
        async with pulsar_store.opened() as other:
            log = await attached(other)
            await shows(log, "plain")
            assert (await append(log, batch(["end"]))).base_offset == 8
            await shows(log, "plain", "end")


async def test_an_unload_in_mid_transaction(pulsar_store: PulsarStore) -> None:
    """What was under way is refused, its client sends it again, and no record is there twice."""
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)
        name = f"{engine.context.naming.full_name('t', False)}-partition-0"
        for commit in (True, False, True):
            await writer.begin()
            await writer.write("a")
            log.join_transaction(writer.producer, writer.epoch, writer.name)
            data = [writer.data(("t", 0), (f"{number}",)) for number in range(50)]
            sent = [append(log, bytearray(each)) for each in data]
            await engine.admin.unload(name)
            bases: dict[int, int] = {}
            for number, (each, future) in enumerate(zip(data, sent, strict=True)):
                while True:
                    try:
                        bases[number] = (await future).base_offset
                        break
                    except KopError as error:
                        if error.code not in PASSES:
                            raise
                        log.join_transaction(writer.producer, writer.epoch, writer.name)
                        future = append(log, bytearray(each))  # noqa: PLW2901
            assert sorted(bases.values()) == list(bases.values())
            assert len(set(bases.values())) == 50
            await writer.end(commit=commit)
        transaction = ["a", *(str(number) for number in range(50))]
        await shows(log, *transaction, *transaction)


async def test_a_batch_is_refused_until_its_producer_was_asked_for_its_transaction(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)
        await writer.begin()
        data = batch(["a"], producer=7, transactional=True)
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await append(log, bytearray(data))
        log.join_transaction(7, 1, writer.name)
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await append(log, bytearray(data))
        log.join_transaction(7, 0, writer.name)
        assert (await append(log, bytearray(data))).base_offset == 1
        # Its Pulsar producer may be idle by now, and closed: then it has to be asked for its transaction again.
        duplicate = await again(partial(resent, log, writer, data))
        assert duplicate.base_offset == 1, "a duplicate is answered as the original"
        await writer.end(commit=True)


async def test_a_duplicate_in_an_open_transaction_is_found_by_another_broker(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine, pulsar_store.opened() as other:
        await make(engine)
        writer = Writer(engine)
        await writer.begin()
        data = batch(["a", "b"], producer=7, transactional=True)
        log = first(engine)
        log.join_transaction(7, 0, writer.name)
        assert (await append(log, bytearray(data))).base_offset == 1
        await until(lambda: other.topics.get("t"))
        elsewhere = await attached(other)

        async def taken_over() -> int:
            elsewhere.join_transaction(7, 0, writer.name)
            try:
                return (await append(elsewhere, bytearray(data))).base_offset
            except KopError as error:
                if error.code not in PASSES:
                    raise
                return 0  # the first broker has the producer's name until it is idle

        assert await until(taken_over) == 1
        await writer.end(commit=True)
        await shows(elsewhere, "a", "b")


async def test_what_a_coordinator_left_half_done_is_repeated_from_its_record(pulsar_store: PulsarStore) -> None:
    """Another broker takes over after each step, and goes on with the name that the record has."""
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        await writer.begin()
        await successor.transactions.add(writer.name, [("t", 0)])
        assert await writer.write("a") == 2, "each fence takes an offset"
        await writer.end(commit=True)
        await writer.end(commit=True, engine=successor)
        assert successor.counts["transaction_ends/ended_before"] == 1
        await shows(log, "a")
        await writer.begin()
        await writer.write("b")
        await writer.end(commit=False, engine=successor)
        await writer.end(commit=False)
        assert (await append(log, batch(["c"]))).base_offset == 7
        await shows(log, "a", "c")
        with refused(ErrorCode.TRANSACTION_ABORTABLE):
            await writer.add(("t", 0))


async def test_a_late_write_of_an_aborted_transaction_stays_hidden(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)
        await writer.begin()
        await writer.write("a")
        await writer.end(commit=False)
        assert await writer.write("late") == 3
        assert (await append(log, batch(["plain"]))).base_offset == 4
        await shows(log, "plain")
        assert await writer.write("later") == 5
        await shows(log, "plain")


@pytest.mark.parametrize("new_ledger", [False, True])
async def test_a_log_ends_behind_its_last_record_though_an_aborted_transaction_was_written_to_late(
    pulsar_store: PulsarStore, new_ledger: bool
) -> None:
    """Pulsar names the late entry as the last one. Before it lie markers and fences, which no reader gets, either."""
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        await writer.begin()
        assert await writer.write("a", "b") == 1
        await writer.end(commit=True)
        await shows(log, "a", "b")
        if new_ledger:
            await engine.admin.unload(log.partition_name)
            await takes_fences(log)
        await writer.begin()
        await again(partial(successor.transactions.add, writer.name, [("t", 0)]))
        await writer.end(commit=False, engine=successor)
        assert await writer.write("late") >= 7, "a marker, two fences and a marker lie between"
        async with pulsar_store.opened() as other:
            elsewhere = await attached(other)
            for each in (log, elsewhere):
                await shows(each, "a", "b")
                assert (each.log_start_offset, each.high_watermark) == (0, 3)
            await append(log, batch(["plain"]))
            await shows(elsewhere, "a", "b", "plain")


@pytest.mark.parametrize("commit", [False, True])
async def test_a_gateway_that_was_paused_before_its_fence_holds_nobody_back(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """Another gateway ends the transaction after Pulsar has said that it is open, and before the fence is sent."""
    monkeypatch.setattr("kop.storage.pulsar.transactions.storage.LATE_SECONDS", -1.0)  # each fence counts as late
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        add, put = Transactions.add, Fences.put
        pauses: list[bool] = []
        stored: list[str] = []
        expected: list[str] = []

        async def paused(self: Transactions, txn: TxnId, partitions: Sequence[str]) -> None:
            await add(self, txn, partitions)
            if pauses.pop() if pauses else False:
                await writer.end(commit=commit, engine=successor)

        async def noted(self: Fences, partition: Any, *rest: Any) -> None:
            await put(self, partition, *rest)
            stored.append(partition.title)

        async def is_stored_late() -> bool:
            """False where none is sent: the producer of fences was idle and is closed, or the end took long. Then it is
            asked once more before it is sent, and Pulsar says that the transaction has ended.
            """
            await writer.begin()
            await writer.write("a")
            expected.extend(["a"] if commit else [])
            pauses.append(True)
            with monkeypatch.context() as patched:
                patched.setattr(Transactions, "add", paused)
                patched.setattr(Fences, "put", noted)
                with refused(ErrorCode.TRANSACTION_ABORTABLE):
                    await writer.add(("t", 0))
            assert not pauses
            return bool(stored)

        await until(is_stored_late)
        assert (await append(log, batch(["plain"]))).base_offset >= 4
        expected.append("plain")
        await shows(log, *expected)
        if commit:
            await until(lambda: successor.counts.get("transaction_ends/fence_too_late") == 1)
        await engine.admin.unload(log.partition_name)
    async with pulsar_store.opened() as other:
        await shows(await attached(other), *expected)


class FencedByAnother:
    """A partition, for a fence that nobody follows up."""

    def __init__(self, log: PulsarLog) -> None:
        self.partition_name, self.title = log.partition_name, log.title
        self.check_exists, self.confirm = log.check_exists, log.confirm

    def fenced(self, position: Position) -> None:
        pass


@pytest.mark.parametrize("commit", [False, True])
async def test_a_fence_of_a_gateway_that_died_holds_nobody_back(pulsar_store: PulsarStore, commit: bool) -> None:
    """Its last fence is stored after its successor has ended the transaction, and it tells nobody any more."""
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        await writer.begin()
        await writer.write("a")
        await writer.end(commit=commit, engine=successor)
        fences = Fences(engine.context, lambda: "fences of one that died")
        named = transaction_of(writer.name)
        assert named is not None

        async def open_as_far_as_it_knew() -> None:
            pass

        partition: Any = FencedByAnother(log)
        await fences.put(partition, TxnId(named.most, named.least), open_as_far_as_it_knew)
        assert (await append(log, batch(["plain"]))).base_offset >= 4
        expected = ["a", "plain"] if commit else ["plain"]
        await shows(log, *expected)
        await until(
            lambda: successor.counts.get("transaction_ends/fence_too_late", 0) == commit
        )  # it is counted a moment later
        assert "transaction_ends/fence_too_late" not in engine.counts
        await fences.close()
        await engine.admin.unload(log.partition_name)
    async with pulsar_store.opened() as other:
        await shows(await attached(other), *expected)


@pytest.mark.parametrize("commit", [False, True])
async def test_an_end_that_pulsar_carries_out_late_is_carried_out_as_it_was_decided(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """It answers that a transaction has ended before it has ended on a partition that is being unloaded."""
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        await writer.begin()
        await writer.write("a")

        async def answered_only(*_: object, **how: object) -> None:
            pass

        with monkeypatch.context() as patched:
            patched.setattr(Transactions, "end", answered_only)
            await writer.end(commit=commit, engine=successor)
        assert (await append(log, batch(["plain"]))).base_offset >= 2, "the successor may have ended it by then"
        await shows(log, *(["a", "plain"] if commit else ["plain"]))


@pytest.mark.parametrize("commit", [False, True])
async def test_an_end_that_pulsar_loses_at_an_unload_is_carried_out(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """It answers that a transaction has ended, and no partition of the bundle that is being unloaded hears of it."""
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)
        await writer.begin()
        await writer.write("a")
        await writer.end(commit=True)
        await writer.begin()
        await writer.write("b")

        async def answered_only(*_: object, **how: object) -> None:
            pass

        with monkeypatch.context() as patched:
            patched.setattr(Transactions, "end", answered_only)
            await writer.end(commit=commit)
        await engine.admin.unload(log.partition_name)
        await append(log, batch(["plain"]))
        await shows(log, *(["a", "b", "plain"] if commit else ["a", "plain"]))
        await until(lambda: engine.counts.get("transaction_ends/lost_by_pulsar") == 1)  # counted a moment later


async def lost_on_its_partition(engine: PulsarEngine, patch: pytest.MonkeyPatch) -> tuple[PulsarLog, Writer]:
    """A partition that hears nothing of the commit of a transaction, and its producer."""
    log, writer = await make(engine), Writer(engine)
    await writer.begin()  # the first one waits until the gateway has found out if there are transactions
    await writer.end(commit=True)

    async def not_told(*_: object) -> None:
        pass

    with patch.context() as patched:
        patched.setattr(Transactions, "add", not_told)  # as if the lookup of the partition had failed at the end
        await writer.begin()
        await writer.write("a")
        await writer.end(commit=True)
    return log, writer


async def test_a_commit_that_pulsar_lost_is_not_aborted_by_the_end_of_another(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(pulsar_store) as engine:
        log, _ = await lost_on_its_partition(engine, monkeypatch)
        other = Writer(engine, producer=8)
        await other.begin()
        await other.write("b")
        await other.end(commit=True)
        await engine.admin.unload(log.partition_name)  # else nothing is in doubt
        await append(log, batch(["plain"]))
        await shows(log, "a", "b", "plain")
        await until(lambda: engine.counts.get("transaction_ends/lost_by_pulsar") == 1)  # counted a moment later
        assert "transaction_ends/aborted_by_pulsar" not in engine.counts


async def test_a_commit_that_pulsar_aborted_is_told(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(pulsar_store) as engine:
        log, writer = await lost_on_its_partition(engine, monkeypatch)
        named = transaction_of(writer.name)
        assert named is not None
        txn = TxnId(named.most, named.least)
        await engine.client.transactions().end_on_partition(txn, log.partition_name, commit=False)
        await engine.admin.unload(log.partition_name)
        await append(log, batch(["plain"]))
        await shows(log, "plain")
        await until(lambda: engine.counts.get("transaction_ends/aborted_by_pulsar") == 1)
    assert "was committed: the records of a Kafka transaction are lost there" in caplog.text


async def test_a_fence_that_is_late_by_little_holds_nobody_back(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored within the time that Pulsar's answer is taken for fresh, and behind the end all the same."""
    monkeypatch.setattr("kop.storage.pulsar.transactions.late_fences.UNKNOWN_SECONDS", 0.1)
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        put = Fences.put
        late: list[str] = []
        shown: list[str] = []

        async def ended_before(self: Fences, partition: Any, *rest: Any) -> None:
            ended = EndedTransaction("x", 7, 0, frozenset(), True, 1, writer.name)  # nobody looks for late fences
            await again(partial(successor.transactions.end, ended))
            await put(self, partition, *rest)
            late.append(partition.title)

        async def is_written_late() -> bool:
            """False where the producer of fences was closed meanwhile: before the next one writes, the transaction's
            coordinator is asked, and says that it has ended. So it does where the fence took long.
            """
            await writer.begin()
            await writer.write("a")
            shown.append("a")
            with monkeypatch.context() as patched:
                patched.setattr(Fences, "put", ended_before)
                try:
                    await writer.add(("t", 0))
                except PeerError as error:
                    if error.code is not ErrorCode.TRANSACTION_ABORTABLE:
                        raise
                    return False
            return True

        await until(is_written_late)
        assert (await append(log, batch(["plain"]))).base_offset >= 4
        await shows(log, *shown, "plain")
        await until(
            lambda: engine.counts.get("transaction_ends/fence_too_late") == len(late)
        )  # they are counted a moment later


async def test_a_fence_that_is_late_beside_one_that_cannot_be_written_holds_nobody_back(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.storage.pulsar.transactions.late_fences.UNKNOWN_SECONDS", 0.1)
    async with opened(pulsar_store) as engine, opened(pulsar_store) as successor:
        log = await make(engine, partitions=3)
        await until(lambda: successor.topics.get("t"))
        writer = Writer(engine)
        await writer.begin()  # which opens the producer of the fences
        await writer.end(commit=True)
        await writer.begin(("t", 2))
        put = Fences.put

        async def ended_before(self: Fences, partition: Any, *rest: Any) -> None:
            if partition is not log:
                raise PeerError("so says the test", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            ended = EndedTransaction("x", 7, 0, frozenset(), True, 1, writer.name)  # nobody looks for late fences
            await successor.transactions.end(ended)
            await put(self, partition, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(Fences, "put", ended_before)
            with pytest.raises(PeerError) as refusal:
                await writer.add(("t", 0), ("t", 1))
        # TRANSACTION_ABORTABLE where Pulsar closed the producer of fences meanwhile: then no late fence is written.
        assert refusal.value.code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TRANSACTION_ABORTABLE}
        await append(log, batch(["plain"]))
        await shows(log, "plain")


async def test_a_fence_whose_answer_was_lost_is_no_late_one_while_its_transaction_is_open(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)
        await writer.begin()

        async def lost(self: Fences, *_: object) -> None:
            raise PulsarError("Timeout", "so says the test")

        with monkeypatch.context() as patched:
            patched.setattr(Fences, "put", lost)
            with refused(ErrorCode.REQUEST_TIMED_OUT):
                await writer.add(("t", 0))
        await writer.add(("t", 0))
        await writer.write("a")
        assert await all_values(log) == []
        await writer.end(commit=True)
        await shows(log, "a")
        assert "transaction_ends/fence_too_late" not in engine.counts


@pytest.mark.parametrize("partitions", [set(), {("t", 0)}])
async def test_what_a_tool_of_pulsar_has_ended_is_not_confirmed(
    pulsar_store: PulsarStore, partitions: set[tuple[str, int]]
) -> None:
    async with opened(pulsar_store) as engine:
        await make(engine)
        writer = Writer(engine)
        await writer.begin()
        await writer.write("a")
        await engine.transactions.confirm(writer.name, partitions)
        named = transaction_of(writer.name)
        assert named is not None
        await engine.client.transactions().end(TxnId(named.most, named.least), commit=False)
        with refused(ErrorCode.TRANSACTION_ABORTABLE):
            await engine.transactions.confirm(writer.name, partitions)
        await writer.end(commit=False)


async def test_a_transaction_is_kept_ready(pulsar_store: PulsarStore) -> None:
    async with opened(pulsar_store) as engine:
        names = [await again(partial(engine.transactions.begin, MINUTE)) for _ in range(5)]
        names += [await again(partial(engine.transactions.begin, 48 * 60 * MINUTE))]
        assert len(set(names)) == 6
        assert all(transaction_of(name) is not None for name in names)
        for name in names:
            await engine.transactions.end(EndedTransaction("x", 1, 0, frozenset(), False, 2, name))


@pytest.mark.parametrize("cleanup", ["compact", "delete"])
async def test_topics_of_other_policies(pulsar_store: PulsarStore, cleanup: str) -> None:
    async with opened(pulsar_store) as engine:
        configs = {"kop_entry_format": "kafka"} if cleanup == "delete" else {}
        log = await make(engine, "t", 1, cleanup_policy=cleanup, message_timestamp_type="LogAppendTime", **configs)
        writer = Writer(engine)
        for commit in (True, False, True):
            await writer.begin()
            await writer.write("a", "b")
            await writer.end(commit=commit)
        await append(log, batch(["end"], keys=["end"]))
        await shows(log, "a", "b", "a", "b", "end")


# --- where a log begins that no reader is given the first entries of


@pytest.mark.parametrize("offsets", ["index", "packed"])
async def test_the_log_starts_at_the_first_entry_though_its_transaction_was_aborted(
    pulsar_store: PulsarStore, offsets: str
) -> None:
    store = PulsarStore(*pulsar_store.urls, pulsar_store.settings.kop_pulsar_namespace, offsets)
    async with opened(store) as engine:
        log = await make(engine)
        await log.attach()
        start = log.log_start_offset
        writer = Writer(engine)
        await writer.begin()
        await writer.write("a", "b")
        await writer.end(commit=False)
        plain = (await append(log, batch(["plain"]))).base_offset
        if offsets == "index":
            assert (start, plain) == (0, 4)
        await shows(log, "plain")
        bounds = log.log_start_offset, log.high_watermark
        assert bounds == (start, plain + 1)
        for _ in range(3):  # a reader's first entry and the answer of REST race each other
            async with store.opened() as other:
                elsewhere = await attached(other)
                assert (elsewhere.log_start_offset, elsewhere.high_watermark) == bounds
                for offset in {start, start + 1, plain - 1, plain}:
                    (record,) = records((await elsewhere.read(offset, 1 << 20, min_one=True)).buffers)
                    assert (record.offset, record.value) == (plain, b"plain")
                await elsewhere.ask_start()
                assert elsewhere.log_start_offset == start


async def test_all_gateways_tell_the_same_bounds_of_a_log_whose_entries_are_all_aborted(
    pulsar_store: PulsarStore,
) -> None:
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        writer = Writer(engine)

        async def bounds_are_the_same() -> None:
            await log.refresh()
            async with pulsar_store.opened() as other:
                elsewhere = await attached(other)
                assert await all_values(elsewhere) == []
                for each in (log, elsewhere):
                    assert (each.log_start_offset, each.high_watermark) == (0, 0)

        await writer.begin()
        assert await writer.write("a", "b") == 1
        await bounds_are_the_same()
        await writer.end(commit=False)
        await bounds_are_the_same()
        await writer.write("late")
        await bounds_are_the_same()
        await writer.begin()
        await writer.write("c")
        await engine.admin.unload(log.partition_name)
        await again(partial(resent, log, writer, writer.data(("t", 0), ("d",))))
        await bounds_are_the_same()
        await writer.end(commit=False)
        await bounds_are_the_same()
        assert (await append(log, batch(["plain"]))).base_offset == 9, "a fence, a, b, a marker, late, and so on"
        async with pulsar_store.opened() as other:
            elsewhere = await attached(other)
            for each in (log, elsewhere):
                await shows(each, "plain")
                assert (each.log_start_offset, each.high_watermark) == (0, 10)


async def never(_: Stream, *, within: float | None = None) -> Position:
    await asyncio.Event().wait()
    raise AssertionError


async def given_up(_: Stream, *, within: float | None = None) -> Position:
    raise PulsarError("UnknownError", "the last position: Failed to recover Transaction Buffer.")


@pytest.mark.parametrize("answer", [never, given_up])
@pytest.mark.parametrize("open_behind", [False, True])
async def test_an_end_of_aborted_entries_is_told_though_pulsar_is_slow_to_name_the_last_entry(
    pulsar_store: PulsarStore,
    monkeypatch: pytest.MonkeyPatch,
    open_behind: bool,
    answer: Callable[..., Awaitable[Position]],
) -> None:
    """Pulsar goes back over thousands of them one by one, for seconds. The tail has read to the end before."""
    async with opened(pulsar_store) as engine, opened(pulsar_store) as other:
        log = await make(engine)
        await until(lambda: other.topics.get("t"))
        there = await attached(other)
        assert (await append(log, batch(["before"]))).base_offset == 0
        for commit in (True, False):
            writer = Writer(engine, producer=7 + commit)
            await writer.begin()
            for number in range(20):
                await writer.write(f"{commit} {number}")
            await writer.end(commit=commit)
        if open_behind:
            writer = Writer(engine, producer=9)
            await writer.begin()
            await writer.write("open")
        expected = ["before", *(f"True {number}" for number in range(20))]
        await shows(there, *expected)
        await shows(log, *expected)
        monkeypatch.setattr("kop.storage.pulsar.reading.last_entry.LAST_SECONDS", 0.01)
        for each in (log, there):
            with monkeypatch.context() as patched:
                patched.setattr(Stream, "last_position", answer)
                for _ in range(2):
                    await each.refresh()
                assert await read_values(each) == expected
            end = each.high_watermark
            await each.refresh()
            assert each.high_watermark == end == 22
        if open_behind:
            await writer.end(commit=True)
            expected += ["open"]
        base = (await append(there, batch(["behind"]))).base_offset
        await shows(log, *expected, "behind")
        assert log.high_watermark == base + 1


@pytest.mark.parametrize("answer", [never, given_up])
@pytest.mark.parametrize(
    "ended",
    ["c" + 40 * "a", 20 * "ca" + 3 * "a", 3 * "a", "caao", "pcaap", "o"],
    ids=["long abort", "in turns", "aborted alone", "an open one behind", "a plain record behind", "an open one alone"],
)
async def test_attaching_finds_the_end_though_pulsar_does_not_name_the_last_entry(
    pulsar_store: PulsarStore,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[..., Awaitable[Position]],
    ended: str,
) -> None:
    """Of ten thousands of aborted entries it gives that up, and a broker could not open the log.

    `ended`: transactions that commit, abort or stay open, and plain records.
    """
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        expected = []
        for number, how in enumerate(ended):
            if number and number == len(ended) // 2:
                await engine.admin.unload(log.partition_name)  # the entries are in two ledgers
                await takes_fences(log)
            value = f"{how} {number}"
            if how == "p":
                await append(log, batch([value]))
            else:
                writer = Writer(engine, producer=number)
                await writer.begin()
                await writer.write(value)
                if how != "o":
                    await writer.end(commit=how == "c")
            if how in "cp":
                expected.append(value)
        await shows(log, *expected)
        monkeypatch.setattr("kop.storage.pulsar.reading.last_entry.LAST_SECONDS", 0.01)
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "last_position", answer)
            async with pulsar_store.opened() as other:
                elsewhere = await attached(other)
                assert (elsewhere.log_start_offset, elsewhere.high_watermark) == (0, log.high_watermark)
                assert await read_values(elsewhere) == expected
        async with pulsar_store.opened() as other:
            assert (await attached(other)).high_watermark == log.high_watermark
            if ended[-1] == "o":
                await writer.end(commit=True)
                expected.append(value)
            await shows(await attached(other), *expected)


async def test_all_gateways_tell_the_same_start_behind_ledgers_that_retention_took(pulsar_store: PulsarStore) -> None:
    """What is left begins with an aborted transaction, first of all with nothing else behind it."""
    async with opened(pulsar_store) as engine:
        log = await make(engine)
        assert (await append(log, batch(["gone"] * 3))).base_offset == 0
        writer = Writer(engine)
        await writer.begin()
        assert await writer.write("a") == 4
        await writer.end(commit=False)
        assert log.high_watermark == 3
        await engine.admin.unload(log.partition_name)
        await takes_fences(log)
        await again(writer.begin)
        await again(partial(resent, log, writer, writer.data(("t", 0), ("b", "c"))))
        await writer.end(commit=False)
        await engine.admin.truncate(log.partition_name)

        async def taken() -> bool:  # the broker deletes ledgers a moment later
            return len((await engine.admin.internal_stats(log.partition_name))["ledgers"]) == 1

        await until(taken)
        start = 6
        await log.ask_start()
        async with pulsar_store.opened() as other:
            elsewhere = await attached(other)
            for each in (log, elsewhere):
                assert (each.log_start_offset, each.high_watermark) == (start, start)
                with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
                    await each.read(3, 1 << 20, min_one=True)
                assert not (await each.read(start, 1 << 20, min_one=True)).size
        assert (await append(log, batch(["plain"]))).base_offset == 10
        await shows(log, "plain")
        async with pulsar_store.opened() as other:
            elsewhere = await attached(other)
            await shows(elsewhere, "plain")
            for each in (log, elsewhere):
                assert (each.log_start_offset, each.high_watermark) == (start, 11)
                (record,) = records((await each.read(start, 1 << 20, min_one=True)).buffers)
                assert record.offset == 10
        assert "offsets_told_wrong" not in engine.counts


# --- what a cluster can do


async def test_the_probe_finds_whole_batches_fit_and_leaves_nothing(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        await make(engine)
        await Writer(engine).begin()
        assert engine.transactions.whole_batches
        assert engine.transactions.refusal is None
        assert not [topic.name for topic in engine.topics.all() if "probe" in topic.name]

        async def gone() -> bool:
            names = await engine.admin.list_partitioned(engine.context.naming.metadata_namespace)
            return not [name for name in names if PROBE_TOPIC in name]

        await until(gone)


async def test_a_version_of_pulsar_is_tried_once(pulsar_store: PulsarStore) -> None:
    """A start waits for no new topic, which a busy Pulsar broker takes seconds to make."""
    tried: list[str | None] = []

    async def seen(*_: object) -> str | None:
        tried.append("unfit" if len(tried) < 2 else None)
        return tried[-1]

    with mock.patch("kop.storage.pulsar.engine.whole_batches_unfit", seen):
        for fits in (False, True, True):
            async with pulsar_store.opened() as engine:
                await engine.transactions.begin(1000)
                assert engine.transactions.whole_batches is fits
        assert tried == ["unfit", "unfit", None], "what is fit is remembered, and nothing else"
        async with pulsar_store.opened() as engine:
            with mock.patch.object(engine.admin, "version", mock.AsyncMock(return_value="another")):
                await engine.transactions.begin(1000)
        assert len(tried) == 4


async def test_where_whole_batches_do_not_fit_each_record_is_an_entry(
    pulsar_store: PulsarStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def unfit(*_: object) -> str:
        return "so says the test"

    with mock.patch("kop.storage.pulsar.engine.whole_batches_unfit", unfit):
        async with pulsar_store.opened() as engine:
            log = await make(engine)
            writer = Writer(engine)
            await writer.begin()
            assert "one record in an entry, which is slow, since so says the test" in caplog.text
            assert await writer.write("a", "b", "c") == 0, "no fence is needed"
            assert await writer.write("d", codec=4) == 3
            assert (await append(log, batch(["plain"]))).base_offset == 4
            assert await all_values(log) == []
            await writer.end(commit=True)
            await shows(log, "a", "b", "c", "d", "plain")
            await writer.begin()
            assert await writer.write("x", "y") == 6
            assert (await append(log, batch(["end"]))).base_offset == 8
            await writer.end(commit=False)
            await shows(log, "a", "b", "c", "d", "plain", "end")


async def test_whole_batches_do_not_fit_where_two_probes_say_so(pulsar_store: PulsarStore) -> None:
    answers = ["so says the test", None]

    async def unfit(*_: object) -> str | None:
        return answers.pop(0)

    with mock.patch("kop.storage.pulsar.engine.whole_batches_unfit", unfit):
        async with pulsar_store.opened() as engine:
            await make(engine)
            await Writer(engine).begin()
            assert engine.transactions.whole_batches
            assert answers == []


async def test_packed_offsets_know_transactions_of_whole_batches_only(pulsar_store: PulsarStore) -> None:
    async def unfit(*_: object) -> str:
        return "so says the test"

    store = PulsarStore(*pulsar_store.urls, pulsar_store.settings.kop_pulsar_namespace, "packed")
    async with store.opened() as engine:
        log = await make(engine)
        writer = Writer(engine)
        for commit in (True, False, True):
            await writer.begin()
            await writer.write("a", "b")
            await append(log, batch(["plain"]))
            await writer.end(commit=commit)
        await shows(log, "a", "b", "plain", "plain", "a", "b", "plain")
    another_version = mock.patch("kop.pulsar_client.admin.Admin.version", mock.AsyncMock(return_value="another"))
    with another_version, mock.patch("kop.storage.pulsar.engine.whole_batches_unfit", unfit):
        async with store.opened() as engine:
            with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
                await engine.transactions.begin(MINUTE)
            assert "kop.pulsar.offsets=index" in (engine.transactions.refusal or "")


@pytest.mark.timeout(600)
async def test_a_cluster_without_transactions_refuses_them_and_does_all_else(pulsar_urls: Urls, tmp_path: Path) -> None:
    own_broker = OwnBroker(tmp_path / "without", settings="transactionCoordinatorEnabled=false\n")
    urls = await asyncio.to_thread(own_broker.start)
    try:
        store = PulsarStore(*urls, "public/default")
        async with store.opened() as engine:
            assert "transactionCoordinatorEnabled=true" in (engine.transactions.refusal or "")
            with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
                await engine.transactions.begin(MINUTE)
            log = await make_topic(engine)
            assert (await append(log, batch(["plain"], producer=3))).base_offset == 0
            await shows(log, "plain")
    finally:
        await asyncio.to_thread(own_broker.kill)


@pytest.mark.slow  # a broker is started three times
@pytest.mark.timeout(900)
async def test_a_pulsar_broker_that_is_killed_in_mid_transaction_and_at_its_end(
    pulsar_urls: Urls, tmp_path: Path
) -> None:
    """Nothing is lost or there twice: what was not answered is sent again, an end is asked for until it is answered."""
    own_broker = OwnBroker(tmp_path / "killed")
    urls = await asyncio.to_thread(own_broker.start)
    try:
        async with PulsarStore(*urls, "public/default").opened() as engine:
            log = await make(engine)
            writer = Writer(engine)
            await again(writer.begin)
            await again(partial(resent, log, writer, writer.data(("t", 0), ("a",))))
            sent = asyncio.create_task(again(partial(resent, log, writer, writer.data(("t", 0), ("b", "c")))))
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
            assert (await sent).base_offset >= 2
            ending = asyncio.create_task(again(partial(writer.end, commit=True)))
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
            await ending
            await again(partial(plain, log, "plain"))
            expected = ["a", "b", "c", "plain"]
            await again(partial(shows, log, *expected))
            assert "offsets_told_wrong" not in engine.counts
        async with PulsarStore(*urls, "public/default").opened() as other:
            assert await all_values(await attached(other)) == expected
    finally:
        await asyncio.to_thread(own_broker.kill)


async def again(work: Callable[[], Awaitable[T]]) -> T:
    """Do it until Pulsar answers, as clients and the coordinator do."""
    while True:
        try:
            return await work()
        except KopError as error:
            if error.code not in PASSES:
                raise
        await asyncio.sleep(0.1)  # between two questions to a broker that is not there


async def resent(log: PartitionLog, writer: Writer, data: bytearray) -> AppendResult:
    log.join_transaction(writer.producer, writer.epoch, writer.name)
    return await append(log, bytearray(data))


async def plain(log: PartitionLog, value: str) -> AppendResult:
    return await append(log, batch([value]))
