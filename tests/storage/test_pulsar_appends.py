"""Appends over a real Pulsar that holds readers back, has a copy already, or takes no more than a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
from storage.batches import append, attached, batch, first, make, read_all, read_values, refused
from storage.engines import PulsarStore
from support.native_transactions import NativeTransactions
from support.pulsar import Urls, fresh_namespace
from support.pulsar_admin import PulsarAdmin
from support.waiting import until

from kop.errors import ErrorCode, KopError
from kop.pulsar_client import Client, Producer, PulsarError
from kop.pulsar_client.types import Receipt
from kop.records import transcode
from kop.records.batch import read_header
from kop.records.transcode import EntryTransaction
from kop.storage.base import EndedTransaction, PartitionLog
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.layout import transaction_name
from kop.storage.pulsar.partition import entry_sizes, tail_demand
from kop.storage.pulsar.partition.log import PulsarLog

ASKED = "offsets_asked_of_pulsar"


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


class NativeWriter:
    """A producer of Pulsar's on a partition, one message an entry."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sequence = 0

    async def write(self, value: str = "native") -> None:
        data = batch([value])
        (entry,) = transcode.to_entries(
            data,
            read_header(data),
            producer_name=self._producer.name,
            sequence_base=self._sequence,
            publish_time=int(time.time() * 1000),
            max_size=1 << 20,
        )
        sent = self._producer.send(entry.metadata, entry.payload, sequence_id=self._sequence)
        self._sequence += 1
        await sent


@asynccontextmanager
async def native_writer(engine: PulsarEngine, topic: str = "t") -> AsyncIterator[NativeWriter]:
    client: Client = engine.client
    producer = await client.open_producer(
        f"{engine.context.naming.full_name(topic, False)}-partition-0", name="a-native-writer"
    )
    try:
        yield NativeWriter(producer)
    finally:
        await producer.close()


async def append_values(log: PartitionLog, *values: str, producer: int = -1, sequence: int = 0) -> int:
    """Returns the base offset."""
    return (await append(log, batch(values, producer=producer, sequence=sequence))).base_offset


async def stored_of(store: PulsarStore) -> list[str | None]:
    """What another gateway reads."""
    async with store.opened() as other:
        log = await attached(other)
        await log.refresh()
        return await read_values(log)


