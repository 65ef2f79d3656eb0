"""Damaged frames against a whole gateway: it answers or closes, serves the others, and harms nothing that is stored.

Each case is a connection of its own that sends one frame. What is looked at:

- a whole frame that may not wait for others is answered, or its connection closed, in time; any connection is closed
  in time once the peer has closed its half; an answer has the request's correlation id and is a message of its API;
- a connection beside the fuzzed ones is served within a second at any time;
- nothing is logged as an error, no internal error is counted, memory does not grow;
- the victim, a topic with its records, settings and a group's offset that no frame names, is what it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz.fuzz_mutations import mutate_frame
from fuzz.fuzz_seeds import GROUPS, TOPICS, Seed, batches, corpus, filled, java
from support.bodies import encode_body
from support.gateway import RawClient, batch, fetch_fields, gateway, produce_fields, run

from kop.app import Serving
from kop.cluster.client_topics import ClientTopics
from kop.errors import FrameError
from kop.handlers.registry import build as registry
from kop.wire import codec, produce
from kop.wire.frame import parse_header
from kop.wire.messages import REQUESTS, RESPONSES

LANES = 4
ANSWER_SECONDS = 100.0
SERVED_SECONDS = 3.0
"""Of the loop's own CPU time; what takes all it is given takes minutes."""
MOST_GROWTH = 100 * 1024 * 1024
VICTIM, VICTIMS = "victim", "victim-group"
MAY_WAIT = {1, 11, 14}
"""Fetch, JoinGroup, SyncGroup: as long as their client says."""

SETTINGS = {
    "kop_max_partitions": "60",
    "kop_cache_bytes": str(8 * 1024 * 1024),
    "log_cleaner_backoff_ms": "100",
    "log_retention_check_interval_ms": "300",
    "group_min_session_timeout_ms": "10",
    "group_max_session_timeout_ms": "2000",
    "kop_drain_timeout_ms": "1000",
}
CONFIGS = {
    "fuzz-compact": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "fuzz-time": {"message.timestamp.type": "LogAppendTime"},
    "fuzz-recompressed": {"compression.type": "zstd"},
}


