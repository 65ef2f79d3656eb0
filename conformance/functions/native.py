"""Pulsar's own client on both sides of functions over Pulsar: it writes an input, and reads the outputs once more.

Owns: how a partition is written and read by it.
Must not know: functions, faults, and what is right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

import pulsar

from conformance.functions.oracle import Place
from conformance.harness.targets import OverPulsar

PARTITION_SECONDS = 60.0
BURST = 10
KEYS = 7


class Native:
    """A client of the Pulsar behind the gateways of a run."""

    def __init__(self, over: OverPulsar) -> None:
        self._service = over.urls[0]
        self._namespace = over.namespace
        self.sent = 0

    def write(self, topic: Place, pause: float, stop: threading.Event) -> None:
        """Write the partitions of a topic, each second message with a key, until `stop`."""
        name, partitions = topic
        with closing(self._client()) as client:
            # Each has its first sequence id from us: else it counts from 0 again when its connection comes back.
            producers = [
                client.create_producer(
                    self._partition((name, number)), initial_sequence_id=0, batching_max_publish_delay_ms=5
                )
                for number in range(partitions)
            ]
            while not stop.wait(pause):
                for _ in range(BURST):
                    key = f"native{self.sent % KEYS}" if self.sent % 2 else None
                    producer = producers[self.sent // 2 % partitions]
                    producer.send_async(f"native-{self.sent}".encode(), _taken, partition_key=key)
                    self.sent += 1
            for producer in producers:
                producer.flush()

    def texts(self, places: Sequence[Place]) -> dict[Place, list[str]]:
        """Return what consumers of Pulsar are given of some partitions. OSError if it does not end."""
        with closing(self._client()) as client:
            return {place: self._read(client, place) for place in places}

    def _read(self, client: pulsar.Client, place: Place) -> list[str]:
        texts: list[str] = []
        until = time.monotonic() + PARTITION_SECONDS
        with closing(client.create_reader(self._partition(place), pulsar.MessageId.earliest)) as reader:
            while reader.has_message_available():
                if time.monotonic() > until:
                    raise OSError(f"pulsar-client goes on finding messages in {place[0]}-{place[1]}")
                try:
                    texts.append(reader.read_next(timeout_millis=1000).data().decode())
                except pulsar.Timeout:
                    continue  # it is asked again if there is more
        return texts

    def _client(self) -> pulsar.Client:
        return pulsar.Client(self._service, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def _partition(self, place: Place) -> str:
        return f"persistent://{self._namespace}/{place[0]}-partition-{place[1]}"


def _taken(result: pulsar.Result, _: object) -> None:
    """Nothing is noted of an answer: what is stored is read in the end."""
