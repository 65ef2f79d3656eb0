"""A Produce that compiled code carries to its answer is answered, stored and counted as by the ordinary path.

Two gateways are given the same frames: the logs of one offer writers to compiled code, those of the other do not. What
is compared is every answer, byte for byte, what the logs hold then, and what the metrics say. Each test looks that
compiled code has really taken requests.
"""

from __future__ import annotations

import gc
import random
import struct
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.direct_engine import DirectStore
from support.fake_peer import Peer, close_server, settle
from support.gateway import frame, gateway, log_of, run, topic_of
from support.produce_requests import NOW, any_body, request
from support.waiting import until

from kop import clock
from kop.app import Serving
from kop.compiled import compiled_only
from kop.errors import BackendError, ErrorCode, FrameError, KopError, PeerError
from kop.handlers.api import Answer, ConnectionInfo
from kop.records.batch import (
    BatchHeader,
    Record,
    build,
    check_produced,
    read_header,
    seal,
    stamp_create_time,
    stamp_log_append_time,
)
from kop.records.compression import Codec
from kop.records.record import content_of, put_record
from kop.records.validation import RecordsRejectedError
from kop.security.quotas import DEFAULT, Entity, QuotaKind
from kop.security.tenants import HOME, Space
from kop.server.listener import Server
from kop.server.request import RequestPipeline
from kop.server.settings import ServerSettings
from kop.storage.base import AppendResult
from kop.wire.primitives import DecodeError
from kop.wire.produce import ProducePartitionAnswer, appended_row, encode_partition, encode_rows

NATIVE: Any = compiled_only()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="kop._native was not built: nothing goes this way")

