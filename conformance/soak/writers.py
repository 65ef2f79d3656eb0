"""The writers of one Python client, as a process: `python -m conformance.soak.writers FAMILY FILE`.

The first line of stdin is JSON: bootstrap, user, service_url, namespace, seed, writers, topics. The process writes
until stdin ends, gives its clients FLUSH_SECONDS to finish, and leaves a line for each record in FILE (history.Write).

Owns: how each Python client is driven and what it calls an error.
Must not know: what is broken meanwhile, and what is right.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from conformance.harness import tenants
from conformance.soak.history import UNANSWERED, Write, value_of
from conformance.soak.workload import Record, Topic, Writer, records, specified

START_SECONDS = 60.0
"""How long aiokafka tries to meet a server before it gives up."""
FLUSH_SECONDS = 90.0
RECORD_SECONDS = 300.0
"""How long a client tries to deliver one record. Longer than any fault: librdkafka begins a new epoch after a timeout,
and sends what may be stored already once more in that, to any server."""
REQUEST_SECONDS = 60.0
"""How long aiokafka waits for an answer, and a record of a plain producer for its turn."""


class Log:
    """The file of a process: a line for each record once its outcome is known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], tuple[Record, float]] = {}

    def sent(self, writer: str, record: Record) -> None:
        with self._lock:
            self._open[writer, record.number] = (record, time.time())

    def done(self, writer: str, number: int, offset: int = -1, error: str = "") -> None:
        """What comes behind the first answer is ignored: the record has been given up."""
        with self._lock:
            opened = self._open.pop((writer, number), None)
            if opened is not None and not self._file.closed:
                record, sent = opened
                row = Write(writer, number, record.topic, record.partition, sent, time.time(), offset, error)
                self._file.write(json.dumps(row) + "\n")

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Give up what has no answer."""
        for writer, number in list(self._open):
            self.done(writer, number, error=UNANSWERED)
        with self._lock:
            self._file.close()


class Run:
    """What every writer of the process needs."""

    def __init__(self, specification: dict[str, Any], log: Log) -> None:
        self.bootstrap: str = specification["bootstrap"]
        self.user: str = specification["user"]
        self.service_url: str = specification["service_url"]
        self.namespace: str = specification["namespace"]
        self.seed: int = specification["seed"]
        self.topics = {fields["name"]: Topic(**fields) for fields in specification["topics"]}
        self.writers = [specified(fields) for fields in specification["writers"]]
        self.log = log
        self.stop = threading.Event()

    def records(self, writer: Writer) -> Iterator[Record]:
        return records(writer, self.topics, self.seed)


class Generation:
    """The name of a writer; another one after each fatal error, since then a new producer begins."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._number = 1
        self.name = writer.name

    def next(self) -> None:
        self._number += 1
        self.name = f"{self._writer.name}#{self._number}"


# --- librdkafka


def librdkafka(run: Run, writer: Writer) -> None:
    generation = Generation(writer)
    supply = run.records(writer)
    while not run.stop.is_set():
        fatal = _librdkafka_until_fatal(run, writer, generation.name, supply)
        if fatal:
            generation.next()


