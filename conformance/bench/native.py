"""The load without a gateway, in a process of its own. One JSON object on stdout says what was seen.

python native.py produce SERVICE_URL TOPIC PARTITIONS RECORDS BATCH_BYTES
python native.py consume SERVICE_URL TOPIC PARTITIONS RECORDS
python native.py latency SERVICE_URL TOPIC SECONDS RATE

`produce` and `consume` are the bare client: kop/pulsar_client alone, which sends one ready batch over and over and
counts what it reads, as fast as asyncio goes. `latency` is pulsar-client, Pulsar's own package: producer and tail
reader.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import deque

import pulsar
import uvloop

from kop.pulsar_client import EARLIEST, Client, Entry, Position, Reader
from kop.pulsar_client.proto import pulsar_pb2 as pb

RECORD_BYTES = 1024
WINDOW_BYTES = 4 * 2**20
"""Under way for each partition; so much a reader lets come, too."""


def partition(topic: str, index: int) -> str:
    return f"{topic}-partition-{index}"


async def produce(url: str, topic: str, partitions: int, records: int, batch_bytes: int) -> dict[str, float]:
    """Send ready batches; seconds to the last receipt."""
    value = os.urandom(RECORD_BYTES)
    single = pb.SingleMessageMetadata(payload_size=RECORD_BYTES).SerializeToString()
    message = len(single).to_bytes(4, "big") + single + value
    count = max(1, batch_bytes // len(message))
    payload = message * count
    client = Client(url)
    await client.start()
    producers = [await client.open_producer(partition(topic, i), name=f"bare-{i}") for i in range(partitions)]

    async def send(index: int) -> None:
        pending: deque[asyncio.Future[Position]] = deque()
        for sequence in range(0, records // partitions, count):
            if len(pending) * len(payload) >= WINDOW_BYTES:
                await pending.popleft()
            metadata = pb.MessageMetadata(
                producer_name=f"bare-{index}",
                sequence_id=sequence,
                highest_sequence_id=sequence + count - 1,
                publish_time=int(time.time() * 1000),
                num_messages_in_batch=count,
            ).SerializeToString()
            pending.append(
                producers[index].send(
                    metadata,
                    payload,
                    sequence_id=sequence,
                    highest_sequence_id=sequence + count - 1,
                    num_messages=count,
                )
            )
        await asyncio.gather(*pending)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(send(i) for i in range(partitions)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await client.close()
    sent = partitions * -(-(records // partitions) // count) * count
    return {"mib_s": sent * RECORD_BYTES / seconds / 2**20, "cpu_us": cpu / sent * 1e6}


async def consume(url: str, topic: str, partitions: int, records: int) -> dict[str, float]:
    """Read all from the start; timed from the first entry to the last."""
    client = Client(url)
    await client.start()
    done = asyncio.get_running_loop().create_future()
    permits = WINDOW_BYTES // RECORD_BYTES
    seen = first = 0
    began = cpu = 0.0
    readers: list[Reader] = []

    async def read(index: int) -> None:
        def on_entry(entry: Entry) -> None:
            nonlocal seen, first, began, cpu
            seen += entry.num_messages
            if not began:
                began, cpu, first = time.perf_counter(), time.process_time(), seen
            if readers[index].permits <= permits // 2:
                readers[index].flow(permits - readers[index].permits)
            if seen >= records and not done.done():
                done.set_result(None)

        name = partition(topic, index)
        readers.append(await client.open_reader(name, EARLIEST, permits=0, on_entry=on_entry))

    for i in range(partitions):
        await read(i)
    for reader in readers:
        reader.flow(16)  # the broker's first read counts entries, not messages
    await asyncio.wait_for(done, 180)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await client.close()
    return {"mib_s": (seen - first) * RECORD_BYTES / seconds / 2**20, "cpu_us": cpu / seen * 1e6}


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
    return {"p50_ms": steady[len(steady) // 2], "p99_ms": steady[len(steady) * 99 // 100], "max_ms": steady[-1]}


def main() -> None:
    """Run one load."""
    what, url, topic, *rest = sys.argv[1:]
    if what == "produce":
        result = uvloop.run(produce(url, topic, int(rest[0]), int(rest[1]), int(rest[2])))
    elif what == "consume":
        result = uvloop.run(consume(url, topic, int(rest[0]), int(rest[1])))
    else:
        result = latency(url, topic, float(rest[0]), int(rest[1]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
