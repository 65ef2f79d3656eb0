"""The checks of a topic in Pulsar before records of Kafka clients are written to it: deduplication and retention; and,
before a batch is stored as it came, the property that says so.

Owns: both checks, their answers of the last half minute, and setting what is missing; that property.
Must not know: producers, entries.

A topic that the gateway made has both from its beginning, unless somebody took them away. A topic that Pulsar's side
made has what its namespace says, and Pulsar comes with a retention of nothing: it then drops records that no
subscription holds soon after it closes their ledger, although Kafka clients were told that the records are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final
from uuid import UUID

from kop.background import for_each
from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import Retention
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, kafka_error
from kop.storage.pulsar.layout import CONFIGS_PROPERTY, RAW_PROPERTY, namespace_of
from kop.storage.pulsar.topics import policies
from kop.storage.pulsar.topics.table import PulsarTopics

FRESH_SECONDS: Final = 30.0
_AGAIN_AT_ONCE: Final = 50
"""The number of topics whose retention is looked at again in one round of upkeep."""
_SIDE_BY_SIDE: Final = 8
_AGAIN_SECONDS: Final = 30.0
_NOT_PERMITTED: Final = frozenset({"Forbidden", "NotAllowed", "BadRequest", "PreconditionFailed", "AuthorizationError"})
"""The codes of refusals that the same request meets until somebody changes a permission or a setting."""
_HELP: Final = (
    "set it (pulsar-admin topics set-retention, or namespaces set-retention for all topics of the namespace), or let "
    "the gateway set it: topicLevelPoliciesEnabled=true in broker.conf, and the gateway's role an admin of the tenant"
)

log = logging.getLogger(__name__)


class OncePerTopic:
    """One question about each topic: callers at the same time share it, and its answer is valid for half a minute.

    `ask(topic_id, first)` raises the error of a topic that cannot be written to; `first` is true if it was never
    answered before. A failure is not kept.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ask: Callable[[UUID, bool], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._ask = ask
        self._asked: dict[UUID, tuple[float, asyncio.Task[None]]] = {}

    @property
    def topics(self) -> list[UUID]:
        """The topics that have an answer, or wait for one."""
        return list(self._asked)

    async def __call__(self, topic_id: UUID) -> None:
        """Ask the question about a topic, unless there is an answer of the last 30 seconds, and wait for the answer.
        Raises the error if the topic cannot be written to.
        """
        now = self._loop.time()
        asked = self._asked.get(topic_id)
        if asked is None or now - asked[0] > FRESH_SECONDS:
            task = self._loop.create_task(self._ask(topic_id, asked is None))
            asked = self._asked[topic_id] = now, task
            task.add_done_callback(lambda done: self._ended(topic_id, done))
        await asyncio.shield(asked[1])

    def _ended(self, topic_id: UUID, task: asyncio.Task[None]) -> None:
        failed = task.cancelled() or task.exception() is not None  # all callers may have been cancelled
        asked = self._asked.get(topic_id)
        if failed and asked is not None and asked[1] is task:  # else it was asked again meanwhile
            del self._asked[topic_id]

    def forget(self, topic_id: UUID) -> None:
        """Forget the answer about a topic that is gone."""
        self._asked.pop(topic_id, None)


class WriteChecks:
    """The checks of topics before records are written to them, and the mark of those with batches that are stored as
    they came.
    """

    def __init__(self, context: PulsarContext, topics: PulsarTopics, policy: Callable[[TopicInfo], LogPolicy]) -> None:
        self._context = context
        self._topics = topics
        self._policy = policy
        self.deduplicates = OncePerTopic(context.loop, self._deduplicate)
        """The check that a topic deduplicates, which idempotent producers need and somebody may have turned off; it is
        turned on.
        """
        self.retains = OncePerTopic(context.loop, self._retain)
        """The check that a topic keeps records after their ledger is closed. KopError if it does not."""
        self._looked_at = 0
        self._marking: set[UUID] = set()
        """The ids of topics whose property is being set."""

    def forget(self, topic_id: UUID) -> None:
        """Forget the answers about a topic that is gone."""
        self.deduplicates.forget(topic_id)
        self.retains.forget(topic_id)

    async def look_again(self) -> None:
        """Ask again about the retention of topics that are written to, 50 of them in each round, and set it where it is
        missing.

        A producer that stays open is not asked about otherwise.
        """
        topics = self.retains.topics
        self._looked_at %= max(len(topics), 1)
        turn = topics[self._looked_at : self._looked_at + _AGAIN_AT_ONCE]
        self._looked_at += _AGAIN_AT_ONCE
        await for_each(turn, self.retains, at_once=_SIDE_BY_SIDE, limit=_AGAIN_SECONDS, failed=_not_retained)

    # --- batches that are stored as Kafka clients sent them: Pulsar's compaction fails on these, for good

    def may_write_raw(self, topic_id: UUID) -> bool:
        """Return true if a batch may be stored as it came now; else the topic's property for that is set in the
        background.
        """
        if self._is_marked(topic_id):
            return True
        self._context.spawn(self.mark_raw(topic_id))
        return False

    async def mark_raw(self, topic_id: UUID) -> None:
        """Set the property of a topic that it may hold batches as they came, unless it has it, or that is under way:
        then this returns at once. KopError if it fails.
        """
        if self._is_marked(topic_id) or topic_id in self._marking:
            return
        self._marking.add(topic_id)
        try:
            await self._topics.set_property(topic_id, RAW_PROPERTY, "true")
        finally:
            self._marking.discard(topic_id)

    def _is_marked(self, topic_id: UUID) -> bool:
        return RAW_PROPERTY in self._topics.pulsar(topic_id).properties

    # --- deduplication

    async def _deduplicate(self, topic_id: UUID, first: bool) -> None:
        context, known = self._context, self._topics.pulsar(topic_id)
        name, ours = known.full_name, not first or CONFIGS_PROPERTY in known.properties
        try:
            if await context.admin.get_deduplication(name, applied=True):
                return
        except PulsarError:
            if ours:
                return  # it was on; a Pulsar broker that comes back from a crash cannot tell for a while
            raise
        if ours:
            context.faults.count(Fault.TOPIC_SETTINGS_DEDUPLICATION_TURNED_OFF)
            text = f"deduplication of {name} was turned off: it is turned on again, idempotent producers rest on it"
            context.faults.tell(("deduplication", name), text)
        else:
            log.info("deduplication is turned on for %s: an idempotent producer writes to it", name)
        await context.admin.set_deduplication(name, True)
        await policies.wait_for(lambda: context.admin.get_deduplication(name, applied=True), True)

    # --- retention

    async def _retain(self, topic_id: UUID, first: bool) -> None:
        context, topic, known = self._context, self._topics.by_id(topic_id), self._topics.pulsar(topic_id)
        if topic is None or topic.internal:  # the namespace of internal topics keeps everything
            return
        name, ours = known.full_name, not first or CONFIGS_PROPERTY in known.properties
        try:
            retention = await self._retention(name)
        except PulsarError as error:
            if ours and error.retriable:
                return  # it kept records before, and its Pulsar broker cannot tell now
            raise self._refused(name, error) from error
        if policies.keeps(retention):
            return
        wanted = policies.retention_of(self._policy(topic))
        context.faults.count(Fault.TOPIC_SETTINGS_WITHOUT_RETENTION)
        context.faults.tell(
            ("retention", name),
            f"{name} keeps nothing that its subscriptions have read (retention {retention.minutes} minutes, "
            f"{retention.megabytes} MB), and a Kafka client writes to it: the topic gets the retention of its Kafka "
            f"configs, {wanted.minutes} minutes and {wanted.megabytes} MB (-1: no limit). Set another one with "
            "retention.ms and retention.bytes, or pulsar-admin topics set-retention",
            "retention",
        )
        try:
            await policies.set_retention(context.admin, name, wanted)
            await policies.wait_for(lambda: context.admin.get_retention(name, applied=True), wanted)
        except PulsarError as error:
            raise self._refused(name, error) from error

    async def _retention(self, name: str) -> Retention:
        """Return the retention in force for a topic, at whatever level it is set. PulsarError if Pulsar refuses it or
        does not answer.
        """
        admin = self._context.admin
        try:
            return await admin.get_retention(name, applied=True) or Retention(0, 0)
        except PulsarError as error:
            if error.code != "NotAllowed":
                raise
        # The Pulsar broker has no topic policies: the namespace's retention is in force, or the Pulsar broker's own.
        retention = await admin.get_namespace_retention(namespace_of(name))
        if retention is not None:
            return retention
        settings = await admin.broker_config()
        return Retention(
            int(settings.get("defaultRetentionTimeInMinutes") or 0), int(settings.get("defaultRetentionSizeInMB") or 0)
        )

    def _refused(self, name: str, error: PulsarError) -> KopError:
        """Return the error for a client's write, since a record that Pulsar would drop is not accepted; count and log
        it. POLICY_VIOLATION if Pulsar does not permit that retention is set.
        """
        refusal = kafka_error(
            error,
            f"cannot write to {name}: its retention is nothing or unknown, so that Pulsar may "
            "drop records soon after they were acknowledged, and cannot be set",
        )
        if error.code in _NOT_PERMITTED:
            refusal = BackendError(f"{refusal.message}; {_HELP}", ErrorCode.POLICY_VIOLATION)
        self._context.faults.count(Fault.WRITES_REFUSED_WITHOUT_RETENTION)
        self._context.faults.tell(("no retention", name), refusal.message, "no retention")
        return refusal


def _not_retained(topic_id: UUID, error: Exception) -> None:
    """Ignore a failed look at a topic's retention: it was counted and logged by the look."""
    log.debug("retention of topic %s: %r", topic_id, error)
