"""Pulsar's admin REST interface: topics, their policies and properties, namespaces, and looks into a topic's log.

Owns: the paths and bodies of requests, their answers as values, which of them may be repeated.
Must not know: Kafka, the binary protocol, what a caller keeps in a topic's properties.

Topics are named in full, `persistent://tenant/namespace/local`, namespaces `tenant/namespace`. Every method raises
`PulsarError`; its `code` is one of `rest.STATUS`, "ConnectionLost", "TlsError", "Timeout", "Closed", "BadAnswer" or
"InvalidTopicName", and its text says which request of which broker failed and what to do where that is known.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from kop.pulsar_client.errors import Ignoring, PulsarError
from kop.pulsar_client.rest import Rest
from kop.pulsar_client.types import TxnId

OWN_PROPERTY = "index"
"""The name of a topic property that the broker itself keeps on a plain topic and on each partition: the index of the
last message in the closed ledgers. Read it by `closed_index`; it is never written or removed here.
"""

_PARTITIONED = "application/vnd.partitioned-topic-metadata+json"
_NAMESPACE_PUT = {"compactionThreshold"}
"""The namespace policies that are set by PUT; all others are set by POST."""
_DEDUPLICATION = "deduplicationEnabled"
_RETENTION = "retention"
_PUBLISH_RATE = "publishRate"
_SILENT_SECONDS = 1.0
"""The seconds without an answer after which a change of properties looks if its topic exists: for one that does not,
Pulsar never answers.
"""


class TransactionInBuffer(NamedTuple):
    """A transaction on a partition."""

    holds: bool
    """True if the partition holds readers back at it: it has entries of it, and has seen no end of it."""
    aborted: bool
    """True if it was aborted there, whatever its coordinator says."""


class Retention(NamedTuple):
    """A retention policy: the minutes and MB for which the broker keeps entries that every subscription has
    acknowledged. -1 is no limit; (0, 0) keeps nothing.
    """

    minutes: int
    megabytes: int


FOREVER = Retention(-1, -1)


@dataclass(frozen=True, slots=True)
class PartitionedMetadata:
    """The number of partitions and the properties of a topic. `partitions` is 0 for a topic without partitions; then
    `properties` is empty: ask `Admin.properties`.
    """

    partitions: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a topic's log, as the broker shows it over REST.

    `index` (of its last message) and `broker_timestamp` (ISO 8601) are None on a broker that does not keep them,
    `num_messages` is None for a message outside a batch. `payload` is decompressed by the broker.
    """

    ledger: int
    entry: int
    index: int | None
    broker_timestamp: str | None
    num_messages: int | None
    headers: Mapping[str, str]
    payload: bytes


@dataclass(frozen=True, slots=True)
class EntryHead:
    """The metadata of an entry, as the broker tells it over REST."""

    index: int | None
    """The index of the entry's last message; None from a broker that keeps none."""
    num_messages: int
    producer_name: str
    sequence_id: int
    """The sequence id of the entry's first message; -1 if it has none."""
    append_time: int
    """The time at which the broker took the entry, in ms since 1970; on a broker that keeps no such time, the publish
    time of its producer.
    """
    aborted: bool = False
    """True if the entry belongs to an aborted transaction, so that readers do not get it."""
    marker: bool = False
    """True if the entry is one of Pulsar's markers, or made like one, so that readers do not get it."""

    @property
    def hidden(self) -> bool:
        """True if readers do not get the entry, supposing that its transaction has ended."""
        return self.aborted or self.marker


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The state of a topic's compaction: `status` is NOT_RUN, RUNNING, SUCCESS or ERROR; `error` says what failed."""

    status: str
    error: str


def topic_path(topic: str) -> str:
    """Return the path of a topic in the REST: `persistent://t/ns/x` -> `persistent/t/ns/x`, percent-encoded.
    PulsarError InvalidTopicName for anything else.
    """
    domain, separator, rest = topic.partition("://")
    parts = rest.split("/")
    if domain not in {"persistent", "non-persistent"} or not separator or len(parts) != 3 or not all(parts):
        raise PulsarError("InvalidTopicName", f"{topic!r} is no persistent://TENANT/NAMESPACE/TOPIC")
    return "/".join([domain, *(quote(part, safe="") for part in parts)])


def namespace_path(namespace: str) -> str:
    """Return the path of a namespace in the REST: `t/ns`, percent-encoded. PulsarError InvalidTopicName for anything
    else.
    """
    parts = namespace.split("/")
    if len(parts) != 2 or not all(parts):
        raise PulsarError("InvalidTopicName", f"{namespace!r} is no TENANT/NAMESPACE")
    return "/".join(quote(part, safe="") for part in parts)


