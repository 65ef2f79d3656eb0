"""A member of a consumer group whose one partition is a right: who is in the group, and who has it.

Owns: the membership, by kafka-python's consumer, which keeps the partition where it is while others come and go.
Must not know: what the right is for, what is in the topic.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, TopicPartition, errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import MemberState

from kop import clock
from kop.client.properties import known_settings
from kop.client.write_client import MemberIdentity

log = logging.getLogger(__name__)

POLL_MS: Final = 100
JOINING_POLL_MS: Final = 20
"""The milliseconds of a poll until the members are known: whoever has just begun waits for that."""
SETTLE_SECONDS: Final = 30.0
"""The seconds that a group waits for a member to join again, and a member for a group that deals partitions."""
LOOK_SECONDS: Final = 1.0
"""The seconds between two looks at the members of the group."""


@dataclass(frozen=True, slots=True)
class GroupPeer:
    """A member of the group, by its client id."""

    client_id: str
    holds: bool
    """True if it has the partition."""
    member_id: str
    host: str
    """The host from which the member is connected, as the server sees it."""


def has_members(settings: Mapping[str, Any], group: str) -> bool:
    """Return true if anybody is in a group, as far as the server knows. `settings` are kafka-python's, whose errors are
    raised.
    """
    with closing(KafkaAdminClient(**known_settings(settings, KafkaAdminClient))) as admin:
        return bool(admin.describe_groups([group])[group]["members"])


class Membership:
    """Keeps `client_id` in a group, by a thread of its own. The rest is for any thread.

    `settings` are kafka-python's; `changed` is called if somebody came or went, or another one has the partition.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        client_id: str,
        group: str,
        topic: str,
        changed: Callable[[], None],
        session_seconds: float,
    ) -> None:
        self.failure: str | None = None
        """The reason that this client is not in the group at the moment; None if there is none."""
        self._settings = {**settings, "client_id": client_id}
        self._group = group
        self._partition = TopicPartition(topic, 0)
        self._changed = changed
        self._session_ms = int(session_seconds * 1000)
        self._peers: tuple[GroupPeer, ...] = ()
        self._consumer: Any = None
        self._held = False
        self._looks = threading.Event()
        """Set if the members of the group are to be looked at now, because this one was told of a change."""
        self._anew = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kop-group-member", daemon=True)

    def start(self) -> None:
        """Start the thread that joins the group and stays in it; what fails is logged, kept in `failure`, and tried
        again.
        """
        self._thread.start()

    def leave(self) -> None:
        """Begin to leave the group, and do not wait for it."""
        self._over.set()

    def close(self, seconds: float | None = None) -> None:
        """Leave the group; waits at most so many seconds for it, without a limit if None."""
        self.leave()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def peers(self) -> tuple[GroupPeer, ...]:
        """Return the members of the group, this one too, as the server told them last: once a second while this client
        is in the group.
        """
        return self._peers

    @property
    def member_id(self) -> str:
        """The id that the server gave this member; empty if it is none at the moment."""
        consumer = self._consumer
        return "" if consumer is None else str(consumer.group_metadata().member_id or "")

    def holding(self) -> MemberIdentity | None:
        """Return the identity of this member if the partition is assigned to it; None if it is not, or if the member is
        to join anew.
        """
        consumer = self._consumer
        if consumer is None or not self._held or self._anew:
            return None
        metadata = consumer.group_metadata()
        if metadata.generation_id < 0 or not metadata.member_id:
            return None
        return MemberIdentity(metadata.member_id, metadata.generation_id)

    def rejoin(self) -> None:
        """Ask the member's thread to leave the group and join it again: what this member was told may be out of date.
        Until then `holding` gives None.
        """
        self._anew = True

    # -- its thread

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._be_member()
            except Exception as error:
                failure = f"not in the group {self._group} for the moment: {error!r}"
                if failure != self.failure:
                    log.warning("%s", failure)
                self.failure = failure
                self._over.wait(LOOK_SECONDS)

    def _be_member(self) -> None:
        admin = consumer = None
        try:
            admin = KafkaAdminClient(**known_settings(self._settings, KafkaAdminClient))
            consumer = KafkaConsumer(
                **known_settings(self._settings, KafkaConsumer),
                group_id=self._group,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                auto_offset_reset="latest",
                partition_assignment_strategy=[CooperativeStickyAssignor],
                session_timeout_ms=self._session_ms,
                heartbeat_interval_ms=self._session_ms // 6,
                max_poll_interval_ms=int(SETTLE_SECONDS * 1000),
            )
            self._consumer, self._anew = consumer, False
            consumer.subscribe([self._partition.topic], listener=_Listener(self, consumer))
            # The consumer has to know the topic before it joins. If it learns of it later, it joins a second time, and
            # kafka-python loses a join that takes longer than one poll if news of a topic was the only reason for it.
            # From then on its polls return at once instead of waiting. That lasts until SETTLE_SECONDS are over: then
            # the error below takes the member out of the group, and it joins anew.
            # A new bootstrap asks at once; an update of metadata would wait until 100 ms after the one before it.
            consumer.bootstrap(timeout_ms=int(SETTLE_SECONDS * 1000), refresh=True)
            look = settled = clock.monotonic()
            while not self._over.is_set() and not self._anew:
                consumer.poll(timeout_ms=POLL_MS if self._peers else JOINING_POLL_MS)
                if consumer.group_metadata().state is MemberState.STABLE:
                    settled = clock.monotonic()
                    self.failure = None
                elif clock.monotonic() > settled + SETTLE_SECONDS:
                    raise errors.KafkaTimeoutError(f"the group does not settle within {SETTLE_SECONDS:g} s")
                if clock.monotonic() >= look or self._looks.is_set():
                    self._looks.clear()
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
            described = admin.describe_groups([self._group])[self._group]
        except errors.KafkaError as error:
            log.debug("the group %s cannot be looked at: %r", self._group, error)
            return
        if described["error"] is not None:
            return
        peers = [
            GroupPeer(
                member["client_id"],
                self._has_it(member["member_assignment"]),
                member["member_id"],
                str(member["client_host"]).lstrip("/"),
            )
            for member in described["members"]
        ]
        in_order = tuple(sorted(peers, key=lambda peer: (peer.client_id, peer.member_id)))
        if in_order != self._peers:
            self._peers = in_order
            self._changed()

    def _has_it(self, assignment: Any) -> bool:
        if not isinstance(assignment, Mapping):
            return False  # none is dealt at the moment
        return any(topic["topic"] == self._partition.topic for topic in assignment["assigned_partitions"])

    def note(self, *, held: bool) -> None:
        """Note if this member holds the partition, as its listener was told, and call `changed`."""
        self._held = held
        self._looks.set()
        self._changed()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Told by the consumer, on a thread that must not wait."""

    def __init__(self, membership: Membership, consumer: Any) -> None:
        self._membership = membership
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Note that this member holds the partition, if that is among those assigned, and keep the consumer from
        reading it.
        """
        for partition in assigned:
            self._consumer.seek(partition, 0)
            self._consumer.pause(partition)
        if assigned:
            self._membership.note(held=True)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Note that this member does not hold the partition any more, if it is among those that are taken from it, or
        lost: another one may hold those already.
        """
        if revoked:
            self._membership.note(held=False)
