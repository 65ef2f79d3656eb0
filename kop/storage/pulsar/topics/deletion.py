"""The check that a topic is still there, and taking back what a returning producer brought back.

Owns: that question and its answers of just now; when a partition that came back is deleted again.
Must not know: offsets, batches, how partitions of no topic are deleted (`strays.py`).

See docs/quirks.md, "Clients that come back bring deleted topics back". `DeletionGuard` asks before a producer comes
back, and once more when it is attached, before it sends: the topic may go in between. If it is gone by then, the empty
one that the producer made is deleted again. A partition is asked for, too, a broker that deletes a topic says so in its
properties first, and the partitions that had producers are looked at when a topic turns out to be gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from kop import background
from kop.errors import ErrorCode, PeerError
from kop.pulsar_client import Producer, PulsarError
from kop.pulsar_client.errors import NOT_THERE, Ignoring
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.layout import DELETING_PROPERTY, ID_PROPERTY, number
from kop.storage.pulsar.partition.services import PartitionView
from kop.storage.pulsar.topics.strays import StrayPartitions, is_unused
from kop.storage.pulsar.topics.table import PulsarTopics

_DELETION_MS: Final = 60_000
"""The ms after which a deletion of a topic that has begun counts as failed."""
_FRESH_SECONDS: Final = 0.05
_LOOK_AGAIN: Final = (0.02, 0.1, 0.3, 1.0, 2.0, *[5.0] * 12)
"""The seconds between looks at a topic that may have to be deleted again: clients use it, or its deletion is under way.