def _librdkafka_until_fatal(run: Run, writer: Writer, name: str, supply: Iterator[Record]) -> bool:
    """Write with one producer; True where it met an error after which it takes nothing more."""
    fatal = threading.Event()

    def delivered(number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            run.log.done(name, number, -1 if offset is None else offset)
        else:
            run.log.done(name, number, error=error.name())
            if error.fatal():
                fatal.set()

    def failed(error: KafkaError) -> None:
        if error.fatal():
            fatal.set()

    producer = Producer(
        {
            "bootstrap.servers": run.bootstrap,
            **tenants.librdkafka(run.user),
            "enable.idempotence": writer.idempotent,
            "acks": "all",
            "message.timeout.ms": int(RECORD_SECONDS * 1000),
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.interval.ms": 5000,
            "log_level": 0,
            "error_cb": failed,
            **writer.settings,
        }
    )
    while not run.stop.is_set() and not fatal.is_set():
        for _ in range(writer.burst):
            record = next(supply)
            run.log.sent(name, record)
            value = value_of(name, record.number, record.padding)
            while not fatal.is_set():
                try:
                    producer.produce(
                        record.topic, value, partition=record.partition, on_delivery=partial(delivered, record.number)
                    )
                    break
                except BufferError:
                    _poll(producer, 0.1)
                except KafkaException as error:
                    run.log.done(name, record.number, error=error.args[0].name())
                    break
        until = time.monotonic() + writer.pause
        while (left := until - time.monotonic()) > 0 and not fatal.is_set():
            _poll(producer, min(left, 0.1))
    end = time.monotonic() + (5 if fatal.is_set() else FLUSH_SECONDS)
    while len(producer) and time.monotonic() < end:
        _poll(producer, 0.1)
    return fatal.is_set()


def _poll(producer: Producer, seconds: float) -> None:
    """Let callbacks run. It raises a fatal error, which the callbacks are told as well."""
    try:
        producer.poll(seconds)
    except KafkaException as error:
        print(error, file=sys.stderr)


# --- aiokafka


async def aiokafka(run: Run) -> None:
    await asyncio.gather(*(_aiokafka(run, writer) for writer in run.writers))


async def _started(producer: AIOKafkaProducer) -> None:
    """Start it. On a slow machine the first fault comes before it has met a server: then again, for a while."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            await producer.start()
            return
        except AiokafkaError as error:
            if time.monotonic() > until:
                raise
            print(f"start: {error!r}", file=sys.stderr)
        await asyncio.sleep(0.2)


async def _aiokafka(run: Run, writer: Writer) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=run.bootstrap.split(","),
        acks="all",
        enable_idempotence=writer.idempotent,
        request_timeout_ms=int(REQUEST_SECONDS * 1000),
        retry_backoff_ms=100,
        metadata_max_age_ms=5000,
        **tenants.aiokafka(run.user),
        **writer.settings,
    )
    await _started(producer)

    def delivered(number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            run.log.done(writer.name, number, error="Cancelled")
        elif (error := future.exception()) is not None:
            run.log.done(writer.name, number, error=type(error).__name__)
        else:
            run.log.done(writer.name, number, future.result().offset)

    supply = run.records(writer)
    while not run.stop.is_set():
        for _ in range(writer.burst):
            record = next(supply)
            run.log.sent(writer.name, record)
            value = value_of(writer.name, record.number, record.padding)
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    future = await producer.send(record.topic, value, partition=record.partition)
            except Exception as error:
                run.log.done(writer.name, record.number, error=type(error).__name__)
                continue
            future.add_done_callback(partial(delivered, record.number))
        await asyncio.sleep(writer.pause)
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await producer.stop()
    except TimeoutError:
        pass  # what has no answer is given up by the log


# --- pulsar-client


def native(run: Run, client: pulsar.Client, writer: Writer) -> None:
    settings = {"batching_enabled": False, **writer.settings}
    if "compression" in settings:
        settings["compression_type"] = getattr(pulsar.CompressionType, settings.pop("compression"))
    if writer.sizes == "chunked":
        settings["chunking_enabled"] = True
    if settings["batching_enabled"]:
        settings["batching_max_publish_delay_ms"] = 20
    producers: dict[tuple[str, int], pulsar.Producer] = {}

    def answered(number: int, result: pulsar.Result, _: object) -> None:
        run.log.done(writer.name, number, error="" if result == pulsar.Result.Ok else str(result).rpartition(".")[2])

    for record in run.records(writer):
        if run.stop.is_set():
            break
        place = (record.topic, record.partition)
        run.log.sent(writer.name, record)
        try:
            if place not in producers:
                name = run.topics[record.topic].native_name(run.namespace, record.partition)
                # Without a first sequence id of its own the client counts from 0 again when its connection comes back
                # before its first receipt: it gives ids a second time, and a topic that deduplicates drops what has
                # them.
                producers[place] = client.create_producer(
                    name,
                    send_timeout_millis=int(RECORD_SECONDS * 1000),
                    block_if_queue_full=True,
                    initial_sequence_id=0,
                    **settings,
                )
            value = value_of(writer.name, record.number, record.padding)
            producers[place].send_async(value, partial(answered, record.number))
        except pulsar.PulsarException as error:
            run.log.done(writer.name, record.number, error=type(error).__name__)
        if (record.number + 1) % writer.burst == 0:
            run.stop.wait(writer.pause)
    for producer in producers.values():
        try:
            producer.flush()
        except pulsar.PulsarException:
            pass  # each record is told by itself


def main() -> int:
    family, path = sys.argv[1], Path(sys.argv[2])
    log = Log(path)
    run = Run(json.loads(sys.stdin.readline()), log)
    failed = threading.Event()
    work: list[Callable[[], object]]
    if family == "aiokafka":
        work = [lambda: asyncio.run(aiokafka(run))]
    elif family == "librdkafka":
        work = [partial(librdkafka, run, writer) for writer in run.writers]
    else:
        # One connection for each writer: a publish rate stops a whole connection.
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        work = [partial(native, run, pulsar.Client(run.service_url, logger=logger), writer) for writer in run.writers]

    def write(task: Callable[[], object]) -> None:
        try:
            task()
        except Exception:
            traceback.print_exc()
            failed.set()

    def watch() -> None:
        sys.stdin.read()
        run.stop.set()

    threading.Thread(target=watch, daemon=True).start()
    # Daemons: one that hangs must not keep the outcome of the others.
    threads = [threading.Thread(target=write, args=(task,), daemon=True) for task in work]
    for thread in threads:
        thread.start()
    while not run.stop.wait(1):
        log.flush()
    until = time.monotonic() + FLUSH_SECONDS + 10
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    log.close()
    sys.stderr.flush()
    return int(failed.is_set())


if __name__ == "__main__":
    os._exit(main())  # clients' own threads may hang at exit
