"""The load without a gateway, in a process of its own. One JSON object on stdout says what was seen.

python -m conformance.bench.native produce SERVICE_URL TOPIC SECONDS BATCH_BYTES
python -m conformance.bench.native consume SERVICE_URL TOPIC RECORDS
python -m conformance.bench.native latency SERVICE_URL TOPIC SECONDS RATE

`produce` and `consume` are the bare client: kop/pulsar_client alone, which sends one ready batch over and over and
counts what it reads. It is the part of the gateway that faces Pulsar, without Kafka's part and without storage: what
the gateway comes near when all the rest costs nothing, and not what Pulsar can do. Its CPU is its process's own.
`latency` is pulsar-client, Pulsar's own package: producer and tail reader.

TOPIC is the full name of a topic without partitions, or of one partition.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import deque
from typing import Any

import pulsar
import uvloop

from conformance.bench.rows import RECORD_BYTES
from kop.pulsar_client import EARLIEST, Client, Entry, Position
from kop.pulsar_client.proto import pulsar_pb2 as pb

WINDOW_BYTES = 4 * 2**20
"""Under way; so much a reader lets come, too."""


async def produce(url: str, topic: str, seconds: float, batch_bytes: int) -> dict[str, float]:
    """Send ready batches; from before the client connects to the last receipt."""
    value = os.urandom(RECORD_BYTES)
    single = pb.SingleMessageMetadata(payload_size=RECORD_BYTES).SerializeToString()
    message = len(single).to_bytes(4, "big") + single + value
    count = max(1, batch_bytes // len(message))
    payload = message * count
    began, cpu = time.perf_counter(), time.process_time()
    client = Client(url)
    await client.start()
    producer = await client.open_producer(topic, name="bare")
    pending: deque[asyncio.Future[Position]] = deque()
    sequence = 0
    while not sequence or time.perf_counter() < began + seconds:
        if len(pending) * len(payload) >= WINDOW_BYTES:
            await pending.popleft()
        numbers: dict[str, Any] = {"sequence_id": sequence, "highest_sequence_id": sequence + count - 1}
        metadata = pb.MessageMetadata(
            producer_name="bare", publish_time=int(time.time() * 1000), num_messages_in_batch=count, **numbers
        ).SerializeToString()
        pending.append(producer.send(metadata, payload, num_messages=count, **numbers))
        sequence += count
    await asyncio.gather(*pending)
    taken, cpu = time.perf_counter() - began, time.process_time() - cpu
    await client.close()
    return {
        "requests": sequence // count,
        "records": sequence,
        "bytes": sequence * RECORD_BYTES,
        "seconds": taken,
        "cpu_seconds": cpu,
    }


async def consume(url: str, topic: str, records: int) -> dict[str, float]:
    """Read all from the start; from before the client connects to the last entry."""
    began, cpu = time.perf_counter(), time.process_time()
    client = Client(url)
    await client.start()
    done = asyncio.get_running_loop().create_future()
    permits = WINDOW_BYTES // RECORD_BYTES
    seen = entries = 0

    def on_entry(entry: Entry) -> None:
        nonlocal seen, entries
        seen += entry.num_messages
        entries += 1
        if reader.permits <= permits // 2:
            reader.flow(permits - reader.permits)
        if seen >= records and not done.done():
            done.set_result(None)

    reader = await client.open_reader(topic, EARLIEST, permits=0, on_entry=on_entry)
    reader.flow(16)  # the broker's first read counts entries, not messages
    await asyncio.wait_for(done, 180)
    taken, cpu = time.perf_counter() - began, time.process_time() - cpu
    await client.close()
    return {
        "requests": entries,
        "records": seen,
        "bytes": seen * RECORD_BYTES,
        "seconds": taken,
        "cpu_seconds": cpu,
    }


def latency(url: str, topic: str, seconds: float, rate: int) -> dict[str, float]:
    """From the send to the record in the reader's hands, ms, at a steady rate; the first 2 s do not count."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    producer = client.create_producer(topic, batching_enabled=False)
    total = int(seconds * rate)
    seen: list[float] = []

    def read() -> None:
        while len(seen) < total:
            try:
                message = reader.read_next(5000)
            except pulsar.Timeout:
                return
            seen.append((time.perf_counter() - float(message.data()[:24])) * 1000)

    thread = threading.Thread(target=read)
    thread.start()
    filler = b"x" * (RECORD_BYTES - 24)
    start = time.perf_counter()
    for i in range(total):
        ahead = start + i / rate - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        producer.send_async(f"{time.perf_counter():<24.9f}".encode() + filler, None)
    producer.flush()
    thread.join()
    client.close()
    if len(seen) < total:
        raise SystemExit(f"{len(seen)} of {total} records arrived")
    steady = sorted(seen[2 * rate :])
    return {
        "seconds": seconds,
        "records": total,
        "p50_ms": steady[len(steady) // 2],
        "p99_ms": steady[len(steady) * 99 // 100],
    }


def main() -> None:
    """Run one load."""
    what, url, topic, *rest = sys.argv[1:]
    if what == "produce":
        result = uvloop.run(produce(url, topic, float(rest[0]), int(rest[1])))
    elif what == "consume":
        result = uvloop.run(consume(url, topic, int(rest[0])))
    else:
        result = latency(url, topic, float(rest[0]), int(rest[1]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
