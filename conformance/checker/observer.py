"""Asks for ends of logs and for committed offsets while a run goes on, and reads every partition when it is over.

Owns: which questions are asked, when a partition counts as read wholly.
Must not know: faults, and what is right. A question without an answer is no anomaly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from conformance.checker.history import End, Isolation, Place, Whole, record_of
from conformance.checker.offsets import GroupOffsets
from conformance.checker.recorder import Positions, Recorder
from conformance.checker.workload import CHAINS, CONSUMERS, TOPICS, Names

PAUSE_SECONDS = 0.4
_ANSWER_SECONDS = 10.0
PARTITION_SECONDS = 60.0


class Observer:
    """One client that asks, its questions one after the other."""

    def __init__(self, connection: Mapping[str, Any], names: Names, recorder: Recorder) -> None:
        self._connection = connection
        self._names = names
        self._recorder = recorder
        self._admin = self._new_admin()
        self.places: list[Place] = [
            (names.of(topic.name), partition) for topic in TOPICS for partition in range(topic.partitions)
        ]
        self._groups: dict[str, GroupOffsets] = {}
        self.answers = 0

    def _new_admin(self) -> AdminClient:
        return AdminClient({**self._connection, "log_level": 0, "reconnect.backoff.max.ms": 500})

    def run(self, stop: threading.Event) -> None:
        """Ask until `stop`."""
        topics = {role.group: role.topics for role in CONSUMERS} | {role.name: (role.source,) for role in CHAINS}
        while not stop.wait(PAUSE_SECONDS):
            for kind in ("stable", "high", "start"):
                self.ends(kind)
            for group, of in topics.items():
                self.committed(self._names.of(group), [self._names.of(topic) for topic in of])

    def ends(self, kind: Any) -> dict[Place, int]:
        """One end of all partitions, of those that were told."""
        spec = OffsetSpec.earliest() if kind == "start" else OffsetSpec.latest()
        level = IsolationLevel.READ_COMMITTED if kind == "stable" else IsolationLevel.READ_UNCOMMITTED
        ends: dict[Place, int] = {}
        begin = time.time()
        asked = self._admin.list_offsets(
            {TopicPartition(*place): spec for place in self.places},
            isolation_level=level,
            request_timeout=_ANSWER_SECONDS,
        )
        for partition, future in asked.items():
            try:
                offset = future.result().offset
            except KafkaException:
                self._admin = self._new_admin()  # librdkafka 2.16 keeps a leader's epoch that is refused as too old
                continue
            if offset < 0:  # neither an offset nor an error: the server went away
                continue
            place = (partition.topic, partition.partition)
            self._recorder.add(End(*place, begin, time.time(), kind, offset))
            self.answers += 1
            ends[place] = offset
        return ends

    def committed(self, group: str, topics: Iterable[str]) -> dict[Place, int] | None:
        """The group's offsets, once no transaction is open that may change them; None where there was no answer."""
        if group not in self._groups:
            self._groups[group] = GroupOffsets(self._connection, group, self._recorder)
        told = self._groups[group].committed([place for place in self.places if place[0] in set(topics)])
        self.answers += told is not None
        return told

    def read(self, isolation: Isolation, say: Callable[[str], None]) -> list[str]:
        """Every partition from its start to its end; what could not be read."""
        unread = []
        ends, starts = self._all_ends(isolation), self.ends("start")
        for place in self.places:
            start, end = starts.get(place), ends.get(place)
            if start is None or end is None:
                unread.append(f"{place[0]} {place[1]} {isolation}: its ends were not told")
                continue
            say(f"reading {place[0]} {place[1]}, {isolation}")
            at = self._read(place, isolation, start, end)
            if at < end:
                unread.append(f"{place[0]} {place[1]} {isolation}: read up to {at} of {end}")
        return unread

    def _all_ends(self, isolation: Isolation) -> dict[Place, int]:
        """The high watermarks, under read_committed too: all transactions have ended."""
        until = time.monotonic() + PARTITION_SECONDS
        while time.monotonic() < until:
            high = self.ends("high")
            stable = self.ends("stable") if isolation == "committed" else high
            if len(high) == len(self.places) and stable == high:
                return high
            time.sleep(0.3)  # until the broker is asked again: it tells nobody of the ends of logs
        return high

    def _read(self, place: Place, isolation: Isolation, start: int, end: int) -> int:
        """The position that was reached."""
        consumer = Consumer(
            {
                **self._connection,
                "group.id": self._names.of("whole"),
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": f"read_{isolation}",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        session = f"whole-{isolation}-{place[0]}-{place[1]}"
        positions = Positions(self._recorder, session, isolation)
        positions.begin({place: start})
        consumer.assign([TopicPartition(*place, start)])
        at = start
        until = time.monotonic() + PARTITION_SECONDS
        while at < end and time.monotonic() < until:
            rows = []
            for message in consumer.consume(500, 0.5):
                error = message.error()
                offset = message.offset()
                assert offset is not None
                if error is None:
                    rows.append((place, offset, record_of(message.value())))
                    at = max(at, offset + 1)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, offset)
            positions.given(rows, {place: at})
        consumer.close()
        if at >= end:
            self._recorder.add(Whole(positions.session, isolation, *place))
        return at
