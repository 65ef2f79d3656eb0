"""Asks what a group has committed, without joining it.

Owns: how that is asked so that an answer can be trusted.
Must not know: who asks, and what is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conformance.checker.history import Committed, Place
from conformance.checker.recorder import Recorder

_ANSWER_SECONDS = 10.0


class GroupOffsets:
    """A client of one group. Not the admin client: in librdkafka 2.16 that reads a null pointer where a coordinator is
    not to be had at once. Not aiokafka: 0.14 takes "not the coordinator" for "nothing is committed", since from version
    2 on OffsetFetch says so beside the partitions."""

    def __init__(self, connection: Mapping[str, Any], group: str, recorder: Recorder) -> None:
        self._group = group
        self._recorder = recorder
        self._consumer = Consumer(
            {
                **connection,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # it waits for open transactions then
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def committed(self, places: Iterable[Place]) -> dict[Place, int] | None:
        """Offsets, -1 for none, once no transaction is open that may change them; None where there was no answer."""
        begin = time.time()
        try:
            told = self._consumer.committed([TopicPartition(*place) for place in places], timeout=_ANSWER_SECONDS)
        except KafkaException:
            return None
        if any(position.error is not None for position in told):
            return None
        offsets = tuple((position.topic, position.partition, max(-1, position.offset)) for position in told)
        self._recorder.add(Committed(self._group, True, begin, time.time(), offsets))
        return {(topic, partition): offset for topic, partition, offset in offsets}

    def close(self) -> None:
        self._consumer.close()
