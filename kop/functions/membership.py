"""A worker as a member of the consumer group of all workers: who is there, and who may lead.

Owns: the group's membership, by kafka-python's consumer, whose client id says which worker it is and where.
Must not know: what a leader does, what is in the topic that the group is about.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, TopicPartition, errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from kop import clock
from kop.client.write_client import Member
from kop.functions.definitions import WorkerInfo

log = logging.getLogger(__name__)

GROUP: Final = "__kop.functions"
SESSION_SECONDS: Final = 6.0
"""As short as Kafka's default allows: so long nobody leads after a leader was killed."""
POLL_MS: Final = 200
LOOK_SECONDS: Final = 1.0
"""How often it is asked who is there."""


class Membership:
    """Keeps this worker in the group, by a thread of its own. The rest is for any thread.

    `settings` are kafka-python's; `partition` is the one whose holder leads; `changed` is called if somebody came or
    went, or another one holds it.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        me: WorkerInfo,
        partition: tuple[str, int],
        changed: Callable[[], None],
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        self._settings = {**settings, "client_id": me.client_id()}
        self._partition = TopicPartition(*partition)
        self._changed = changed
        self._session_ms = int(session_seconds * 1000)
        self._workers: tuple[WorkerInfo, ...] = ()
        self._consumer: Any = None
        self._held = False
        self._anew = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kop-functions-member", daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def close(self) -> None:
        """Leave the group."""
        self._over.set()
        self._thread.join()

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return the workers that live, and which of them leads, as of a second ago."""
        return self._workers

    def holding(self) -> Member | None:
        """Return as which member this worker holds the partition now; None if it does not."""
        consumer = self._consumer
        if consumer is None or not self._held or self._anew:
            return None
        metadata = consumer.group_metadata()
        if metadata.generation_id < 0 or not metadata.member_id:
            return None
        return Member(metadata.member_id, metadata.generation_id)

    def rejoin(self) -> None:
        """Leave the group and join it again: what this member was told may be out of date."""
        self._anew = True

    # -- its thread

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._be_member()
            except Exception as error:
                log.warning("not in the group %s for the moment: %r", GROUP, error)
                self._over.wait(LOOK_SECONDS)

    def _be_member(self) -> None:
        self._held = False
        admin = consumer = None
        try:
            admin = KafkaAdminClient(**_known(self._settings, KafkaAdminClient.DEFAULT_CONFIG))
            consumer = KafkaConsumer(
                **_known(self._settings, KafkaConsumer.DEFAULT_CONFIG),
                group_id=GROUP,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                partition_assignment_strategy=[CooperativeStickyAssignor],
                session_timeout_ms=self._session_ms,
                heartbeat_interval_ms=self._session_ms // 6,
            )
            self._consumer, self._anew = consumer, False
            consumer.subscribe([self._partition.topic], listener=_Listener(self, consumer))
            look = clock.monotonic()
            while not self._over.is_set() and not self._anew:
                consumer.poll(timeout_ms=POLL_MS)
                if clock.monotonic() >= look:
                    look = clock.monotonic() + LOOK_SECONDS
                    self._look(admin)
        finally:
            self._held, self._consumer = False, None
            for client in (consumer, admin):
                if client is not None:
                    with suppress(Exception):
                        client.close()

    def _look(self, admin: Any) -> None:
        try:
            described = admin.describe_groups([GROUP])[GROUP]
        except errors.KafkaError as error:
            log.debug("the group %s cannot be looked at: %r", GROUP, error)
            return
        if described["error"] is not None:
            return
        found: dict[str, WorkerInfo] = {}
        for member in described["members"]:
            leads = self._has_partition(member["member_assignment"])
            worker = WorkerInfo.of_client_id(member["client_id"], is_leader=leads)
            if worker is not None and (leads or worker.worker_id not in found):
                found[worker.worker_id] = worker
        workers = tuple(sorted(found.values(), key=lambda worker: worker.worker_id))
        if workers != self._workers:
            self._workers = workers
            self._changed()

    def _has_partition(self, assignment: Any) -> bool:
        if not isinstance(assignment, Mapping):
            return False
        return any(
            topic["topic"] == self._partition.topic and self._partition.partition in topic["partitions"]
            for topic in assignment["assigned_partitions"]
        )

    def take_note(self, *, held: bool) -> None:
        """Note if this worker holds the partition; called by the listener."""
        self._held = held
        self._changed()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Told by the consumer, on a thread that must not wait."""

    def __init__(self, membership: Membership, consumer: Any) -> None:
        self._membership = membership
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Take the partition, which is not read by this consumer."""
        for partition in assigned:
            self._consumer.seek(partition, 0)
            self._consumer.pause(partition)
        if assigned:
            self._membership.take_note(held=True)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Give it up."""
        if revoked:
            self._membership.take_note(held=False)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Give it up: another one may have it already."""
        if lost:
            self._membership.take_note(held=False)


def _known(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in defaults}
