"""What the cases of aiokafka share: the suite, its clients as context managers, topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from suite import Run, Suite, same

T = TypeVar("T")
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
suite = Suite("aiokafka", aiokafka.__version__)


@contextlib.asynccontextmanager
async def admin(run: Run) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**run.aiokafka)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def producer(run: Run, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(**run.aiokafka, **config)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@contextlib.asynccontextmanager
async def consumer(run: Run, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    defaults: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    client = AIOKafkaConsumer(*topics, **(run.aiokafka | defaults | config))
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def eventually(check: Callable[[], Awaitable[T | None]], seconds: float = 10) -> T:
    """Call `check` until it returns something true without raising."""
    end = time.monotonic() + seconds
    while True:
        try:
            value = await check()
            if value:
                return value
            error: Exception = AssertionError(f"still {value!r} after {seconds:g} s")
        except Exception as caught:
            error = caught
        if time.monotonic() > end:
            raise error
        await asyncio.sleep(0.1)


async def refused(error: type[Exception], what: Awaitable[Any]) -> None:
    try:
        answer = await what
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{type(other).__name__} instead of {error.__name__}: {other}") from other
    raise AssertionError(f"no {error.__name__} but {answer!r}")


async def create(a: AIOKafkaAdminClient, topic: str, partitions: int = 1, factor: int = 1, **configs: str) -> int:
    """The error code of CreateTopics."""
    settings = {k.replace("_", "."): v for k, v in configs.items()}
    if -1 in (partitions, factor):  # aiokafka wants assignments then; -1 goes out with an empty list of them.
        new = NewTopic(topic, partitions, factor, {}, settings)
    else:
        new = NewTopic(topic, partitions, factor, topic_configs=settings)
    answer = await a.create_topics([new])
    return int(answer.topic_errors[0][1])


async def visible(a: AIOKafkaAdminClient, topic: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        description: dict[str, Any] = (await a.describe_topics([topic]))[0]
        return (
            description
            if description["error_code"] == 0 and all(p["leader"] >= 0 for p in description["partitions"])
            else None
        )

    return await eventually(look)


async def make_topic(run: Run, hint: str = "t", partitions: int = 1, **configs: str) -> str:
    topic = run.name(hint)
    async with admin(run) as a:
        same(await create(a, topic, partitions, 1, **configs), 0, "CreateTopics")
        await visible(a, topic)
    return topic


async def fill(run: Run, topic: str, count: int, partition: int = 0, start: int = 0, **config: Any) -> None:
    async with producer(run, **config) as p:
        sent = [await p.send(topic, b"v%d" % i, b"k%d" % i, partition=partition) for i in range(start, start + count)]
        await asyncio.gather(*sent)


async def take(client: AIOKafkaConsumer, count: int, seconds: float = 15) -> list[Any]:
    records: list[Any] = []
    end = time.monotonic() + seconds
    while len(records) < count and time.monotonic() < end:
        for batch in (await client.getmany(timeout_ms=200)).values():
            records += batch
    same(len(records), count, "records consumed")
    return records


def clean(run: Run, topics: list[str]) -> None:
    async def delete() -> None:
        async with admin(run) as a:
            await a.delete_topics(topics)

    asyncio.run(asyncio.wait_for(delete(), 10))


suite.cleanup = clean


QUICK: dict[str, Any] = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 200}


def owns(client: AIOKafkaConsumer) -> set[int]:
    return {tp.partition for tp in client.assignment()}