@pytest.mark.parametrize("producer", [3, -1])
async def test_a_dispatch_rate_keeps_no_producer_waiting(
    pulsar_store: PulsarStore, producer: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers get one message in twenty seconds, and each append has a native one before it."""
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        name = engine.context.naming.full_name("t", False)
        rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 20}
        await engine.admin.set_policy(name, "dispatchRate", rate)
        await until(lambda: has(engine, name, "dispatchRate", rate))
        told: dict[int, str] = {}
        slowest = 0.0
        async with native_writer(engine) as native:
            for number in range(20):
                await native.write()
                began = time.monotonic()
                base = await append_values(log, f"{number}a", f"{number}b", producer=producer, sequence=2 * number)
                slowest = max(slowest, time.monotonic() - began)
                told |= {base: f"{number}a", base + 1: f"{number}b"}
        assert engine.counts[ASKED] > 0
        await until(lambda: engine.counts.get("tail_held_by_dispatch_rate"))
        assert any("set-dispatch-rate" in record.getMessage() for record in caplog.records)
        assert slowest < 60, "the rate would let the tail bring the last one after 1,200 s"
        async with PulsarAdmin(pulsar_store.urls[1]) as admin:
            await admin.remove_policy(name, "dispatchRate")
        await until(lambda: has(engine, name, "dispatchRate", None))
        await until(lambda: log.high_watermark == 60)
        values = await read_values(log)
        assert len(values) == 60
        assert {offset: values[offset] for offset in told} == told
        assert "offsets_told_wrong" not in engine.counts
    assert await stored_of(pulsar_store) == values


async def test_a_dispatch_rate_keeps_no_log_from_attaching_and_no_end_from_being_found(
    pulsar_store: PulsarStore,
) -> None:
    """The tail of the first gateway is behind, and is kept; the second one attaches while the rate is used up."""
    async with pulsar_store.opened() as engine, pulsar_store.opened() as other:
        log = await make(engine)
        name = engine.context.naming.full_name("t", False)
        await append_values(log, "first")
        rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 20}
        await engine.admin.set_policy(name, "dispatchRate", rate)
        await until(lambda: has(engine, name, "dispatchRate", rate))
        async with native_writer(engine) as native:
            for _ in range(30):
                await native.write()
        began = time.monotonic()
        await log.refresh()
        assert log.high_watermark == 31
        assert time.monotonic() - began < 60, "the rate lets the tail come to the end after 600 s"
        assert engine.counts["ends_asked_of_pulsar"] == 1
        assert "tails_lost" not in engine.counts
        await until(lambda: other.topics.get("t") is not None)
        there = first(other)
        began = time.monotonic()
        assert await append_values(there, "there") == 31
        assert (there.log_start_offset, there.high_watermark) == (0, 32)
        assert time.monotonic() - began < 60
        assert await append_values(log, "here") == 32
        await log.refresh()
        assert log.high_watermark == 33
        async with PulsarAdmin(pulsar_store.urls[1]) as admin:
            await admin.remove_policy(name, "dispatchRate")
        await until(lambda: has(engine, name, "dispatchRate", None))
        values = await read_values(log)
        assert values == ["first", *["native"] * 30, "there", "here"]
        assert "tails_lost" not in engine.counts
        assert "offsets_told_wrong" not in engine.counts


async def test_a_dispatch_rate_keeps_no_retry_from_its_offset(pulsar_store: PulsarStore) -> None:
    """It lets some entries come, so that a reader never stands still."""
    async with pulsar_store.opened() as engine:
        here = await make(engine)
        assert await append_values(here, "a", "x", producer=5) == 0
        async with native_writer(engine) as native:
            for _ in range(100):
                await native.write()
        name = engine.context.naming.full_name("t", False)
        rate = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
        await engine.admin.set_policy(name, "dispatchRate", rate)
        await until(lambda: has(engine, name, "dispatchRate", rate))
    async with pulsar_store.opened() as other:
        assert await append_values(await attached(other), "a", "x", producer=5) == 0
        assert other.counts["duplicates_found"] == 1


async def test_a_publish_rate_keeps_producers_of_other_topics_waiting_for_a_few_seconds_only(
    pulsar_store: PulsarStore,
) -> None:
    """Pulsar stops reading the connection. The topic with the rate gets another one, and loses nothing by that."""
    async with pulsar_store.opened() as engine:
        limited, free = await make(engine, "limited"), await make(engine, "free")
        await append_values(limited, "first")
        await append_values(free, "first")
        name = engine.context.naming.full_name("limited", False)
        rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
        await engine.admin.set_policy(name, "publishRate", rate)
        await until(lambda: has(engine, name, "publishRate", rate))
        told: dict[int, str] = {}
        ended = asyncio.Event()

        async def press(producer: int, number: int) -> None:
            sequence = 0
            while not ended.is_set():
                values = [f"{number} {sequence + place}" for place in range(10)]
                base = await append_values(limited, *values, producer=producer, sequence=sequence)
                told.update(enumerate(values, base))
                sequence += len(values)

        async def quick() -> bool:
            began = time.monotonic()
            for _ in range(20):
                await append_values(free, "v")
            return time.monotonic() - began < 20

        pressing = [asyncio.ensure_future(press(*each)) for each in ((-1, 0), (-1, 1), (-1, 2), (3, 3))]
        await until(lambda: engine.counts.get("batches_throttled_by_publish_rate"))
        await until(quick)  # 40 batches of others a second behind each of its own would take 100 s and more
        assert all([await quick() for _ in range(3)])
        ended.set()
        await asyncio.gather(*pressing)
        await limited.refresh()
        values = await read_values(limited)
        assert dict(enumerate(values[1:], 1)) == told
        assert "offsets_told_wrong" not in engine.counts


@pytest.mark.parametrize("producer", [3, -1])
@pytest.mark.parametrize("commit", [True, False])
async def test_an_open_transaction_keeps_no_producer_waiting(
    pulsar_store: PulsarStore, commit: bool, producer: int
) -> None:
    """Readers get nothing from its first entry on; who appends is told offsets, and they are right when it ends."""
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        assert await append_values(log, "a", producer=producer) == 0
        partition = f"{engine.context.naming.full_name('t', False)}-partition-0"
        async with NativeTransactions(pulsar_store.urls[0], partition) as native:
            async with native.written(b"in a transaction", b"in it, too", commit=commit):
                told = [
                    await append_values(log, f"{number}", "x", producer=producer, sequence=1 + 2 * number)
                    for number in range(5)
                ]
                assert told == [3, 5, 7, 9, 11]
                assert log.high_watermark == 1, "nobody may read further"
                assert engine.counts[ASKED] == 1, "the chain goes on behind the first answer"
                await until(lambda: engine.counts.get("tail_held_by_transaction"))
            await until(lambda: log.high_watermark >= 13)
            await log.refresh()
        values = {record.offset: record.value for record in await read_all(log) if record.value is not None}
        expected = {base: f"{number}".encode() for number, base in enumerate(told)}
        assert {base: values[base] for base in told} == expected
        assert (values.get(1) == b"in a transaction") is commit
        assert "offsets_told_wrong" not in engine.counts
        assert await append_values(log, "z", producer=producer, sequence=11) == 14


async def has(engine: PulsarEngine, topic: str, policy: str, value: object) -> bool:
    applied = await engine.admin.policy(topic, policy)
    return (
        applied == value if value is None or not isinstance(value, dict) else value.items() <= (applied or {}).items()
    )


async def test_a_batch_that_a_gateway_that_is_gone_stored_has_its_true_offset(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        here = await make(engine)
        async with native_writer(engine) as native:
            told = []
            for number in range(10):
                await native.write()
                told.append(await append_values(here, f"{number}", "x", producer=5, sequence=2 * number))
            for _ in range(300):  # more than the search reads at first
                await native.write()
    async with pulsar_store.opened() as other:
        there = await attached(other)
        again = [append_values(there, f"{number}", "x", producer=5, sequence=2 * number) for number in range(10)]
        assert await asyncio.gather(*again) == told
        assert await append_values(there, "new", producer=5, sequence=20) == 330 - 10 + 10
        assert other.counts["duplicates_found"] == 10


async def test_a_batch_that_was_split_is_a_duplicate(pulsar_store: PulsarStore) -> None:
    large = ["x" * (3 << 20), "y" * (3 << 20), "z"]
    async with pulsar_store.opened() as engine:
        told = await append_values(await make(engine), *large, producer=5)
    async with pulsar_store.opened() as other:
        there = await attached(other)
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            await append_values(there, large[1], producer=5, sequence=1)
        assert await append_values(there, *large, producer=5) == told
        assert await append_values(there, "new", producer=5, sequence=3) == told + 3


async def test_who_else_writes_is_told_by_pulsar(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as other:
        async with pulsar_store.opened() as engine:
            here = await make(engine)
            await append_values(here, "a", producer=5)
            assert await here.nobody_else_writes(5), "this one does"
            there = await attached(other)
            assert await there.nobody_else_writes(6)
            waiting = asyncio.create_task(there.nobody_else_writes(5))
            ended = partial(EndedTransaction, "", 5, 0, frozenset({("t", 0)}), True, 2)
            asked = other.transactions.nobody_else_writes
            whole = asyncio.create_task(asked(ended(transaction_name(EntryTransaction(1, 2)))))
            assert not await asked(ended(transaction_name(EntryTransaction(1, 2, sent_in=True))))
            await append_values(here, "b", producer=5, sequence=1)
            assert not waiting.done()
            assert not whole.done()
        assert await asyncio.gather(waiting, whole) == [True, True]
        await append_values(there, "c", producer=5, sequence=2)
        assert await read_values(there) == ["a", "b", "c"]


async def test_the_first_batch_of_a_topic_is_answered_while_its_transaction_buffer_is_not_recovered(
    pulsar_store: PulsarStore,
) -> None:
    """Then the tail brings nothing yet, and nothing has to be asked."""
    async with pulsar_store.opened() as engine:
        for number in range(5):
            log = await make(engine, f"t{number}")
            assert [await append_values(log, "a", "b"), await append_values(log, "c")] == [0, 2]
        assert ASKED not in engine.counts


async def limit(engine: PulsarEngine, size: int) -> None:
    name = engine.context.naming.full_name("t", False)
    await engine.admin.set_max_message_size(name, size)
    await until(lambda: has(engine, name, "maxMessageSize", size))


async def refused_by_pulsar(engine: PulsarEngine, native: NativeWriter, size: int) -> None:
    """Wait until the limit is in force: what is written until then is the only value of `n`."""

    async def tried() -> bool:
        try:
            await native.write("n" * size)
        except PulsarError as error:
            return error.code == "NotAllowedError"
        return False

    await until(tried)


def outcomes(results: Sequence[int | BaseException]) -> list[int]:
    """Offsets, and the codes of errors of ours; any other error is raised."""
    told: list[int] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, KopError):
            raise result
        told.append(result.code if isinstance(result, KopError) else result)
    return told


async def test_what_a_topic_refuses_is_refused_before_it_takes_a_sequence(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await limit(engine, 2000)
        async with native_writer(engine) as native:
            await refused_by_pulsar(engine, native, 3000)
        begin = log.high_watermark
        appends = [
            append_values(log, value, producer=9, sequence=number)
            for number, value in enumerate(["a", "v" * 3000, "behind it"])
        ]
        told = outcomes(await asyncio.gather(*appends, return_exceptions=True))
        assert told[0] == (base := log.high_watermark - 1) >= begin
        assert told[1:] == [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        for number, value in enumerate(["smaller", "behind it"], 1):  # as the Java client goes on
            assert await append_values(log, value, producer=9, sequence=number) == base + number


async def test_the_largest_entry_that_the_gateway_sends_is_one_that_pulsar_takes(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await limit(engine, 1000)
        async with native_writer(engine) as native:
            await refused_by_pulsar(engine, native, 2000)
        refused: list[PulsarError] = []
        monkeypatch.setattr(Producer, "on_send_error", lambda _, sequence_id, error: refused.append(error))
        told = outcomes(
            await asyncio.gather(
                *(append_values(log, "v" * size) for size in range(780, 1000, 2)), return_exceptions=True
            )
        )
        taken = sum(isinstance(outcome, int) and not isinstance(outcome, ErrorCode) for outcome in told)
        assert 0 < taken < len(told)
        assert set(told[taken:]) == {ErrorCode.MESSAGE_TOO_LARGE}
        assert refused == [], "Pulsar itself had to refuse none"


async def test_what_stands_behind_a_batch_that_pulsar_refuses_is_told_what_became_of_it(
    pulsar_store: PulsarStore,
) -> None:
    """The limit comes while the producer is open; its batches are on their way together."""
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await append_values(log, "first", producer=9)
        await limit(engine, 2000)
        async with native_writer(engine) as native:
            await refused_by_pulsar(engine, native, 3000)
        assert first(engine).entry_size_limit.bytes == 0, "the gateway has not heard of it"
        values = ["b", "v" * 3000, "d", "e"]
        appends = [append_values(log, value, producer=9, sequence=n) for n, value in enumerate(values, 1)]
        results = outcomes(await asyncio.gather(*appends, return_exceptions=True))
        assert results[1] is ErrorCode.MESSAGE_TOO_LARGE
        told = {offset: value for offset, value in zip(results, values, strict=True) if offset is not results[1]}
        (again,) = outcomes(
            await asyncio.gather(append_values(log, "smaller", producer=9, sequence=2), return_exceptions=True)
        )
        assert again is ErrorCode.UNKNOWN_PRODUCER_ID
        assert await append_values(log, "f", producer=9, sequence=5) == max(told) + 1
    async with pulsar_store.opened() as other:  # which knows of no refusal
        log = await attached(other)
        (again,) = outcomes(
            await asyncio.gather(append_values(log, "smaller", producer=9, sequence=2), return_exceptions=True)
        )
        assert again is ErrorCode.UNKNOWN_PRODUCER_ID, "it is not stored, though Pulsar calls it a duplicate"
        new = (await append(log, batch(["smaller"], producer=9, epoch=1))).base_offset
        found_values = await read_values(log)
        assert {offset: found_values[offset] for offset in told} == told
        assert found_values[new] == "smaller"
        assert found_values.count("smaller") == 1


async def test_what_stands_behind_a_batch_waits_for_it_where_pulsar_may_refuse_it_by_a_lower_limit(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered while the producer is open. Nothing is stored behind the refused batch, as with Kafka."""
    monkeypatch.setattr(entry_sizes, "ALWAYS_TAKEN", 500)
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await limit(engine, 16_000)
        await append_values(log, "first", producer=9)
        await limit(engine, 2000)
        async with native_writer(engine) as native:
            await refused_by_pulsar(engine, native, 3000)
        assert first(engine).entry_size_limit.bytes == 16_000, "the gateway has not heard of it"
        values = ["b", "v" * 3000, "d", "e"]
        appends = [append_values(log, value, producer=9, sequence=n) for n, value in enumerate(values, 1)]
        told = outcomes(await asyncio.gather(*appends, return_exceptions=True))
        assert told[1:] == [ErrorCode.MESSAGE_TOO_LARGE, *[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2]
        for number, value in enumerate(["smaller", "d", "e"], 2):
            assert await append_values(log, value, producer=9, sequence=number) == told[0] + number - 1
        stored = await read_values(log)
        assert [value for value in stored if value in ("b", "smaller", "d", "e")] == ["b", "smaller", "d", "e"]


async def pausing(log: PulsarLog, producer: int) -> int:
    """Append until the tail pauses; returns the next sequence."""
    sequence = 0
    while not log.tail_pauses:
        sent = [append(log, batch(["v"], producer=producer, sequence=sequence + i)) for i in range(64)]
        await asyncio.gather(*sent)
        sequence += 64
        assert sequence < 50_000
    return sequence


@pytest.mark.parametrize("own", [True, False])
async def test_entries_of_others_are_found_where_the_tail_pauses(
    pulsar_store: PulsarStore, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next append of this broker, or after a short time without one; a consumer that waits keeps the tail."""
    monkeypatch.setattr(tail_demand, "CALM_SECONDS", 0.0)
    async with pulsar_store.opened() as engine, AsyncExitStack() as held:
        await make(engine)
        log = first(engine)
        native = await held.enter_async_context(native_writer(engine))
        sequence = await pausing(log, 9)
        for number in range(5):
            end = log.high_watermark
            await native.write(f"native {number}")
            if own:
                assert await append_values(log, f"own {number}", producer=9, sequence=sequence) == end + 1
                sequence += 1
            await until(lambda: log.high_watermark == end + 1 + own)  # noqa: B023
        end, moved = log.high_watermark, asyncio.Event()
        undo = log.on_advance(moved.set)
        assert not log.tail_pauses
        await native.write("the last")
        while log.high_watermark == end:  # it may be told of an earlier move
            moved.clear()
            await moved.wait()
        undo()
        values = await read_values(log)
        assert [value for value in values if value != "v"] == (
            [name for n in range(5) for name in ([f"native {n}", f"own {n}"] if own else [f"native {n}"])]
            + ["the last"]
        )
        assert not {"offsets_told_wrong", "entries_passed_over_by_tail"} & engine.counts.keys()


@pytest.mark.parametrize("hears", [True, False], ids=["the gateway knows the limit", "only Pulsar knows it"])
async def test_a_stored_batch_that_is_sent_again_keeps_its_offset_where_the_limit_was_lowered_since(
    pulsar_store: PulsarStore, hears: bool
) -> None:
    """Its gateway is gone. Told that the batch is too large, a client would take it for not stored."""
    large = "v" * 3000
    async with pulsar_store.opened() as engine:
        here = await make(engine)
        told = [await append_values(here, large, producer=9, sequence=number) for number in range(2)]
    async with pulsar_store.opened() as other, native_writer(other) as native:
        there = await attached(other)
        if not hears:
            assert await append_values(there, "behind", producer=9, sequence=2) == told[-1] + 1
        await limit(other, 2000)
        await refused_by_pulsar(other, native, 3000)
        assert first(other).entry_size_limit.bytes == 0, "the gateway has not heard of it"
        again = [append_values(there, large, producer=9, sequence=number) for number in range(2)]
        assert await asyncio.gather(*again) == told
        if hears:  # when it opens its producer; the other gateway asks in the background once a batch is refused
            assert first(other).entry_size_limit.bytes == 2000
        next_sequence = 2 if hears else 3
        (refused,) = outcomes(
            await asyncio.gather(
                append_values(there, large, producer=9, sequence=next_sequence), return_exceptions=True
            )
        )
        assert refused is ErrorCode.MESSAGE_TOO_LARGE, "that one is not stored"
        assert await append_values(there, "small", producer=9, sequence=next_sequence) > told[-1]
        assert (await read_values(there)).count(large) == 2


async def test_a_batch_whose_receipt_was_lost_keeps_its_offset_where_the_limit_was_lowered_since(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of Pulsar attaches its producer again and sends what has no receipt: it is refused for its size."""
    large = "v" * 3000
    lost: list[tuple[Producer, int]] = []

    def lose(producer: Producer, receipts: Sequence[Receipt]) -> None:
        lost.extend((producer, receipt[1]) for receipt in receipts)

    async with pulsar_store.opened() as engine:
        log = await make(engine)
        assert await append_values(log, "first", producer=9) == 0
        partition = f"{engine.context.naming.full_name('t', False)}-partition-0"
        async with (
            NativeTransactions(pulsar_store.urls[0], partition) as transactions,
            transactions.written(b"keeps the tail from telling first", commit=False),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(Producer, "on_receipts", lose)
                sent = asyncio.create_task(append_values(log, large, producer=9, sequence=1))
                await until(lambda: bool(lost))
            await limit(engine, 2000)
            async with native_writer(engine) as native:
                await refused_by_pulsar(engine, native, 3000)
            assert not sent.done()
            producer, sequence_id = lost[0]
            producer.on_send_error(sequence_id, PulsarError("PersistenceError", "the test has it attach again"))
            told = await sent
        await until(lambda: log.high_watermark > told)
        await log.refresh()
        stored = {record.offset: record.value for record in await read_all(log)}
        assert stored[told] == large.encode()
        assert list(stored.values()).count(large.encode()) == 1
