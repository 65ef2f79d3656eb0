"""While a soak runs: acknowledged records are fetched at the offset that was told, from the gateway that leads.

Owns: which acknowledgements are taken, how one is compared.
Must not know: faults. A fetch that has no answer in time is no anomaly here; the readers at the end see everything.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conformance.soak.checker import Anomaly
from conformance.soak.history import Write, record_of, writes_in

PAUSE_SECONDS = 1.0
FETCH_SECONDS = 5.0


class Sampler:
    """`compared` counts the records that came, `anomalies` has those that were others."""

    def __init__(self, connection: Mapping[str, Any], paths: list[Path], seed: int) -> None:
        """`connection`: librdkafka's settings that lead to the gateways."""
        self._connection = connection
        self._paths = paths
        self._rng = random.Random(seed)
        self.compared = 0
        self.anomalies: list[Anomaly] = []

    def run(self, stop: threading.Event) -> None:
        """Until `stop`."""
        consumer = Consumer(
            {
                **self._connection,
                "group.id": "soak-sampler",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,
            }
        )
        while not stop.wait(PAUSE_SECONDS):
            write = self._pick()
            if write is not None:
                try:
                    self._compare(consumer, write, stop)
                except KafkaException:
                    pass  # a gateway that is down; the client connects to the other one
        consumer.close()

    def _pick(self) -> Write | None:
        path = self._rng.choice(self._paths)
        rows = [write for write in writes_in(path)[-500:] if write.outcome == "acknowledged" and write.offset >= 0]
        return self._rng.choice(rows) if rows else None

    def _compare(self, consumer: Consumer, write: Write, stop: threading.Event) -> None:
        consumer.assign([TopicPartition(write.topic, write.partition, write.offset)])
        end = time.monotonic() + FETCH_SECONDS
        while time.monotonic() < end and not stop.is_set():
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            self.compared += 1
            offset = message.offset()
            record = record_of(message.value())
            if (offset, record) != (write.offset, write.record):
                detail = f"fetched at the offset that was told: {record[0]} {record[1]} at {offset}"
                places = () if offset is None else (offset,)
                self.anomalies.append(
                    Anomaly(
                        "sampled", write.writer, write.number, write.topic, write.partition, write.offset, places,
                        time.time(), detail,
                    )
                )  # fmt: skip
            break
        consumer.unassign()
