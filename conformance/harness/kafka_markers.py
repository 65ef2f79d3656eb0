"""Markers of transactions that Apache Kafka leaves out when it starts again after a kill, written in its place.

Owns: how they are noticed, and what an operator would do then.
Must not know: what a run is about.

Seen with Apache Kafka 4.3.1 of one node, once in twenty kills: it has written PREPARE_COMMIT to its log of
transactions, is killed, and starts again. Its coordinator wants to send the markers before its own metadata knows the
leaders of the partitions, takes these for deleted ("likely deleted already and hence can be skipped"), and writes
COMPLETE_COMMIT. No partition has a marker then: readers of committed records wait for ever, offsets stay unstable, and
no client can end it. The remedy is that of KIP-664: somebody writes the markers. A control run would else say this of
Kafka, and nothing of functions.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka.errors import KafkaError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

_LEFT_OUT = re.compile(r"leader endpoint for partitions (.*?) while trying to send transaction markers for (\S+),")
_PARTITION = re.compile(r"([\w.\-]+)-(\d+)")
_LOG = "__transaction_state"
_STATUS = struct.Struct(">hqhib")
"""The beginning of a value of that log: version, producer id, epoch, timeout, status."""
_COMPLETE_COMMIT, _COMPLETE_ABORT = 4, 5
_SECONDS = 30.0
"""So long at most it is tried: the server may have been killed again."""


class LostMarkers:
    """Watches the log of one Apache Kafka, as a context manager. `notes` gets a line for each transaction."""

    def __init__(self, log: Path, address: str, notes: list[str]) -> None:
        self._log = log
        self._address = address
        self._notes = notes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> LostMarkers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        position = 0
        while not self._over.wait(0.5):
            try:
                with self._log.open("rb") as log:
                    if log.seek(0, 2) < position:
                        position = 0  # it was started again, with a new log
                    log.seek(position)
                    text = log.read()
            except OSError:
                continue
            whole = text[: text.rfind(b"\n") + 1]
            position += len(whole)
            left_out: dict[str, set[tuple[str, int]]] = defaultdict(set)
            for places, name in _LEFT_OUT.findall(whole.decode(errors="replace")):
                left_out[name] |= {(topic, int(number)) for topic, number in _PARTITION.findall(places)}
            for name, partitions in left_out.items():
                self._write(name, sorted(partitions))

    def _write(self, name: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Write what is missing of one transactional id's last transaction, and tell of it."""
        until = time.monotonic() + _SECONDS
        while not self._over.wait(1.0):
            try:
                is_commit = self._is_commit(name)
                open_ones = [] if is_commit is None else _end(self._address, partitions, is_commit)
            except (KafkaError, KafkaException, OSError) as error:
                if time.monotonic() > until:
                    self._notes.append(
                        f"Apache Kafka left out markers of {name}, which could not be written: {error!r}"
                    )
                    return
                continue
            if open_ones:
                self._notes.append(
                    f"Apache Kafka left out the markers of a transaction of {name} in {', '.join(open_ones)}; "
                    f"written in its place: {'commit' if is_commit else 'abort'}"
                )
            return

    def _is_commit(self, name: str) -> bool | None:
        """Return if the last transaction that came to its end was committed; None if none is known."""
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": "markers", "enable.auto.commit": False})
        last: tuple[int, bool] | None = None
        try:
            numbers = consumer.list_topics(_LOG, timeout=10).topics[_LOG].partitions
            ends = {}
            for number in numbers:
                place = TopicPartition(_LOG, number)
                ends[number] = consumer.get_watermark_offsets(place, timeout=10)[1]
            consumer.assign([TopicPartition(_LOG, number, 0) for number in numbers])
            left = {number for number, end in ends.items() if end}
            until = time.monotonic() + _SECONDS
            while left and time.monotonic() < until:
                for message in consumer.consume(10_000, 0.2):
                    if message.error():
                        continue
                    number, offset, value = message.partition(), message.offset(), message.value()
                    if offset >= ends[number] - 1:
                        left.discard(number)
                    if value and (message.key() or b"").endswith(name.encode()):
                        status = _STATUS.unpack_from(value)[4]
                        if status in (_COMPLETE_COMMIT, _COMPLETE_ABORT):
                            last = (offset, status == _COMPLETE_COMMIT)
        finally:
            consumer.close()
        return None if last is None else last[1]


def _end(address: str, partitions: Sequence[tuple[str, int]], is_commit: bool) -> list[str]:
    """Write markers to those of the partitions in which a transaction is open; return these."""
    net = NetworkSelector()
    manager = KafkaConnectionManager(net, bootstrap_servers=[address])
    asked: dict[str, list[int]] = defaultdict(list)
    for name, partition_number in partitions:
        asked[name].append(partition_number)
    described = [
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=each) for name, each in asked.items()
    ]

    async def exchange() -> list[str]:
        node = manager.cluster.bootstrap_brokers()[0].node_id
        answer = await manager.send(DescribeProducersRequest(topics=described), node_id=node)
        ended = []
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        for topic in answer.topics:
            for partition in topic.partitions:
                for producer in partition.active_producers:
                    if producer.current_txn_start_offset < 0:
                        continue
                    number = partition.partition_index
                    place = marker.WritableTxnMarkerTopic(name=topic.name, partition_indexes=[number])
                    written = marker(
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                        transaction_result=is_commit,
                        topics=[place],
                        coordinator_epoch=max(0, producer.coordinator_epoch),
                    )
                    await manager.send(WriteTxnMarkersRequest(markers=[written]), node_id=node)
                    ended.append(f"{topic.name}-{number}")
        return ended

    try:
        manager.bootstrap(5000)
        ended: list[str] = manager.run(exchange)
        return ended
    finally:
        manager.close()
        with contextlib.suppress(OSError):
            net.close()
