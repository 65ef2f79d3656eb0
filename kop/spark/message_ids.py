"""The offsets of the messages that the options startingMessageId and endingMessageId name.

Pulsar's admin REST tells them, because Kafka's protocol has no message ids. The gateway's own settings say which
namespace a topic with a short name is of, and how offsets are made.
Owns: the form of these options' values, and the name that a partition has in Pulsar.
Must not know: pyspark, how the gateway is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kop.client.offsets import Offsets, TopicPartition
from kop.pulsar_client import PulsarError, TlsOptions
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.auth import parse_auth
from kop.pulsar_client.message_offsets import MessageId, MessageOffsetError, message_offsets
from kop.schemas.access import PulsarAccess
from kop.spark.offsets import parse_json

__all__ = ["SETTINGS", "MessageBoundError", "MessageId", "PulsarAdmin", "offsets_of", "parse_messages"]

_SCHEME: Final = "persistent://"
_NAMESPACE: Final = "kop.pulsar.namespace"
_OFFSETS: Final = "kop.pulsar.offsets"
SETTINGS: Final = (_NAMESPACE, _OFFSETS)
"""The gateway's settings that say in which namespace of Pulsar a short topic name is, and how offsets of messages are
made.
"""


class MessageBoundError(Exception):
    """An error for a message id of an option whose offset could not be found; the text says what to do."""


@dataclass(frozen=True, slots=True)
class PulsarAdmin(PulsarAccess):
    """The access to Pulsar's admin REST. `offsets` is `index` or `packed`; None for the gateway's own setting
    (kop.pulsar.offsets).
    """

    offsets: str | None = None


def parse_messages(text: str) -> dict[TopicPartition, MessageId]:
    """Return the message ids of JSON such as `{"topic": {"0": "12:5:-1"}}`, by partition; ValueError if it is
    malformed.
    """
    topics = parse_json(text)
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


def offsets_of(
    admin: PulsarAdmin, settings: Mapping[str, str], wanted: Mapping[TopicPartition, MessageId], *, behind: bool
) -> Offsets:
    """Return the offset of each message, or with `behind` the offset after it; Pulsar's admin REST is asked.
    MessageBoundError if there is no such message, if Pulsar refuses or does not answer, or if it is not known how the
    gateway makes offsets.

    `settings` are the values of SETTINGS that the gateway told.
    """
    offsets = admin.offsets or settings.get(_OFFSETS)
    if offsets is None:
        raise MessageBoundError(
            f"set pulsar.offsets to the gateway's {_OFFSETS}, index or packed: this user may not ask it "
            "(DescribeConfigs on the cluster), or the servers are no gateway of Pulsar"
        )
    names = {topic: full_name(topic, settings) for topic, _ in wanted}
    try:
        return asyncio.run(_offsets_of(admin, names, wanted, packed=offsets == "packed", behind=behind))
    except (PulsarError, MessageOffsetError, ValueError) as error:
        raise MessageBoundError(
            f"set pulsar.admin.url, pulsar.auth and the message ids to what Pulsar has: {admin.url} says {error}"
        ) from error


def full_name(topic: str, settings: Mapping[str, str]) -> str:
    """Return the full name of a topic in Pulsar, `persistent://TENANT/NAMESPACE/TOPIC`. A short name is of the
    namespace that `settings`, those of the gateway, have; MessageBoundError if they have none.
    """
    local = topic.removeprefix(_SCHEME)
    if "/" in local:
        return _SCHEME + local
    if _NAMESPACE not in settings:
        raise MessageBoundError(
            f"name the topic {topic} as TENANT/NAMESPACE/{topic}, or set topicNamespace: this user may not ask the "
            f"gateway for its {_NAMESPACE} (DescribeConfigs on the cluster), or the servers are no gateway of Pulsar"
        )
    return f"{_SCHEME}{settings[_NAMESPACE]}/{local}"


async def _offsets_of(
    admin: PulsarAdmin,
    names: Mapping[str, str],
    wanted: Mapping[TopicPartition, MessageId],
    *,
    packed: bool,
    behind: bool,
) -> Offsets:
    tls = TlsOptions(ca_file=admin.ca_file, system_too=True)
    offsets: Offsets = {}
    async with Admin(admin.url, auth=parse_auth(admin.auth, tls), tls=tls) as client:
        for (topic, partition), message in wanted.items():
            first, last = await _message(client, names[topic], partition, message, packed)
            offsets[topic, partition] = last + 1 if behind else first
    return offsets


async def _message(client: Admin, name: str, partition: int, message: MessageId, packed: bool) -> tuple[int, int]:
    try:
        return await message_offsets(client, f"{name}-partition-{partition}", message, packed=packed)
    except PulsarError as error:
        if error.code != "NotFound" or partition:
            raise
    return await message_offsets(client, name, message, packed=packed)  # a topic without partitions