class Errors(logging.Handler):
    """Log records of level ERROR, each with the frames that were under way."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.flight: dict[int, bytes] = {}
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        frames = "\n".join(f"  {frame[:400].hex()}" for frame in self.flight.values())
        text = logging.Formatter().format(record)
        self.logged.append(f"{record.name}: {text}\nframes under way:\n{frames}")


@pytest.fixture
def errors() -> Iterator[Errors]:
    gc.collect()  # tasks that the tests before left may log errors then
    handler = Errors()
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)


def resident() -> int:
    """Bytes of memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def internal_errors(serving: Serving) -> dict[str, float]:
    families = serving.gateway.metrics.internal_errors.collect()
    return {
        sample.labels["api"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }


class Victim:
    """A topic, its settings and a group's offset, that nothing may change."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._state: Any = None

    @classmethod
    async def make(cls, serving: Serving) -> Victim:
        victim = cls(await RawClient.connect(serving))
        await create(victim._client, VICTIM, {"retention.ms": "-1", "max.message.bytes": "123456"})
        for index in range(5):
            records = batch([b"kept %d" % index] * 3, timestamp=int(time.time() * 1000))
            answer = await victim._client.call(0, 9, **produce_fields(VICTIM, records, version=9))
            assert answer.responses[0].partition_responses[0].error_code == 0
        part = REQUESTS[8].OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            version=8, partition_index=0, committed_offset=7, committed_leader_epoch=-1, committed_metadata="note"
        )
        topic = REQUESTS[8].OffsetCommitRequestTopic(version=8, name=VICTIM, partitions=[part])
        committed = await victim._client.call(
            8,
            8,
            group_id=VICTIMS,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic],
        )
        assert committed.topics[0].partitions[0].error_code == 0
        victim._state = await victim.read()
        return victim

    async def read(self) -> tuple[str, ...]:
        """All of it, as a client sees it."""
        client = self._client
        fetched = await client.call(1, 11, **fetch_fields(VICTIM, 0, version=11, max_wait_ms=60_000))
        part = fetched.responses[0].partitions[0]
        assert part.error_code == 0
        row = REQUESTS[32].DescribeConfigsResource(
            version=4, resource_type=2, resource_name=VICTIM, configuration_keys=None
        )
        configs = await client.call(32, 4, resources=[row], include_synonyms=True, include_documentation=False)
        topic = REQUESTS[9].OffsetFetchRequestTopic(version=7, name=VICTIM, partition_indexes=[0])
        offsets = await client.call(9, 7, group_id=VICTIMS, topics=[topic], require_stable=False)
        assert offsets.topics[0].partitions[0].committed_offset == 7
        asked = REQUESTS[3].MetadataRequestTopic(version=12, topic_id=None, name=VICTIM)
        metadata = await client.call(
            3, 12, topics=[asked], allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        return (
            bytes(part.records).hex(),
            f"{part.high_watermark} {part.log_start_offset}",
            encode_body(configs).hex(),
            encode_body(offsets).hex(),
            encode_body(metadata).hex(),
        )

    async def check(self) -> None:
        assert await asyncio.wait_for(self.read(), ANSWER_SECONDS) == self._state


async def create(client: RawClient, name: str, configs: dict[str, str]) -> None:
    row = REQUESTS[19].CreatableTopic
    entries = [row.CreatableTopicConfig(version=5, name=key, value=value) for key, value in configs.items()]
    topic = row(version=5, name=name, num_partitions=1, replication_factor=1, assignments=[], configs=entries)
    answer = await client.call(19, 5, topics=[topic], timeout_ms=5000, validate_only=False)
    assert answer.topics[0].error_code in (0, 36), answer  # or it is there already


async def clear(serving: Serving, client: RawClient) -> None:
    """Delete the topics that frames have made, so that there is room for more, and create the known ones again."""
    names = [
        topic.name
        for topic in serving.gateway.topics.all()
        if not topic.internal and topic.name not in (VICTIM, *TOPICS)
    ]
    if names:
        answer = await client.call(20, 5, topic_names=names, timeout_ms=5000)
        assert {row.error_code for row in answer.responses} == {0}
    for name in TOPICS:
        await create(client, name, CONFIGS.get(name, {}))


def produces(rng: random.Random, serving: Serving) -> list[Seed]:
    """A Produce for each kind of batch."""
    seeds = []
    for records in batches():
        name = rng.choice(TOPICS)
        version = rng.choice([3, 7, 8, 9, 13])
        topic = serving.gateway.topics.get(name)
        assert topic is not None
        fields = produce_fields(topic.topic_id if version >= 13 else name, records, version=version)
        seeds.append(Seed(0, version, encode_body(REQUESTS[0](version=version, **fields))))
    return seeds


def cases(seed: int, serving: Serving, count: int) -> list[bytes]:
    """Frames to send, most of them damaged."""
    rng = random.Random(seed)
    ids = [topic.topic_id for name in TOPICS if (topic := serving.gateway.topics.get(name)) is not None]
    seeds = filled(rng, ids) * 2 + java() + produces(rng, serving) * 4
    files = [data for data in corpus().values() if len(data) < 2000]
    rng.shuffle(seeds)
    frames = [seed.frame() for seed in seeds[: count * 9 // 10]]
    frames += rng.choices(files, k=count - len(frames))
    rng.shuffle(frames)
    sent = [frame if rng.random() < 0.15 else mutate_frame(rng, frame, frames) for frame in frames]
    for index in range(len(sent)):
        if rng.random() < 0.1:  # several requests at once
            sent[index] += b"".join(rng.choices(frames, k=rng.choice([1, 3, 20])))
    return [frame for frame in sent if b"victim" not in frame]


def must_answer(sent: bytes) -> bool:
    """True for a frame that is whole and has no right to wait."""
    if len(sent) < 4:
        return False
    size = struct.unpack_from(">i", sent)[0]
    if size < 0 or size > 104_857_600:
        return True
    if size > len(sent) - 4 or size < 4:
        return False
    key = int.from_bytes(sent[4:6], "big", signed=True)
    return key not in MAY_WAIT and not (key == 0 and wants_no_answer(memoryview(sent)[4 : 4 + size]))


def wants_no_answer(payload: memoryview) -> bool:
    """True for a Produce with acks=0."""
    try:
        header = parse_header(payload)
        return produce.parse(payload[header.body :], header.api_version).acks == 0
    except FrameError:
        return False


def check_answer(sent: bytes, answer: bytes) -> None:
    """The first frame that came back belongs to the first that was sent and is answered."""
    while True:
        size = struct.unpack_from(">i", sent)[0]
        payload = memoryview(sent)[4 : 4 + size]
        header = parse_header(payload)
        if header.api_key != 0 or not wants_no_answer(payload):
            break
        sent = sent[4 + size :]
    assert struct.unpack_from(">i", answer)[0] == header.correlation_id
    api = registry()[header.api_key]
    version, cls = header.api_version, RESPONSES[header.api_key]
    if not api.min_version <= version <= api.max_version:
        if header.api_key == 0:
            return
        assert header.api_key == 18
        version = 0
    pos = 5 if cls.flexible_version_q(version) and header.api_key != 18 else 4
    codec.decode(cls, version, memoryview(answer), pos)


async def send(serving: Serving, sent: bytes) -> bool:
    """One case: a connection, a frame, and what comes back, each step bounded. True where it was answered."""
    client = await RawClient.open(*serving.listeners[0])
    try:
        client.writer.write(sent)
        answer = None
        patience = ANSWER_SECONDS if must_answer(sent) else 0.02
        silent = False
        try:
            answer = await client.receive_frame(patience)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # closed
        except TimeoutError:
            silent = True
        if answer is not None:
            check_answer(sent, answer)
        if silent and must_answer(sent):
            raise AssertionError("neither answered nor closed")
        if not client.writer.is_closing():
            with contextlib.suppress(OSError):
                client.writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(client.reader.read(), ANSWER_SECONDS)
        return answer is not None
    finally:
        client.writer.transport.abort()


async def lane(number: int, serving: Serving, frames: list[bytes], errors: Errors) -> int:
    """Send one after the other; returns how many were answered."""
    answered = 0
    for sent in frames:
        errors.flight[number] = sent
        try:
            answered += await send(serving, sent)
        except Exception as error:
            error.add_note(f"frame of {len(sent)} bytes: {sent[:1000].hex()}")
            raise
    errors.flight.pop(number, None)
    return answered


@contextlib.asynccontextmanager
async def bystander(serving: Serving) -> AsyncIterator[None]:
    """A connection that asks all the time and is served in time, whatever the others do.

    The machine may be busy with something else, so what counts is the CPU time of the loop's thread where it is less.
    """
    client = await RawClient.connect(serving)
    slowest = 0.0

    async def ask() -> None:
        nonlocal slowest
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            answer = await client.call(18, 3, client_software_name="fuzz", client_software_version="1")
            assert answer.error_code == 0
            slowest = max(slowest, min(time.perf_counter() - wall, time.thread_time() - cpu))
            await asyncio.sleep(0.02)  # the pace of the load

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        if not asking.done():
            asking.cancel()
        await asyncio.wait([asking])
    assert asking.cancelled() or asking.exception() is None, asking.exception()
    assert slowest < SERVED_SECONDS


async def fuzz(path: Path, errors: Errors, seeds: list[int], count: int) -> None:
    """`count` cases for each seed, in lanes side by side."""
    async with gateway(path, **SETTINGS) as serving:
        victim = await Victim.make(serving)
        keeper = await RawClient.connect(serving)
        before = 0
        for seed in seeds:
            await asyncio.wait_for(clear(serving, keeper), ANSWER_SECONDS)
            frames = cases(seed, serving, count)
            assert len(frames) > count * 0.9
            async with bystander(serving):
                answered = await asyncio.gather(
                    *(lane(number, serving, frames[number::LANES], errors) for number in range(LANES))
                )
            assert count // 5 < sum(answered) < count * 9 // 10  # both handlers and refusals were reached
            await victim.check()
            assert not errors.logged, f"seed {seed}:\n" + "\n".join(errors.logged[:5])
            assert not internal_errors(serving)
            before = before or resident()  # the first round has compiled the decoders
        assert resident() - before < MOST_GROWTH
    assert not errors.logged, "\n".join(errors.logged[:5])


def test_damaged_frames_harm_nothing(tmp_path: Path, errors: Errors) -> None:
    run(fuzz(tmp_path, errors, [1, 2, 3, 4], 900))


@pytest.mark.slow
@pytest.mark.timeout(720)
@pytest.mark.parametrize("first", range(100, 180, 20))
def test_many_damaged_frames_harm_nothing(tmp_path: Path, errors: Errors, first: int) -> None:
    run(fuzz(tmp_path, errors, list(range(first, first + 20)), 1200), 700)


def test_the_corpus_harms_nothing(tmp_path: Path, errors: Errors) -> None:
    async def main() -> None:
        async with gateway(tmp_path, **SETTINGS) as serving:
            victim = await Victim.make(serving)
            keeper = await RawClient.connect(serving)
            await clear(serving, keeper)
            before = resident()
            async with bystander(serving):
                await lane(0, serving, list(corpus().values()), errors)
                await asyncio.gather(*(lane(n, serving, list(corpus().values()), errors) for n in range(LANES)))
            await asyncio.sleep(0.5)  # the cleaner meets what was stored
            await victim.check()
            assert resident() - before < MOST_GROWTH
            assert not internal_errors(serving)
        assert not errors.logged, "\n".join(errors.logged[:5])

    run(main())


def test_what_the_corpus_says_is_refused_as_it_says(tmp_path: Path) -> None:
    """A frame that can be answered is answered with Kafka's code; else the connection is closed."""
    codes = {
        "batch_wrong_crc": 2,
        "batch_length_longer": 87,
        "batch_length_negative": 2,
        "batch_length_2_31": 87,
        "batch_count_2_31": 87,
        "batch_count_higher": 87,
        "batch_null_key": 87,
        "batch_not_compressed_as_said": 87,
        "bomb_gzip": 87,
    }
    closed = ["negative_array", "negative_string", "count_of_2_31", "varint_of_10_bytes", "string_beyond", "tls_hello"]
    closed += ["http_get", "size_negative", "size_2_31", "client_id_beyond", "unknown_api", "string_not_utf8"]

    async def main() -> None:
        async with gateway(tmp_path, **SETTINGS) as serving:
            await clear(serving, await RawClient.connect(serving))
            answered = {}
            for name in codes:
                client = await RawClient.connect(serving)
                client.writer.write(corpus()[name])
                _, answer = await client.receive(0, 9)
                answered[name] = answer.responses[0].partition_responses[0].error_code
            assert answered == codes
            for name in closed:
                client = await RawClient.connect(serving)
                client.writer.write(corpus()[name])
                assert await client.closed(), name

    run(main())


def test_a_fault_is_seen(tmp_path: Path, errors: Errors, monkeypatch: pytest.MonkeyPatch) -> None:
    get = ClientTopics.get

    def faulty(topics: ClientTopics, name: str) -> Any:
        if name not in (*TOPICS, VICTIM):
            raise RuntimeError("a fault of our own")
        return get(topics, name)

    monkeypatch.setattr(ClientTopics, "get", faulty)
    with pytest.raises(AssertionError, match="a fault of our own"):
        run(fuzz(tmp_path, errors, [1], 300))


def test_the_victim_is_named_by_no_frame() -> None:
    assert not [name for name, data in corpus().items() if b"victim" in data]
    assert all(VICTIM not in name for name in (*TOPICS, *GROUPS))


def test_answers_are_looked_at() -> None:
    sent = Seed(18, 0, b"").frame(correlation=7)
    good = codec.encode_response(7, RESPONSES[18](version=0, error_code=0, api_keys=[]))[4:]
    check_answer(sent, good)
    with pytest.raises(AssertionError):
        check_answer(sent, b"\0\0\0\x08" + good[4:])
    with pytest.raises(FrameError):
        check_answer(sent, good + b"\0")
