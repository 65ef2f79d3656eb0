"""The offsets of the messages that the options startingMessageId and endingMessageId name.

Pulsar's admin REST tells them, because Kafka's protocol has no message ids.
Owns: the form of these options' values, and the name that a partition has in Pulsar.
Must not know: pyspark, the gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from kop.pulsar_client import PulsarError, TlsOptions
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.auth import parse_auth
from kop.pulsar_client.message_offsets import MessageId, MessageOffsetError, message_offsets
from kop.spark.offsets import Offsets, TopicPartition

_SCHEME = "persistent://"


class MessageBoundError(Exception):
    """A bound that could not be found; the text says what to do."""


@dataclass(frozen=True, slots=True)
class PulsarAdmin:
    """How Pulsar is asked. `packed` is whether the gateway has kop.pulsar.offsets=packed."""

    url: str
    auth: str = ""
    ca_file: str | None = None
    packed: bool = False
    namespace: str = "public/default"


def parse_messages(text: str) -> dict[TopicPartition, MessageId]:
    """The messages of `{"topic": {"0": "12:5:-1"}}`; ValueError says what is wrong with it."""
    try:
        topics = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error})") from None
    messages: dict[TopicPartition, MessageId] = {}
    try:
        for topic, partitions in topics.items():
            for partition, message in partitions.items():
                messages[topic, int(partition)] = MessageId.parse(message)
    except MessageOffsetError as error:
        raise ValueError(f"has a message that is none: {error}") from None
    except (AttributeError, ValueError):
        raise ValueError('is not of the form {"topic": {"0": "LEDGER:ENTRY:BATCH-INDEX"}}') from None
    if not messages:
        raise ValueError("names no partition")
    return messages


def offsets_of(admin: PulsarAdmin, wanted: Mapping[TopicPartition, tuple[int, int, int]], *, behind: bool) -> Offsets:
    """The offset of each message, or the one behind it; MessageBoundError."""
    try:
        return asyncio.run(_offsets_of(admin, wanted, behind))
    except (PulsarError, MessageOffsetError, ValueError) as error:
        raise MessageBoundError(
            f"set pulsar.admin.url, pulsar.auth and the message ids to what Pulsar has: {admin.url} says {error}"
        ) from error


async def _offsets_of(
    admin: PulsarAdmin, wanted: Mapping[TopicPartition, tuple[int, int, int]], behind: bool
) -> Offsets:
    tls = TlsOptions(ca_file=admin.ca_file, system_too=True)
    offsets: Offsets = {}
    async with Admin(admin.url, auth=parse_auth(admin.auth, tls), tls=tls) as client:
        for (topic, partition), message in wanted.items():
            local = topic.removeprefix(_SCHEME)
            name = _SCHEME + (local if "/" in local else f"{admin.namespace}/{local}")
            first, last = await _message(client, name, partition, MessageId(*message), admin.packed)
            offsets[topic, partition] = last + 1 if behind else first
    return offsets


async def _message(client: Admin, name: str, partition: int, message: MessageId, packed: bool) -> tuple[int, int]:
    try:
        return await message_offsets(client, f"{name}-partition-{partition}", message, packed=packed)
    except PulsarError as error:
        if error.code != "NotFound" or partition:
            raise
    return await message_offsets(client, name, message, packed=packed)  # a topic without partitions
