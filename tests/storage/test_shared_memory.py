"""Several brokers on one memory engine: who leads a log, who hears of changes, what stays when they go."""

from __future__ import annotations

import time

import pytest

from kop.errors import ErrorCode, KopError
from kop.records.batch import build_at
from kop.storage.base import Engine, LiveBroker, LogPolicy, TopicInfo
from kop.storage.memory.settings import MemorySettings
from kop.storage.memory.shared import SharedMemory
from kop.storage.partition import AppendFuture


def policy(topic: TopicInfo) -> LogPolicy:
    return LogPolicy()


async def joined(shared: SharedMemory, node_id: int) -> Engine:
    engine = await shared.open_engine(policy=policy, settings=MemorySettings(maintain=False))
    await engine.join(LiveBroker(node_id, "127.0.0.1", 9000 + node_id))
    return engine


async def append(engine: Engine, topic: TopicInfo, value: bytes) -> int:
    """Append as a coordinator does: to the log as this broker sees it."""
    log = engine.log(topic.topic_id, 0)
    assert log is not None
    batch, header = build_at(1, [(b"k", value)])
    waiter = AppendFuture()
    log.submit(batch, header, now_ms=time.time_ns() // 1_000_000, waiter=waiter, place=0)
    return (await waiter.future).base_offset


async def test_a_new_leader_knows_what_the_former_one_wrote() -> None:
    shared = SharedMemory()
    first, second = await joined(shared, 1), await joined(shared, 2)
    topic = await first.topics.create("__state", 1, {}, internal=True)
    log, seen_by_second = first.log(topic.topic_id, 0), second.log(topic.topic_id, 0)
    assert log is not None
    assert seen_by_second is not None
    await log.lead(lambda: None)
    batch, header = build_at(1, [(b"k", b"a")])
    waiter = AppendFuture()
    log.submit(batch, header, now_ms=1, waiter=waiter, place=0)
    await seen_by_second.lead(lambda: None)
    assert seen_by_second.high_watermark == 1
    assert (await waiter.future).base_offset == 0
    await second.close()
    await first.close()


async def test_only_the_leader_writes_and_the_former_one_hears_of_it() -> None:
    shared = SharedMemory()
    first, second = await joined(shared, 1), await joined(shared, 2)
    topic = await first.topics.create("__state", 1, {}, internal=True)
    log, seen_by_second = first.log(topic.topic_id, 0), second.log(topic.topic_id, 0)
    assert log is not None
    assert seen_by_second is not None
    lost: list[int] = []
    await log.lead(lambda: lost.append(1))
    assert log.leads
    assert not seen_by_second.leads
    assert await append(first, topic, b"a") == 0
    with pytest.raises(KopError, match="another broker writes to __state-0") as caught:
        await append(second, topic, b"b")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await seen_by_second.lead(lambda: lost.append(2))
    assert lost == [1]
    assert await append(second, topic, b"b") == 1
    with pytest.raises(KopError):
        await append(first, topic, b"c")
    await log.resign()  # of what it does not lead: nothing
    assert seen_by_second.leads
    await second.close()
    assert not seen_by_second.leads
    assert first.log(topic.topic_id, 0) is log, "the same object each time"
    await first.close()


async def test_brokers_hear_of_one_another_until_they_close() -> None:
    shared = SharedMemory()
    heard: list[str] = []
    engines = []
    for node_id in (1, 2):
        engine = await joined(shared, node_id)
        engine.on_brokers(lambda n=node_id: heard.append(f"brokers to {n}"))  # type: ignore[misc]
        engine.on_state(lambda n=node_id: heard.append(f"value to {n}"))  # type: ignore[misc]
        engine.topics.on_change(lambda old, new, n=node_id: heard.append(f"topic to {n}"))  # type: ignore[misc]
        engines.append(engine)
    assert heard == ["brokers to 1"]
    heard.clear()
    await engines[0].put_state("k", "v")
    assert await engines[1].get_state("k") == "v"
    await engines[1].topics.create("t", 1, {})
    assert heard == ["value to 2", "topic to 1", "topic to 2"]
    heard.clear()
    assert [broker.node_id for broker in engines[1].brokers] == [1, 2]
    with pytest.raises(KopError, match="broker 2 is live already"):
        await joined(shared, 2)
    await engines[0].close()
    await engines[0].close()
    await engines[1].topics.create("t2", 1, {})
    assert heard == ["brokers to 2", "topic to 2"]
    await engines[1].close()


async def test_what_was_stored_outlives_the_brokers() -> None:
    shared = SharedMemory()
    engine = await joined(shared, 1)
    topic = await engine.topics.create("t", 1, {})
    assert await append(engine, topic, b"v") == 0
    await engine.close()
    again = await joined(shared, 1)
    assert again.topics.get("t") == topic
    log = again.log(topic.topic_id, 0)
    assert log is not None
    assert log.high_watermark == 1
    await again.close()