PRODUCE = 0
PARTITIONS = 5
KEEPS = {"retention.ms": "-1"}
TOPICS = {
    "t": KEEPS,
    "ü" * 30: KEEPS,
    "compacted": {"cleanup.policy": "compact"},
    "timed": {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
    "small": {"max.message.bytes": "200", "retention.ms": "-1"},
    "lz4": {"compression.type": "lz4", "retention.ms": "-1"},
    "plain": {"compression.type": "uncompressed", "retention.ms": "-1"},
    "narrow": {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"} | KEEPS,
}
COUNTED = ("kop_requests_total", "kop_produced", "kop_request_errors_total", "kop_produce_throttled")


class Side:
    """One of the two gateways."""

    def __init__(self, serving: Serving, store: DirectStore, topic_ids: dict[str, bytes], space: Space = HOME) -> None:
        """`space`: that in which its client works."""
        self.serving = serving
        self.space = space
        self.store = store
        self.topic_ids = topic_ids
        self.pipeline = RequestPipeline(serving.gateway)
        self.directly = 0
        """Requests that compiled code took."""

    def start(self, data: bytes, owned: bool = False) -> Any:
        """Start a request, a frame without its size. The answer, or why the connection is closed."""
        memory = bytearray(data)
        self.pipeline.look_at_clocks()
        try:
            answer = self.pipeline.start(
                memoryview(memory), ConnectionInfo("1.2.3.4", "", 0, space=self.space), owned=owned
            )
        except (FrameError, DecodeError) as error:
            return f"{type(error).__name__}: {error}"
        if not owned:
            memory[:] = b"\xee" * len(memory)  # the next request comes into the same memory
        self.directly += isinstance(answer, NATIVE.DirectAnswer)
        return answer

    async def answer(self, data: bytes) -> bytes:
        """The whole answer to a request that is answered."""
        answer = self.start(data)
        assert not isinstance(answer, str), answer
        result = await ended(answer)
        assert isinstance(result, bytes)
        return result

    def stored(self) -> dict[tuple[str, int], list[bytes]]:
        """All batches."""
        batches: dict[tuple[str, int], list[bytes]] = {}
        for name in self.topic_ids:
            for index in range(PARTITIONS):
                log = log_of(self.serving, self.space.inward(name), index)
                result = log.read_cached(log.log_start_offset, 1 << 30, min_one=True)
                assert result is not None
                batches[name, index] = [bytes(data) for data in result.buffers]
        return batches

    def counts(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """What a scrape says of Produce requests."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for metric in self.serving.gateway.metrics.registry.collect()
            for sample in metric.samples
            if sample.name.startswith(COUNTED)
        }


async def ended(answer: Any) -> Any:
    """The frame, None where there is none, or why the connection is closed."""
    if isinstance(answer, str):
        return answer
    await until(lambda: answer.ready)
    if answer.error is not None:
        return f"{type(answer.error).__name__}: {answer.error}"
    return None if answer.frame is None else b"".join(bytes(part) for part in answer.frame)


def uuids(seed: int) -> Callable[[], UUID]:
    """Gives the ids of topics, the same on both sides."""
    rng = random.Random(seed)
    return lambda: UUID(int=rng.getrandbits(128), version=4)


@asynccontextmanager
async def two_sides(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 0, *, most: int = 1 << 30, space: Space = HOME
) -> AsyncIterator[tuple[Side, Side]]:
    """One gateway with writers, and one without."""
    monkeypatch.setattr(clock, "wall_ns", lambda: NOW * 1_000_000)  # answers tell times
    sides: list[Side] = []
    async with AsyncExitStack() as stack:
        for offers in (True, False):
            monkeypatch.setattr(clock, "uuid4", uuids(seed))
            store = DirectStore(random.Random(seed), most=most)
            store.offers = offers
            monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)
            serving = await stack.enter_async_context(gateway(path / str(offers), store="memory:"))
            if not offers:
                serving.gateway.direct_produce.take = None
            ids: dict[str, bytes] = {}
            for name, configs in TOPICS.items():
                topics = serving.gateway.engine.topics
                ids[name] = (await topics.create(space.inward(name), PARTITIONS, configs)).topic_id.bytes
            sides.append(Side(serving, store, ids, space))
        yield sides[0], sides[1]


class Producers:
    """Makes requests with which mostly nothing is wrong."""

    def __init__(self, rng: random.Random, ids: Mapping[str, bytes]) -> None:
        self._rng = rng
        self._ids = ids
        self._known: dict[tuple[str, int, int], tuple[int, int]] = {}
        """Epoch and next sequence of each producer on each partition."""
        self._correlation = 0

    def _batch(self, topic: str, partition: int) -> bytes:
        rng = self._rng
        count, producer = rng.choice([1, 1, 1, 2, 5, 30]), rng.choice([-1, -1, -1, 5, 5, 6])
        place = topic, partition, producer
        epoch, sequence = self._known.get(place, (0, 0))
        change = rng.random()
        if change < 0.06:  # what was refused is left behind by that
            epoch, sequence = epoch + 1, 0
        elif change < 0.07:
            sequence = max(0, sequence - count)
        elif change < 0.075:
            sequence += 1
        self._known[place] = epoch, sequence + count
        base = rng.choice([NOW] * 30 + [-1, 0, NOW - 5000, NOW + 5000])
        key = rng.choice([b"key"] * 6 + [b"", None])
        records = [
            Record(
                index,
                base + (index if base >= 0 else 0),
                key,
                rng.choice([None, b"", b"value", rng.randbytes(40)]),
                [(b"h", rng.choice([None, b"", b"x"]))] if rng.random() < 0.2 else [],
            )
            for index in range(count)
        ]
        made = build(
            records,
            codec=rng.choice([Codec.NONE] * 12 + [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]),
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else epoch,
            base_sequence=-1 if producer < 0 else sequence,
        )
        lie = rng.random()
        if lie < 0.1:
            stamp_create_time(made, rng.choice([-1, 0, NOW - 1, NOW, NOW + 1, 2**62]))
        elif lie < 0.12:
            stamp_log_append_time(made, rng.choice([-1, NOW, 2**62]))
        return bytes(made)

    def _body(self, version: int) -> bytes:
        rng = self._rng
        topics = rng.sample([*["t"] * 30, *["ü" * 30] * 8, *TOPICS], rng.choice([1, 1, 1, 1, 2, 3]))
        return request(
            version,
            [
                (
                    self._ids[topic] if version >= 13 else topic,
                    [
                        (partition, self._batch(topic, partition))
                        for partition in rng.choices(
                            range(PARTITIONS), [40, 20, 5, 1, 1], k=rng.choice([1, 1, 1, 1, 1, 1, 2, 5])
                        )
                    ],
                )
                for topic in topics
            ],
            rng.choice([-1] * 20 + [1] * 10 + [0, 2]),
        )

    def frame(self) -> bytes:
        """Any request, without its size."""
        rng = self._rng
        version = rng.choice([*range(3, 14), 13])
        if rng.random() < 0.1:
            names: list[Any] = list(self._ids.values()) if version >= 13 else [*TOPICS, "missing", "__consumer_offsets"]
            body = any_body(rng, version, names, {})
        else:
            body = self._body(version)
        self._correlation += 1
        data = bytearray(frame(PRODUCE, version, self._correlation, body, rng.choice(["", "raw", "é"]))[4:])
        if rng.random() < 0.01:
            data[rng.randrange(12)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.02:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)


@pytest.mark.parametrize(("seed", "space"), [*((seed, HOME) for seed in range(4)), (4, Space("T/N/"))])
def test_any_requests_are_answered_stored_and_counted_as_by_the_ordinary_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, space: Space
) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch, seed, space=space) as (first, second):
            assert first.topic_ids == second.topic_ids
            producers = Producers(rng, first.topic_ids)
            requests = 0
            for _ in range(300):
                started = []
                for _ in range(rng.choice([1, 1, 2, 6])):
                    data, owned = producers.frame(), rng.random() < 0.5
                    started.append((data, first.start(data, owned), second.start(data)))
                    requests += 1
                await settle()
                for data, answer, expected in started:
                    assert await ended(answer) == await ended(expected), data
            assert first.stored() == second.stored()
            assert first.counts() == second.counts()
            numbers = requests, first.directly, first.store.directly, first.store.handed_over
            assert numbers > (500, 0, 0, 0)
            assert first.directly > requests // 5, numbers
            assert second.directly == 0
            assert first.store.directly > first.directly + 30, numbers
            assert first.store.handed_over > 50, numbers

    run(main())


def batch_of(
    count: int = 1,
    *,
    value: bytes = b"value",
    producer: int = -1,
    sequence: int = 0,
    codec: int = Codec.NONE,
    timestamp: int = NOW,
) -> bytes:
    records = [Record(index, timestamp, b"key", value) for index in range(count)]
    if producer < 0:
        return bytes(build(records, codec=codec))
    return bytes(build(records, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=sequence))


def produce_of(
    side: Side,
    topics: Sequence[tuple[str, Sequence[tuple[int, bytes]]]],
    *,
    version: int = 9,
    number: int = 1,
    acks: int = -1,
) -> bytes:
    """A Produce frame without its size; topics go by name."""
    named = [(side.topic_ids[name] if version >= 13 else name, list(batches)) for name, batches in topics]
    return frame(PRODUCE, version, number, request(version, named, acks))[4:]  # type: ignore[arg-type]


def is_direct(answer: object) -> bool:
    return isinstance(answer, NATIVE.DirectAnswer)


# --- what makes it look again


async def same_answers(sides: tuple[Side, Side], data: Sequence[bytes], *, directly: bool) -> bytes:
    """The answer of both gateways to one request, which has to be the same."""
    answers = []
    for side, frame_of_side in zip(sides, data, strict=True):
        started = side.start(frame_of_side)
        assert is_direct(started) == (directly and side.store.offers)
        result = await ended(started)
        assert isinstance(result, bytes)
        answers.append(result)
    assert answers[0] == answers[1]
    return answers[0]


def error_of(answer: bytes) -> ErrorCode:
    """Of the only partition of an answer of version 9 for a topic with a name of one letter."""
    return ErrorCode(struct.unpack_from(">h", answer, 4 + 4 + 1 + 1 + 2 + 1 + 4)[0])


def test_a_change_of_a_topic_or_of_a_broker_setting_makes_it_look_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:

            async def produced(*, directly: bool) -> ErrorCode:
                data = [produce_of(side, [("t", [(0, batch_of(value=bytes(100)))])]) for side in sides]
                return error_of(await same_answers(sides, data, directly=directly))

            assert await produced(directly=False) == ErrorCode.NONE
            assert await produced(directly=True) == ErrorCode.NONE
            for side in sides:
                topic = topic_of(side.serving)
                await side.serving.gateway.engine.topics.set_configs(topic.topic_id, {"max.message.bytes": "100"})
            assert await produced(directly=False) == ErrorCode.MESSAGE_TOO_LARGE
            assert await produced(directly=False) == ErrorCode.MESSAGE_TOO_LARGE
            for side in sides:
                topic = topic_of(side.serving)
                await side.serving.gateway.engine.topics.set_configs(topic.topic_id, KEEPS)
            assert await produced(directly=False) == ErrorCode.NONE
            assert await produced(directly=True) == ErrorCode.NONE
            for size, code in (("100", ErrorCode.MESSAGE_TOO_LARGE), ("1000", ErrorCode.NONE)):
                for side in sides:
                    settings = {"message.max.bytes": size}
                    await side.serving.gateway.broker_configs.alter("", lambda known: settings)  # noqa: B023 - awaited
                assert await produced(directly=False) == code
            assert await produced(directly=True) == ErrorCode.NONE
            for side in sides:
                await side.serving.gateway.engine.topics.delete(topic_of(side.serving).topic_id)
            assert await produced(directly=False) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for side in sides:
                made = await side.serving.gateway.engine.topics.create("t", PARTITIONS, KEEPS)
                side.topic_ids["t"] = made.topic_id.bytes
            assert await produced(directly=False) == ErrorCode.NONE
            assert await produced(directly=True) == ErrorCode.NONE
            assert sides[0].stored() == sides[1].stored()
            assert log_of(sides[0].serving).high_watermark == 2

    run(main())


# --- what compiled code must not take


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_timestamps_are_judged_by_the_records_and_the_header_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """Producers may leave the largest timestamp of a batch unset, and look-ups by time go by it."""

    def lying(*times: int, base: int = NOW, claimed: int = NOW) -> bytes:
        body = bytearray()
        for index, timestamp in enumerate(times):
            put_record(body, timestamp - base, index, content_of(b"key", b"value", []))
        count = len(times)
        return bytes(seal(BatchHeader(0, 0, 0, 2, 0, codec, count - 1, base, claimed, -1, -1, -1, count), body))

    right = [
        (lying(NOW, claimed=-1), NOW),
        (lying(NOW, claimed=2**62), NOW),
        (lying(NOW, base=NOW - 10**7), NOW),
        (lying(NOW, base=NOW + 10**7, claimed=NOW + 10**7), NOW),
        (lying(NOW - 5, NOW + 9, NOW - 7), NOW + 9),
        (lying(-1, -1), -1),
        (batch_of(codec=codec), NOW),
    ]
    wrong = [lying(NOW, NOW + 5000), lying(NOW - 5000, NOW), lying(NOW + 5000, base=NOW + 5000, claimed=-1)]

    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            sides[0].store.hands_over = 0.0

            async def produced(records: bytes, *, directly: bool) -> bytes:
                data = [produce_of(side, [("narrow", [(0, records)])]) for side in sides]
                return await same_answers(sides, data, directly=directly)

            await produced(batch_of(codec=codec), directly=False)
            for records, _ in right:
                await produced(records, directly=True)
            for records in wrong:
                assert b"out of range. The timestamp should be within" in await produced(records, directly=False)
                await produced(batch_of(), directly=True)
            assert sides[0].stored() == sides[1].stored()
            stored = sides[0].stored()["narrow", 0]
            assert [read_header(each).max_timestamp for each in stored[1 : len(right) + 1]] == [
                largest for _, largest in right
            ]
            for each in stored:
                checked = bytearray(each)
                checked[:8] = bytes(8)
                check_produced(checked, max_message_bytes=1 << 20, zstd_allowed=True)

    run(main())


def test_a_batch_with_the_bit_of_log_append_time_goes_the_ordinary_way_and_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = bytearray(batch_of(3, timestamp=NOW - 500))
    stamp_log_append_time(copied, NOW)

    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            for records, directly in ((batch_of(), False), (bytes(copied), False), (batch_of(), True)):
                data = [produce_of(side, [("t", [(0, records)])]) for side in sides]
                assert error_of(await same_answers(sides, data, directly=directly)) == ErrorCode.NONE
            assert sides[0].stored() == sides[1].stored()
            header = read_header(sides[0].stored()["t", 0][1])
            assert (header.attributes, header.max_timestamp) == (0, NOW - 500)

    run(main())


def test_the_batches_of_one_request_keep_to_the_bound_on_what_is_held_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(batch_of(value=bytes(100)))

    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch, most=3 * size) as (first, _):
            everywhere = [(index, batch_of(value=bytes(100))) for index in range(PARTITIONS)]
            await first.answer(produce_of(first, [("t", everywhere)]))
            assert first.store.writers == PARTITIONS
            answer = first.start(produce_of(first, [("t", everywhere[:3])]))
            assert is_direct(answer)
            assert first.store.budget.used == 3 * size
            await ended(answer)
            assert first.store.budget.used == 0
            answer = first.start(produce_of(first, [("t", everywhere[:4])]))
            assert not is_direct(answer)
            assert first.store.budget.used <= 3 * size
            await ended(answer)
            assert [len(log) for log in first.stored().values()][:5] == [3, 3, 3, 2, 1]

    run(main())


def test_the_batches_of_one_request_inflate_to_8_mib_together_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One alone may inflate to 4 MiB. More lets others have their turn, on the ordinary path."""
    bombs = [(index, batch_of(value=bytes(3 << 20), codec=Codec.GZIP)) for index in range(3)]

    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            for batches, directly in ((bombs, False), (bombs[:2], True), (bombs, False), (bombs[1:], True)):
                data = [produce_of(side, [("t", batches)]) for side in sides]
                await same_answers(sides, data, directly=directly)
            larger = [(0, batch_of(value=bytes(5 << 20), codec=Codec.GZIP))]
            data = [produce_of(side, [("t", larger)]) for side in sides]
            await same_answers(sides, data, directly=False)
            assert sides[0].stored() == sides[1].stored()

    run(main())


def test_two_batches_of_one_producer_for_one_partition_go_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            for directly in (False, True):
                data = [produce_of(side, [("t", [(0, batch_of()), (1, batch_of())])]) for side in sides]
                await same_answers(sides, data, directly=directly)
            for topics in ([("t", [(0, batch_of()), (0, batch_of(2))])], [("t", [(0, batch_of())])] * 2):
                data = [produce_of(side, topics) for side in sides]
                await same_answers(sides, data, directly=False)
            assert sides[0].stored() == sides[1].stored()

    run(main())


# --- refusals behind the answer's back

REFUSALS = [
    PeerError("it does not come next", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    PeerError("", ErrorCode.INVALID_PRODUCER_EPOCH),
    PeerError("nothing is known of it", ErrorCode.UNKNOWN_PRODUCER_ID),
    BackendError("Pulsar is gone"),
    BackendError("éé" * 100, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    RecordsRejectedError.without_key([0, 3]),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.code.name)
def test_a_refusal_of_what_was_handed_over_is_told_and_counted_as_by_the_ordinary_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: KopError
) -> None:
    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            first, second = sides
            name = "ü" * 30
            for version in range(3, 14):
                topics = [(name, [(2, batch_of()), (0, batch_of())]), ("t", [(1, batch_of())])]
                data = [produce_of(side, topics, version=version, number=version) for side in sides]
                for side, sent in zip(sides, data, strict=True):
                    await side.answer(sent)
                for side in sides:
                    await log_of(side.serving, name, 2).delete_records(version - 2)
                second.store.refuses[name] = error
                expected = await second.answer(data[1])
                answer = first.start(data[0])
                assert is_direct(answer)
                first.store.refuses[name] = error
                assert await ended(answer) == expected
                first.store.refuses.clear()
                second.store.refuses.clear()
            assert first.counts() == second.counts()
            assert first.stored() == second.stored()

    run(main())


@pytest.mark.parametrize("version", range(3, 14))
def test_an_answer_is_put_together_as_that_of_the_ordinary_path(version: int) -> None:
    """Rows that end in any order, stored or refused, with and without a throttle time."""
    rng = random.Random(version)
    names: list[str | bytes] = [bytes(16), bytes(range(16))] if version >= 13 else ["t", "é" * 100]
    outgoing = NATIVE.Outgoing(1 << 30, lambda: None, lambda: None)
    budget = NATIVE.DirectBudget(1 << 30)

    class Handler:
        ends: list[tuple[list[int], bool]]

        def refusal(self, version: int, topic: str | bytes, partition: int, error: KopError) -> tuple[int, bytes]:
            assert topic in names
            refused = ProducePartitionAnswer(partition, error.code, message=error.message)
            return error.code, encode_partition(version, refused)

        def ended(self, codes: list[int], throttled: bool) -> None:
            self.ends.append((codes, throttled))

    handler = Handler()
    limit = DirectStore(rng)
    for _ in range(30):
        handler.ends = []
        requests = NATIVE.DirectRequests(handler, None)
        writers = []
        topics = [
            (name, [(index, batch_of()) for index in rng.sample(range(300), rng.choice([1, 2, 150]))]) for name in names
        ]
        for name, partitions in topics:
            for index, _ in partitions:
                writers.append(NATIVE.DirectWriter(1, b"p", outgoing, budget, limit, None, 0, 1 << 20, 5, None, 0, 0))
                requests.add(name, index, -1, writers[-1], 1 << 20, 1 << 60, 1 << 60, False, True)
        data = frame(PRODUCE, version, 99, request(version, topics))[4:]  # type: ignore[arg-type]
        answer = requests.take(memoryview(data), 0.0, 0.0, NOW)
        waiting = [writer.hand_over()[1][0][7:] for writer in writers]
        assert [place for _, place in waiting] == list(range(len(writers)))
        rows: dict[int, bytes] = {}
        indexes = [index for _, partitions in topics for index, _ in partitions]
        codes: list[int] = []
        most, throttles = 0, rng.random() < 0.5
        for waiter, place in rng.sample(waiting, len(waiting)):
            assert waiter is answer
            assert not answer.ready
            assert answer.frame is None
            if rng.random() < 0.7:
                throttle = rng.randrange(1000) if throttles else 0
                most = max(most, throttle)
                base, time_ms, start = rng.randrange(2**62), rng.choice([-1, NOW]), rng.randrange(2**40)
                waiter.appended(place, AppendResult(base, time_ms, start, throttle))
                rows[place] = appended_row(version, indexes[place], base, time_ms, start)
            else:
                error = rng.choice(REFUSALS)
                waiter.append_failed(place, error)
                refused = ProducePartitionAnswer(indexes[place], error.code, message=error.message)
                rows[place] = encode_partition(version, refused)
                if error.code not in codes:
                    codes.append(error.code)
        assert answer.ready
        left = iter([rows[place] for place in range(len(writers))])
        expected = [(name, [next(left) for _ in partitions]) for name, partitions in topics]
        assert answer.frame == (encode_rows(99, version, expected, most),)
        assert handler.ends == ([(codes, most > 0)] if codes or most else [])
        with pytest.raises(ValueError, match="has ended before"):
            answer.appended(0, AppendResult(0, -1, 0))


# --- connections


class Taker:
    """Stands for a connection."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)


def test_who_takes_an_answer_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as (first, _):
            data = produce_of(first, [("t", [(0, batch_of()), (1, batch_of())])])
            await first.answer(data)
            for hands_over in (0.0, 1.0):
                first.store.hands_over = hands_over
                answer, taker = first.start(data), Taker()
                assert is_direct(answer)
                answer.taker = taker
                await ended(answer)
                assert taker.answers == [answer]
                await first.answer(data)

    run(main())


@pytest.mark.parametrize("hands_over", [0.0, 1.0])
def test_a_connection_that_leaves_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands_over: float
) -> None:
    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as (first, _):
            first.store.hands_over = hands_over
            data = produce_of(first, [("t", [(0, batch_of()), (1, batch_of())])])
            await first.answer(data)
            first.store.hold()
            answer, taker = first.start(data), Taker()
            assert is_direct(answer)
            answer.taker = taker
            taker.answers.append(answer)
            gone = weakref.ref(taker)
            answer.taker = None
            del answer, taker
            gc.collect()
            assert gone() is None, "the batches under way hold the answer, and that holds no connection"
            assert first.store.budget.used == 2 * len(batch_of())
            first.store.release()
            await settle()
            assert first.store.budget.used == 0
            assert [len(log) for log in first.stored().values()][:3] == [2, 2, 0]

    run(main())


def test_answers_of_both_paths_leave_a_connection_in_the_order_of_the_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(11)

    def pieces(side: Side) -> list[bytes]:
        """Requests of both paths; the second half of the numbers has nothing to do with logs that are held."""
        frames: list[bytes] = []
        for number in range(200):
            kind = rng.choice(["direct", "direct", "direct", "compressed", "both", "refused", "acks 0", "other"])
            name = rng.choice(["t", "ü" * 30])
            partition = rng.randrange(PARTITIONS)
            batches = [(partition, batch_of(rng.choice([1, 3]), codec=Codec.LZ4 if kind == "compressed" else 0))]
            if kind == "both":
                batches.append(((partition + 1) % PARTITIONS, batch_of(codec=Codec.GZIP)))
            if kind == "refused":
                batches = [(99, batch_of())]
            if kind == "other":
                frames.append(frame(18, 0, number, b""))
                continue
            data = produce_of(side, [(name, batches)], number=number, acks=0 if kind == "acks 0" else -1)
            frames.append(struct.pack(">i", len(data)) + data)
        return frames

    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            written: list[bytes] = []
            latencies: list[float | None] = []
            numbers: list[int] = []
            for side in sides:
                rng.seed(11)
                server = Server(side.pipeline, side.serving.gateway.metrics, ServerSettings())
                peer = Peer(server)
                frames = pieces(side)
                rest = rng.choices(range(1, 30), k=len(frames))
                for data, together in zip(frames, rest, strict=True):
                    if side.store.offers and together == 7:
                        side.store.hold()
                    peer.send(data)
                    if together > 20:
                        side.store.release()
                        await settle()
                        peer.pump()
                side.store.release()
                # It holds nothing: also where its turn was over while requests that it has received were left.
                await until(lambda: not peer.connection.charged and not peer.kernel)  # noqa: B023 - awaited here
                written.append(b"".join(bytes(data) for data in peer.transport.written))
                numbers = peer.answered
                assert numbers == sorted(numbers)
                registry = side.serving.gateway.metrics.registry
                latencies.append(registry.get_sample_value("kop_request_latency_seconds_count", {"api": "Produce"}))
                await close_server(server)
                assert server.memory.used == 0
            assert written[0] == written[1]
            assert latencies[0] == latencies[1]
            assert len(numbers) > 150
            assert sides[0].store.directly > 80
            assert sides[0].stored() == sides[1].stored()
            assert sides[0].counts() == sides[1].counts()

    run(main())


def test_what_compiled_code_takes_counts_against_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_sides(tmp_path, monkeypatch) as sides:
            told: list[list[int]] = []
            for side in sides:
                gateway_of = side.serving.gateway
                gateway_of.security.quotas.put(Entity(None, DEFAULT), QuotaKind.PRODUCED, 100.0)
                server = Server(side.pipeline, gateway_of.metrics, ServerSettings())
                peer = Peer(server)
                times: list[int] = []
                for number in range(12):
                    data = produce_of(side, [("t", [(0, batch_of())])], number=number)
                    peer.send(struct.pack(">i", len(data)) + data)
                    await until(lambda count=number + 1: len(peer.transport.written) == count)  # type: ignore[misc]  # noqa: B023
                    times.append(int.from_bytes(peer.transport.written[-1][-5:-1], "big"))
                    peer.connection.end_quota()
                told.append(times)
                peer.send(struct.pack(">i", len(data)) + data)
                await settle()
                await close_server(server)
            assert told[0] == pytest.approx(told[1], abs=500)
            assert told[0][0] == 0 < told[0][-1]
            assert sides[0].store.directly > 8
            assert sides[0].stored() == sides[1].stored()

    run(main())
