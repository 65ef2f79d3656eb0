"""What the tests of the client share: entries, a client on a broker, and the wait for things."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from support.waiting import SECONDS

from kop.compiled import compiled
from kop.pulsar_client import Client, Position, Producer, PulsarError, _pure
from kop.pulsar_client.proto import pulsar_pb2 as pb

R = TypeVar("R")
TWINS = [pytest.param(_pure, id="plain")]
if compiled(_pure) is not _pure:
    TWINS.append(pytest.param(compiled(_pure), id="native"))

T = "persistent://public/default/t"


def metadata(producer: Producer, sequence_id: int, messages: int = 1) -> bytes:
    made = pb.MessageMetadata(producer_name=producer.name, sequence_id=sequence_id, publish_time=1)
    if messages > 1:
        made.num_messages_in_batch = messages
    return made.SerializeToString()


def send(producer: Producer, sequence_id: int, payload: bytes = b"", messages: int = 1) -> asyncio.Future[Position]:
    return producer.send(
        metadata(producer, sequence_id, messages),
        payload or b"%d" % sequence_id,
        sequence_id=sequence_id,
        highest_sequence_id=sequence_id + messages - 1,
        num_messages=messages,
    )


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


async def in_time(ask: Callable[[], Awaitable[R]]) -> R:
    """What `ask` awaits; asked again where a short time limit ended while this process, the fake broker in it, stood
    still."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return await ask()
        except PulsarError as error:
            if error.code != "Timeout" or time.monotonic() > end:
                raise


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Client]:
    made = Client(url, **({"request_timeout": 30.0} | options))
    await in_time(made.start)
    try:
        yield made
    finally:
        await made.close()
        left = [task for task in asyncio.all_tasks() if task.get_name().startswith("pulsar ")]
        await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), SECONDS)