A deletion may take its time, for as long as `_DELETION_MS` it counts as being under way.
"""
_AT_ONCE: Final = 8
MISSING_SECONDS: Final = 5.0
_MOST_MISSING: Final = 1000
_LEDGER_MADE: Final = "lastLedgerCreatedTimestamp"

log = logging.getLogger(__name__)


class DeletionGuard:
    """The guard that keeps producers and readers from bringing a deleted topic back."""

    def __init__(self, context: PulsarContext, topics: PulsarTopics, strays: StrayPartitions) -> None:
        self._context = context
        self._topics = topics
        self._strays = strays
        self._asked: dict[UUID, tuple[float, asyncio.Task[bool]]] = {}
        self._missing: dict[str, float] = {}
        """The time of the loop since which each missing partition is missing."""
        self._taking_back: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """End the background work that deletes re-created partitions again."""
        await background.cancel(*self._taking_back)

    def forget(self, topic_id: UUID) -> None:
        """Drop the answers about a topic, which is known to be gone."""
        self._asked.pop(topic_id, None)

    async def may_attach(self, partition: PartitionView) -> bool:
        """Return true if the topic and this partition of it exist, so that a client may attach. PulsarError if Pulsar
        does not answer; LEADER_NOT_AVAILABLE if the topic is still being made after a wait of 15 seconds.
        """
        await self._topics.until_made(partition.topic.topic_id)
        if not await self.still_there(partition):
            return False
        with Ignoring(*NOT_THERE):
            await self._context.client.partitions(partition.partition_name)  # this look-up creates no partition
            self._missing.pop(partition.partition_name, None)
            return True
        self._is_missing(partition)
        return False

    def _is_missing(self, partition: PartitionView) -> None:
        """Remember that a partition is missing, and have its topic looked at again in the background, which may be
        being deleted. A partition that is missing for more than 5 seconds was never made: then a log line says so.
        """
        now = self._context.loop.time()
        if len(self._missing) > _MOST_MISSING:
            self._missing.clear()
        if now - self._missing.setdefault(partition.partition_name, now) > MISSING_SECONDS:
            text = (
                f"{partition.partition_name} is missing, its topic is not: pulsar-admin topics create-missed-partitions"
            )
            self._context.faults.tell(("missing", partition.title), text, "missing")
        self._context.spawn(self._topics.refresh(partition.topic.topic_id))

    async def still_there(self, partition: PartitionView, since: float | None = None) -> bool:
        """Return true if Pulsar has the topic under the same id, and no broker began to delete it within the last
        minute. If it has not, the topic is looked at again in the background. PulsarError if Pulsar does not answer.

        One answer serves all partitions of a topic. With `since` (the loop's time) the question was asked after that;
        without it the answer is at most 0.05 seconds old.
        """
        topic_id, loop = partition.topic.topic_id, self._context.loop
        oldest = loop.time() - _FRESH_SECONDS if since is None else since
        while True:
            asked = self._asked.get(topic_id)
            if asked is not None and asked[0] >= oldest:
                break
            if asked is None or asked[1].done():
                asked = self._asked[topic_id] = loop.time(), loop.create_task(self._ask(topic_id))
                asked[1].add_done_callback(
                    lambda task: task.cancelled() or task.exception()
                )  # callers may be cancelled
                break
            await asyncio.wait({asked[1]})  # all partitions that want to know share one question
        try:
            return await asyncio.shield(asked[1])
        except PulsarError:
            if self._asked.get(topic_id) is asked:
                del self._asked[topic_id]
            raise

    async def _ask(self, topic_id: UUID) -> bool:
        properties: Mapping[str, str] = {}
        with Ignoring(*NOT_THERE):
            known = self._topics.pulsar(topic_id)
            properties = await self._properties(known.full_name, known.plain)
        if properties.get(ID_PROPERTY) == str(topic_id):
            return self._context.admin.now_ms() - number(properties, DELETING_PROPERTY) > _DELETION_MS
        self._context.spawn(self._topics.refresh(topic_id))
        return False

    async def _properties(self, full_name: str, plain: bool) -> Mapping[str, str]:
        if plain:
            return await self._context.admin.properties(full_name)
        return (await self._context.admin.partitioned_metadata(full_name)).properties

    # --- producers

    async def confirm(self, partition: PartitionView, producer: Producer) -> None:
        """Check the topic after a producer attached. UNKNOWN_TOPIC_OR_PARTITION if it is deleted, or being deleted;
        what attaching re-created of it is deleted again in the background. PulsarError if Pulsar does not answer.
        """
        if (
            not partition.deleted
            and await self.still_there(partition, since=self._context.loop.time())
            and not partition.deleted
        ):
            return
        if _base(partition) != partition.partition_name:
            self.take_back(partition)
        elif (made := await self._made_by(producer)) is not None:
            self.take_back(partition, made)
        raise PeerError(f"topic {partition.topic.name!r} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def _made_by(self, producer: Producer) -> str | None:
        """Return the time at which the topic's ledger was made, as Pulsar writes it, if that was while `producer`
        attached, and nothing is in it; None if somebody else made the topic, or that is not known.

        Both times are by the Pulsar broker's clock; the time that the attaching took is by ours.
        """
        try:
            stats = await self._context.admin.stats(producer.topic)
            stored = await self._context.admin.internal_stats(producer.topic)
            publishers = [publisher for publisher in stats["publishers"] if publisher["producerName"] == producer.name]
            attached = min(datetime.fromisoformat(publisher["connectedSince"]) for publisher in publishers)
            made = datetime.fromisoformat(stored[_LEDGER_MADE])
        except (PulsarError, KeyError, ValueError) as error:
            log.debug("cannot tell who made %s: %r", producer.topic, error)
            return None
        earliest = attached - timedelta(seconds=producer.attach_seconds + 0.001)
        return str(stored[_LEDGER_MADE]) if is_unused(stored) and made >= earliest else None

    def removed(self, partition: PartitionView) -> None:
        """Delete a partition of a topic that is gone, in the background, if this broker has a producer there, which may
        have re-created it. A topic that is not partitioned is left alone.
        """
        if partition.producing and _base(partition) != partition.partition_name:
            self.take_back(partition)

    # --- deleting partitions that came back

    def take_back(self, partition: PartitionView, made: str | None = None) -> None:
        """Delete a partition that came back, in the background, as soon as no client uses it; after about a minute that
        is given up.

        `made` is given for a plain topic: it is deleted only if its ledger was made at that time, as Pulsar writes it.
        """
        task = self._context.loop.create_task(
            self._delete_unused(partition, made), name=f"take back {partition.partition_name}"
        )
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)

    async def _delete_unused(self, partition: PartitionView, made: str | None) -> None:
        for pause in _LOOK_AGAIN:
            await asyncio.sleep(pause)
            try:
                async with self._gate:
                    # A topic that is made again at this very moment must not lose its partition.
                    if await self._topics.in_turn(_base(partition), partial(self._settled, partition, made)):
                        return
            except PulsarError as error:
                if error.code in NOT_THERE:
                    return
                if error.code != "PreconditionFailed":  # this code means that clients use it
                    log.debug("cannot take %s back yet: %s", partition.partition_name, error)
            except Exception as error:
                background.tell(f"taking back {partition.partition_name}", error, kind="taking back a topic")

    async def _settled(self, partition: PartitionView, made: str | None) -> bool:
        """Delete a topic that came back, which is counted and logged, unless it is another one, or somebody wrote to
        it; return false if it has to be tried again. PulsarError PreconditionFailed if clients use it.
        """
        name, base = partition.partition_name, _base(partition)
        if base != name and (id_now := await self._strays.id_or_none(base)) is not None:
            # With another id the topic was created again and owns the partition; with the same id it is being deleted.
            return id_now != str(partition.topic.topic_id)
        stored = await self._context.admin.internal_stats(name)
        if made is not None and stored[_LEDGER_MADE] != made:
            return True  # the topic that came back is gone, this one was created later
        if not is_unused(stored):
            log.warning("a client made %s again while it was deleted, and uses it: it is not deleted again", name)
            return True
        await self._context.admin.delete_plain(name, force=False)
        self._context.faults.count(Fault.TOPICS_RECREATED_CAME_BACK)
        log.info("%s is deleted again: a producer had made it again while it was deleted", name)
        if base != name:
            await self._strays.complete(base)
        return True


def _base(partition: PartitionView) -> str:
    """Return Pulsar's name of a partition's topic. The partition of a topic that is not partitioned has the same
    name.
    """
    return partition.partition_name.removesuffix(f"-partition-{partition.index}")