RECOVERED: Final = frozenset({"Ready", "NoSnapshot"})
"""The states of a transaction buffer in which it knows all transactions of its partition."""


class Admin(Rest):
    """One Pulsar cluster by its admin URL (`http://host:8080`, or several `http://a:8080,http://b:8080`).

    `timeout` (seconds) holds for each call as a whole, attempts and pauses included, but those that say so. Nothing is
    opened before the first call. Calls that change nothing when repeated are repeated after a lost connection, 429 and
    5xx; the others only where the broker surely did nothing: after "ConnectionLost" or "Timeout" of a `create_...` its
    caller has to look.
    """

    # -- the cluster

    async def version(self) -> str:
        """Return the version of the Pulsar broker that answers."""
        return (await self._call("GET", "brokers/version")).body.decode()

    async def clusters(self) -> list[str]:
        """Return the names of the clusters that this one knows, its own among them."""
        return [name for name in await self._list("clusters") if name != "global"]

    async def broker_config(self) -> dict[str, str]:
        """Return the broker's settings as they are in force, all as text."""
        return await self._object("brokers/configuration/runtime")

    async def tenant_admins(self, tenant: str) -> list[str]:
        """Return the roles that administer a tenant. PulsarError NotFound if there is no such tenant."""
        answer = await self._object(f"tenants/{quote(tenant, safe='')}", "adminRoles")
        return list(answer["adminRoles"])

    # -- namespaces

    async def namespace_exists(self, namespace: str) -> bool:
        """Return true if the namespace exists."""
        with Ignoring("NotFound"):
            await self.namespace_policies(namespace)
            return True
        return False

    async def create_namespace(self, namespace: str, policies: Mapping[str, Any] | None = None) -> None:
        """Create a namespace with policies by Pulsar's names, such as `retention_policies`. PulsarError Conflict if it
        exists.
        """
        await self._call("PUT", f"namespaces/{namespace_path(namespace)}", policies and dict(policies), repeat=False)

    async def namespace_policies(self, namespace: str) -> dict[str, Any]:
        """Return a namespace's policies, by the names of the stored form (`retention_policies`,
        `encryption_required`).
        """
        return await self._object(f"namespaces/{namespace_path(namespace)}")

    async def namespace_policy(self, namespace: str, name: str) -> Any:
        """Return one policy of a namespace by the name in its URL (`retention`, `deduplication`); None if it is not
        set.
        """
        return await self._json("GET", f"namespaces/{namespace_path(namespace)}/{name}")

    async def set_namespace_policy(self, namespace: str, name: str, value: Any) -> None:
        """Set one policy of a namespace by the name in its URL. It is stored on return, and in force once the brokers
        have heard of it.
        """
        method = "PUT" if name in _NAMESPACE_PUT else "POST"
        await self._call(method, f"namespaces/{namespace_path(namespace)}/{name}", value)

    async def set_namespace_retention(self, namespace: str, retention: Retention) -> None:
        """Set a namespace's retention, for topics that have none of their own."""
        await self.set_namespace_policy(namespace, _RETENTION, _retention_json(retention))

    async def get_namespace_retention(self, namespace: str) -> Retention | None:
        """Return the namespace's retention; None if the broker's default is in force."""
        return _retention(await self.namespace_policy(namespace, _RETENTION))

    # -- topics

    async def list_partitioned(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's partitioned topics, without their partitions."""
        return await self._list(f"persistent/{namespace_path(namespace)}/partitioned")

    async def list_topics(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's plain topics, and of the partitions (`...-partition-0`) of the
        others.
        """
        return await self._list(f"persistent/{namespace_path(namespace)}")

    async def create_partitioned(self, topic: str, partitions: int, properties: Mapping[str, str]) -> None:
        """Create a partitioned topic with its properties in one step. PulsarError Conflict if a topic of this name
        exists, partitioned or not. It may take six times as long as other requests: there may be many partitions.
        """
        body = {"partitions": partitions, "properties": dict(properties)}
        await self._call(
            "PUT", f"{topic_path(topic)}/partitions", body, content_type=_PARTITIONED, repeat=False, times=6
        )

    async def partitioned_metadata(self, topic: str) -> PartitionedMetadata:
        """Return a topic's number of partitions and properties; never creates it. PulsarError NotFound if there is no
        such topic.
        """
        query = {"checkAllowAutoCreation": "false"}
        answer = await self._object(f"{topic_path(topic)}/partitions", "partitions", query=query)
        return PartitionedMetadata(answer["partitions"], answer.get("properties") or {})

    async def grow(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a topic. PulsarError BadRequest if it has more already; the same number
        changes nothing.
        """
        await self._call("POST", f"{topic_path(topic)}/partitions", partitions)

    async def create_missed_partitions(self, topic: str) -> None:
        """Make those partitions of a topic that do not exist. PulsarError NotFound if there is no such partitioned
        topic.
        """
        await self._call("POST", f"{topic_path(topic)}/createMissedPartitions")

    async def delete_partitioned(self, topic: str, force: bool = True) -> None:
        """Delete a partitioned topic, with `force` also while clients use it. Without, PulsarError Conflict or
        PreconditionFailed then. It may take six times as long as other requests: Pulsar deletes the partitions first.
        """
        query = {"force": json.dumps(force)}
        await self._call("DELETE", f"{topic_path(topic)}/partitions", query=query, repeat=False, times=6)

    async def delete_plain(self, topic: str, force: bool = True) -> None:
        """Delete a topic without partitions, with `force` also while clients use it. PulsarError Conflict if it is
        partitioned.
        """
        await self._call("DELETE", topic_path(topic), query={"force": json.dumps(force)}, repeat=False)

    # -- properties

    async def properties(self, topic: str) -> dict[str, str]:
        """Return a topic's properties, without `index`, which is the broker's own."""
        properties = await self._properties(topic)
        properties.pop(OWN_PROPERTY, None)
        return properties

    async def closed_index(self, partition: str) -> int | None:
        """Return the index of the last message in the closed ledgers of a plain topic or one partition.

        -1 before its first ledger is closed, None on a broker that keeps no index. It is still there after retention
        has emptied the log: the next message gets this number plus one.
        """
        index = (await self._properties(partition)).get(OWN_PROPERTY)
        return None if index is None else int(index)

    async def set_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Set these properties of a topic; others stay. PulsarError NotFound, after about a second, if there is no such
        topic; BadRequest if the broker's own `index` is among them.
        """
        call = asyncio.ensure_future(
            self._call("PUT", f"{topic_path(topic)}/properties", checked_properties(properties))
        )
        try:
            # docs/quirks.md, "Properties of a topic that is not there are never answered"
            while not (await asyncio.wait({call}, timeout=_SILENT_SECONDS))[0]:
                await self._properties(topic)
            await call
        finally:
            call.cancel()

    async def remove_property(self, topic: str, key: str) -> None:
        """Remove one property of a topic; it is no error if it is not there. PulsarError BadRequest for the broker's
        own `index`.
        """
        checked_properties({key: ""})
        await self._call("DELETE", f"{topic_path(topic)}/properties", query={"key": key})

    async def _properties(self, topic: str) -> dict[str, str]:
        return dict(await self._json("GET", f"{topic_path(topic)}/properties") or {})

    # -- policies of a topic: stored first, in force a moment later; read them back with `applied`

    async def policy(self, topic: str, name: str, *, applied: bool = False) -> Any:
        """Return one policy of a topic; None if it is not set. With `applied`, the policy in force, from whatever level
        it comes.
        """
        return await self._json("GET", f"{topic_path(topic)}/{name}", query={"applied": "true"} if applied else None)

    async def set_policy(self, topic: str, name: str, value: Any) -> None:
        """Set one policy of a topic by the name in its URL, such as `maxConsumers`. PulsarError NotFound if there is no
        such topic.
        """
        await self._call("POST", f"{topic_path(topic)}/{name}", value)

    async def set_retention(self, topic: str, retention: Retention) -> None:
        """Set a topic's retention. PulsarError BadRequest if one limit is 0 and the other is not."""
        await self.set_policy(topic, _RETENTION, _retention_json(retention))

    async def get_retention(self, topic: str, *, applied: bool = False) -> Retention | None:
        """Return a topic's retention; None if it has none of its own. With `applied`, the one in force, from whatever
        level it comes.
        """
        return _retention(await self.policy(topic, _RETENTION, applied=applied))

    async def lift_backlog_quotas(self, topic: str) -> None:
        """Remove the limits on the backlog of a topic's subscriptions: the broker refuses a retention below the quotas'
        sizes.
        """
        unlimited = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
        for kind in ("destination_storage", "message_age"):
            await self._call("POST", f"{topic_path(topic)}/backlogQuota", unlimited, query={"backlogQuotaType": kind})

    async def set_deduplication(self, topic: str, enabled: bool) -> None:
        """Set if the broker drops entries that a producer of the same name sends twice to the topic."""
        await self.set_policy(topic, _DEDUPLICATION, enabled)

    async def get_deduplication(self, topic: str, *, applied: bool = False) -> bool | None:
        """Return true if deduplication is on by the topic's own policy; None if that is not set. With `applied`, by the
        policy in force, from whatever level it comes.
        """
        enabled: bool | None = await self.policy(topic, _DEDUPLICATION, applied=applied)
        return enabled

    async def set_compaction_threshold(self, topic: str, size: int) -> None:
        """Set the bytes after which the broker compacts the topic: each time that so many have come since the last
        compaction; 0 for never.
        """
        await self.set_policy(topic, "compactionThreshold", size)

    async def get_compaction_threshold(self, topic: str, *, applied: bool = False) -> int | None:
        """Return the bytes after which the broker compacts the topic; None if that is not set. With `applied`, the
        number in force, from whatever level it comes.
        """
        threshold: int | None = await self.policy(topic, "compactionThreshold", applied=applied)
        return threshold

    async def keep_when_idle(self, topic: str) -> None:
        """Exclude the topic from the broker's deletion of idle topics (`inactiveTopicPolicies`)."""
        await self.set_policy(topic, "inactiveTopicPolicies", IDLE_TOPICS_STAY)

    async def stays_when_idle(self, topic: str) -> bool:
        """Return true if the broker's deletion of idle topics leaves the topic alone, by the policy that is in force
        now.
        """
        applied: Any = await self.policy(topic, "inactiveTopicPolicies", applied=True)
        return applied is not None and not applied["deleteWhileInactive"]

    async def set_max_message_size(self, topic: str, size: int) -> None:
        """Set the largest size of an entry of the topic in bytes, up to the broker's own limit; 0 for that limit
        alone.
        """
        await self.set_policy(topic, "maxMessageSize", size)

    async def get_max_message_size(self, topic: str, *, applied: bool = False) -> int | None:
        """Return the largest size of an entry of the topic in bytes; None if it is not set. With `applied`, the size in
        force, from whatever level it comes.
        """
        size: int | None = await self.policy(topic, "maxMessageSize", applied=applied)
        return size

    async def has_publish_rate(self, topic: str) -> bool:
        """Return true if the topic, or its namespace for each topic, limits the rate of publishing. A broker-wide limit
        is not seen.
        """
        rate = await self.policy(topic, _PUBLISH_RATE)
        if rate is None:
            namespace = topic.partition("://")[2].rpartition("/")[0]
            rate = await self.namespace_policy(namespace, _PUBLISH_RATE)
        return any(value > 0 for value in (rate or {}).values())

    async def schema(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """Return a version of the topic's schema, the latest if none is named: `type`, `data` (its text), `properties`
        and `version`. PulsarError NotFound if there is none.
        """
        path = f"schemas/{topic_path(topic).partition('/')[2]}/schema"
        return await self._object(path if version is None else f"{path}/{version}", "type")

    async def schemas(self, topic: str) -> list[dict[str, Any]]:
        """Return all versions of the topic's schema, each as of `schema`. PulsarError NotFound if there is none."""
        path = f"schemas/{topic_path(topic).partition('/')[2]}/schemas"
        versions: list[dict[str, Any]] = (await self._object(path, "getSchemaResponses"))["getSchemaResponses"]
        return versions

    # -- a look into the log of a plain topic or one partition

    async def internal_stats(self, partition: str) -> dict[str, Any]:
        """Return the topic's ledgers, `lastConfirmedEntry` and cursors. The last ledger's own count is 0 until it is
        closed.
        """
        return await self._object(f"{topic_path(partition)}/internalStats")

    async def stats(self, partition: str, *, backlogs: bool = False) -> dict[str, Any]:
        """Return the topic's rates, sizes, producers and subscriptions; with `backlogs` the size and the age of each
        subscription's backlog, too.

        The latter are `backlogSize` (bytes) and `earliestMsgPublishTimeInBacklog` (ms since 1970), for which the broker
        reads an entry.
        """
        more = {"subscriptionBacklogSize": "true", "getEarliestTimeInBacklog": "true"} if backlogs else None
        return await self._object(f"{topic_path(partition)}/stats", query=more)

    async def transaction_buffer(self, partition: str) -> dict[str, Any]:
        """Return state and open transactions of a partition's transaction buffer; for its states see `RECOVERED`.

        PulsarError on a broker without transactions; its code is not always the same.
        """
        path = f"transactions/transactionBufferStats/{topic_path(partition).partition('/')[2]}"
        return await self._object(path, root="admin/v3")

    async def transaction_in_buffer(self, partition: str, txn: TxnId) -> TransactionInBuffer:
        """Return the state of a transaction on a partition. PulsarError on a broker without transactions; its code is
        not always the same.
        """
        name = topic_path(partition).partition("/")[2]
        path = f"transactions/transactionInBufferStats/{name}/{txn.most}/{txn.least}"
        answer = await self._object(path, root="admin/v3")
        aborted = bool(answer.get("aborted"))
        return TransactionInBuffer(answer.get("startPosition") is not None and not aborted, aborted)

    async def message_id_by_time(self, partition: str, timestamp: int) -> tuple[int, int]:
        """Return (ledger, entry) of the first entry that the broker took at or after `timestamp` (ms since 1970).

        If there is none, the position behind the last entry; no such entry exists yet.
        """
        message_id = await self._object(f"{topic_path(partition)}/messageid/{timestamp}", "ledgerId", "entryId")
        return message_id["ledgerId"], message_id["entryId"]

    async def entry(self, partition: str, ledger: int, entry: int) -> StoredEntry:
        """Read one entry of a topic. PulsarError NotFound if it does not exist, or is not kept any more."""
        answer = await self._call("GET", f"{topic_path(partition)}/ledger/{ledger}/entry/{entry}")
        headers = answer.headers
        index = headers.get("X-Pulsar-Broker-Entry-METADATA-index")
        count = headers.get("X-Pulsar-num-batch-message")
        return StoredEntry(
            ledger,
            entry,
            index=None if index is None else int(index),
            broker_timestamp=headers.get("X-Pulsar-Broker-Entry-METADATA-timestamp"),
            num_messages=None if count is None else int(count),
            headers={name: value for name, value in headers.items() if name.lower().startswith("x-pulsar-")},
            payload=answer.body,
        )

    async def entry_head(self, partition: str, ledger: int, entry: int) -> EntryHead:
        """Return the metadata of one entry without its payload, also of an entry that the broker keeps back from
        readers.

        PulsarError if the entry does not exist, with the broker's reason in its text; its code is not always the same.
        """
        headers = (await self._call("HEAD", f"{topic_path(partition)}/ledger/{ledger}/entry/{entry}")).headers
        index = headers.get("X-Pulsar-Broker-Entry-METADATA-index")
        time = headers.get("X-Pulsar-Broker-Entry-METADATA-timestamp") or headers.get("X-Pulsar-publish-time")
        return EntryHead(
            None if index is None else int(index),
            int(headers.get("X-Pulsar-num-batch-message", "1")),
            headers.get("X-Pulsar-producer-name", ""),
            int(headers.get("X-Pulsar-sequence-id", "-1")),
            0 if time is None else round(datetime.fromisoformat(time).timestamp() * 1000),
            headers.get("X-Pulsar-txn-aborted", "").lower() == "true",
            "X-Pulsar-marker-type" in headers,
        )

    async def truncate(self, partition: str) -> None:
        """Delete all closed ledgers, even if subscriptions still need them. The current ledger's entries stay."""
        await self._call("DELETE", f"{topic_path(partition)}/truncate")

    async def unload(self, topic: str) -> None:
        """Unload the topic (or one partition) from its broker: it begins a new ledger, and its clients are
        disconnected.
        """
        await self._call("PUT", f"{topic_path(topic)}/unload")

    async def compact(self, topic: str) -> None:
        """Start a compaction of the topic. PulsarError Conflict while one runs."""
        await self._call("PUT", f"{topic_path(topic)}/compaction", repeat=False)

    async def compaction_status(self, partition: str) -> CompactionStatus:
        """Return the status of the running, or else the last, compaction of a partition."""
        compaction = await self._object(f"{topic_path(partition)}/compaction", "status")
        return CompactionStatus(compaction["status"], compaction.get("lastError") or "")


IDLE_TOPICS_STAY: Mapping[str, Any] = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
"""The value of `inactiveTopicPolicies`, of a topic or a namespace, that switches the deletion of idle topics off."""


def checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for a request that sets them. PulsarError BadRequest if the broker's own property is among
    them.
    """
    if OWN_PROPERTY in properties:
        raise PulsarError("BadRequest", f"the property {OWN_PROPERTY!r} is the broker's own")
    return dict(properties)


def _retention_json(retention: Retention) -> dict[str, int]:
    return {"retentionTimeInMinutes": retention.minutes, "retentionSizeInMB": retention.megabytes}


def _retention(answer: Any) -> Retention | None:
    return None if answer is None else Retention(answer["retentionTimeInMinutes"], answer["retentionSizeInMB"])
