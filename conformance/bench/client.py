"""librdkafka (confluent-kafka): topics, and loads in a process of their own, which print one JSON object.

python -m conformance.bench.client produce BOOTSTRAP TOPIC SECONDS BATCH_BYTES [MOST]
python -m conformance.bench.client latency BOOTSTRAP TOPIC SECONDS RATE
python -m conformance.bench.client transactions BOOTSTRAP TOPIC SECONDS RECORDS [MOST]
python -m conformance.bench.client flushes BOOTSTRAP TOPIC SECONDS RECORDS
python -m conformance.bench.client read BOOTSTRAP TOPIC RECORDS ISOLATION TIMES [PARTITIONS]
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.bench.rows import RECORD_BYTES


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})  # warnings


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """Make the topic, and wait until it is there; a server that has just started may need more than one try."""
    admin = _admin(bootstrap)
    deadline = time.monotonic() + 90
    tried = False
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
            return
        except KafkaException as error:
            code = error.args[0].code()
            if tried and code == KafkaError.TOPIC_ALREADY_EXISTS:  # the try before, that seemed to fail
                return
            if code != KafkaError.REQUEST_TIMED_OUT or time.monotonic() > deadline:
                raise
            tried = True


def delete(bootstrap: str, topic: str) -> None:
    """Its disk is needed."""
    admin = _admin(bootstrap)
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)


def produce(bootstrap: str, topic: str, seconds: float, batch_bytes: int, most: int = 2**62) -> dict[str, float]:
    """Produce as fast as the client can, acks=all, from before it connects to the last acknowledgement.

    It ends after `seconds`, or after `most` records.
    """
    failed = 0

    def delivered(error: object, _message: object) -> None:
        nonlocal failed
        failed += error is not None

    began = time.perf_counter()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": batch_bytes,
            "batch.num.messages": 100_000,
            "message.max.bytes": max(1_000_000, batch_bytes),
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 16_384,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
    )
    value = os.urandom(RECORD_BYTES)
    sent = 0
    while sent < most and (sent & 255 or time.perf_counter() < began + seconds):
        try:
            producer.produce(topic, value)
            sent += 1
        except BufferError:
            producer.poll(0.005)
        if sent & 1023 == 0:
            producer.poll(0)
    left = producer.flush(120)
    taken = time.perf_counter() - began
    if failed or left:
        raise SystemExit(f"{failed} records failed, {left} were never answered")
    return {"seconds": taken, "records": sent, "requests": 0, "bytes": sent * RECORD_BYTES}


def latency(bootstrap: str, topic: str, seconds: float, rate: int) -> dict[str, float]:
    """From the produce call to the record in the consumer's hands, ms, at a steady rate; the first 2 s do not count."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"latency-{os.getpid()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.list_topics(topic, 30)
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)[1]
    consumer.assign([TopicPartition(topic, 0, end)])
    seen: list[float] = []
    total = int(seconds * rate)
    done = threading.Event()

    def read() -> None:
        while len(seen) < total and not done.is_set():
            message = consumer.poll(0.5)  # consume() would wait until it has as many as it was asked for
            if message is not None and message.error() is None:
                seen.append((time.perf_counter() - float(message.value()[:24])) * 1000)

    reader = threading.Thread(target=read)
    reader.start()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    filler = b"x" * (RECORD_BYTES - 24)
    start = time.perf_counter()
    for i in range(total):
        ahead = start + i / rate - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        producer.produce(topic, f"{time.perf_counter():<24.9f}".encode() + filler)
        producer.poll(0)
    producer.flush(30)
    reader.join(10)
    done.set()
    reader.join()
    consumer.close()
    if len(seen) < total:
        raise SystemExit(f"{len(seen)} of {total} records arrived")
    steady = sorted(seen[2 * rate :])
    return {
        "seconds": seconds,
        "records": total,
        "p50_ms": steady[len(steady) // 2],
        "p99_ms": steady[len(steady) * 99 // 100],
    }


def transactions(
    bootstrap: str, topic: str, seconds: float, records: int, most: int = 2**62, *, plain: bool = False
) -> dict[str, float]:
    """Transactions of `records`, one after another, for `seconds` or `most` of them; the latencies are of commits.

    `plain`: the same by an idempotent producer that flushes where the other one commits. The first one does not count:
    with it a server makes its topic of transactions.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 65_536,
            "delivery.report.only.error": True,
        }
        | ({} if plain else {"transactional.id": topic})
    )
    value = os.urandom(RECORD_BYTES)

    def time_transaction() -> float:
        if not plain:
            producer.begin_transaction()
        for _ in range(records):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.005)
        began = time.perf_counter()
        if not plain:
            producer.commit_transaction(60)
        elif left := producer.flush(60):
            raise SystemExit(f"{left} records were not acknowledged")
        return (time.perf_counter() - began) * 1000

    if not plain:
        producer.init_transactions(60)
    time_transaction()
    began = time.perf_counter()
    taken: list[float] = []
    while len(taken) < most and time.perf_counter() < began + seconds:
        taken.append(time_transaction())
    whole = time.perf_counter() - began
    sent = len(taken) * records
    taken.sort()
    return {
        "seconds": whole,
        "records": sent,
        "requests": len(taken),
        "bytes": sent * RECORD_BYTES,
        "p50_ms": taken[len(taken) // 2],
        "p99_ms": taken[len(taken) * 99 // 100],
    }


def read(bootstrap: str, topic: str, records: int, isolation: str, times: int, partitions: int = 1) -> dict[str, float]:
    """Read a topic from its start, so many times, each with a new consumer."""
    began = time.perf_counter()
    for _ in range(times):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"read-{os.getpid()}",
                "enable.auto.commit": False,
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        seen = 0
        while seen < records:
            messages = consumer.consume(min(1000, records - seen), 30)
            if not messages or any(message.error() for message in messages):
                raise SystemExit(
                    f"{seen} of {records} records were read, then: {[each.error() for each in messages][:1]}"
                )
            seen += len(messages)
        consumer.close()
    taken = time.perf_counter() - began
    return {
        "seconds": taken,
        "records": records * times,
        "requests": 0,
        "bytes": records * times * RECORD_BYTES,
    }


def main() -> None:
    """Run one load."""
    what, bootstrap, topic, *rest = sys.argv[1:]
    if what == "produce":
        result = produce(bootstrap, topic, float(rest[0]), *map(int, rest[1:]))
    elif what in ("transactions", "flushes"):
        result = transactions(bootstrap, topic, float(rest[0]), *map(int, rest[1:]), plain=what == "flushes")
    elif what == "read":
        result = read(bootstrap, topic, int(rest[0]), rest[1], *map(int, rest[2:]))
    else:
        result = latency(bootstrap, topic, float(rest[0]), int(rest[1]))
    print(json.dumps(result | {"client_cpu_seconds": time.process_time()}))


if __name__ == "__main__":
    main()
