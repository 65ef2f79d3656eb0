"""PySpark's `format("kafka")` with kafka.isolation.level=read_committed: open, aborted and committed transactions.

Owns: reading to the very end of logs that end in markers or in aborted records, batch and stream.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from kafka import KafkaProducer
from kafka_python_kit import fill, make_topic, producer
from spark_kit import Record, Stream, case, folder, offsets, quick, read, records
from suite import Run, eventually, same

COMMITTED = {"kafka.isolation.level": "read_committed"}


@contextlib.contextmanager
def transactional(run: Run) -> Iterator[KafkaProducer]:
    with producer(run, transactional_id=run.group("tx"), transaction_timeout_ms=600_000, max_block_ms=20_000) as p:
        p.init_transactions()
        yield p


def put(p: KafkaProducer, topic: str, partition: int, *values: str) -> None:
    """Records of the open transaction, one batch each."""
    for value in values:
        p.send(topic, value.encode(), partition=partition).get(timeout=20)


def transact(p: KafkaProducer, topic: str, partition: int, *values: str, commit: bool = True) -> None:
    p.begin_transaction()
    put(p, topic, partition, *values)
    if commit:
        p.commit_transaction()
    else:
        p.abort_transaction()


def values(rows: list[Record]) -> dict[int, list[str]]:
    """Partition -> its values, in the order of the log."""
    out: dict[int, list[str]] = {}
    for record in rows:
        out.setdefault(record.partition, []).append((record.value or b"").decode())
    return out


def filled(run: Run, p: KafkaProducer) -> tuple[str, dict[int, list[str]]]:
    """A topic whose partitions end in a marker, in aborted records, or in plain ones; what is committed in each."""
    topic = make_topic(run, partitions=4)
    transact(p, topic, 0, "a", "b")
    transact(p, topic, 0, *(f"aborted {i}" for i in range(5)), commit=False)
    transact(p, topic, 1, *(f"aborted {i}" for i in range(5)), commit=False)
    transact(p, topic, 2, "aborted", commit=False)
    transact(p, topic, 2, "c", "d")
    fill(run, topic, 2, 3)
    transact(p, topic, 3, "aborted", commit=False)
    fill(run, topic, 2, 3, start=2)
    return topic, {0: ["a", "b"], 2: ["c", "d"], 3: ["v0", "v1", "v2", "v3"]}


@quick(limit=180)
def read_committed_batch_to_the_end_of_markers_and_aborted_records(run: Run) -> None:
    with transactional(run) as p:
        topic, wanted = filled(run, p)
    same(values(records(read(run, topic, **COMMITTED))), wanted, "earliest to latest")
    same(
        values(records(read(run, topic, minPartitions=12, **COMMITTED))), wanted, "by many tasks, some without a record"
    )
    # Offsets lie apart by markers: one behind a transaction, over Pulsar another one in front of it.
    c = next(r.offset for r in records(read(run, topic, **COMMITTED)) if r.value == b"c")
    for end, some in ((c, {}), (c + 1, {2: ["c"]})):
        asked = {"startingOffsets": offsets(topic, p2=0), "endingOffsets": offsets(topic, p2=end)}
        frame = read(run, assign=json.dumps({topic: [2]}), **asked, **COMMITTED)
        same(values(records(frame)), some, f"aborted records and markers, up to offset {end}")
    # What was aborted is in the log; over Pulsar nobody is shown it.
    seen = values(records(read(run, topic)))
    same(
        {p: [v for v in seen[p] if v[0] != "a" or len(v) == 1] for p in wanted},
        wanted,
        "as read_uncommitted, the default",
    )


@quick(limit=180)
def read_committed_batch_ends_where_an_open_transaction_begins(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    with transactional(run) as p:
        transact(p, topic, 0, "before")
        p.begin_transaction()
        put(p, topic, 0, "inside")
        put(p, topic, 1, "inside")
        fill(run, topic, 1, 0)
        same(values(records(read(run, topic, **COMMITTED))), {0: ["before"]}, "while it is open")
        p.commit_transaction()
        same(
            values(records(read(run, topic, **COMMITTED))),
            {0: ["before", "inside", "v0"], 1: ["inside"]},
            "after its commit",
        )
        p.begin_transaction()
        put(p, topic, 1, "aborted")
        same(values(records(read(run, topic, **COMMITTED)))[1], ["inside"], "while another is open")
        p.abort_transaction()
    same(values(records(read(run, topic, **COMMITTED)))[1], ["inside"], "after its abort")


@quick(limit=180)
def read_committed_stream_drains_logs_of_markers_and_aborted_records(run: Run) -> None:
    with transactional(run) as p:
        topic, wanted = filled(run, p)
        for limit in ({}, {"maxOffsetsPerTrigger": 3}, {"minPartitions": 9}):
            with folder() as path, Stream(run, path, topic, **COMMITTED, **limit) as stream:
                stream.drain()
                same(values(stream.records), wanted, f"with {limit}")
                stream.drain()
                same(values(stream.records), wanted, f"again, with {limit}")
        with folder() as path, Stream(run, path, topic, **COMMITTED) as stream:
            stream.drain()
            p.begin_transaction()
            put(p, topic, 1, "open")
            stream.drain()
            same(values(stream.records), wanted, "while a transaction is open")
            p.commit_transaction()
            transact(p, topic, 1, "aborted", commit=False)
            stream.drain()
            same(values(stream.records), wanted | {1: ["open"]}, "after its commit")


@case(limit=180)
def read_committed_stream_over_transactions_that_end_meanwhile(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    wanted: dict[int, list[str]] = {0: [], 1: []}
    with folder() as path, transactional(run) as p, Stream(run, path, topic, **COMMITTED).start() as stream:
        for i in range(12):
            p.begin_transaction()
            for partition in range(2):
                put(p, topic, partition, f"{i}", f"{i}'")
            if i % 3 == 2:
                p.abort_transaction()
                continue
            p.commit_transaction()
            for partition in range(2):
                wanted[partition] += [f"{i}", f"{i}'"]
            if i % 4 == 0:
                stream.wait(sum(map(len, wanted.values())))
        stream.wait(sum(map(len, wanted.values())))
        same(values(stream.records), wanted)
        # The log ends in an abort: the stream has to come to its end, and to see what follows.
        eventually(
            lambda: (
                stream.progress and float(stream.progress[-1]["sources"][0]["metrics"]["maxOffsetsBehindLatest"]) == 0
            ),
            30,
        )
        transact(p, topic, 0, "last")
        stream.wait(sum(map(len, wanted.values())) + 1)
        stream.stop()
        transact(p, topic, 1, "aborted", commit=False)
        stream.start()
        transact(p, topic, 1, "after a restart")
        stream.wait(sum(map(len, wanted.values())) + 2)


@case(limit=300)
def read_committed_stream_over_a_long_aborted_transaction(run: Run) -> None:
    """More aborted bytes than one fetch holds: many polls bring nothing, and the source has to go on all the same."""
    topic = make_topic(run)
    with transactional(run) as p:
        transact(p, topic, 0, "first")
        p.begin_transaction()
        for future in [p.send(topic, bytes(20_000), partition=0) for _ in range(500)]:
            future.get(timeout=30)
        p.abort_transaction()
        same(values(records(read(run, topic, **COMMITTED))), {0: ["first"]}, "batch")
        same(
            values(records(read(run, topic, maxRecordsPerPartition=100, **COMMITTED))), {0: ["first"]}, "by many tasks"
        )
        with folder() as path, Stream(run, path, topic, maxOffsetsPerTrigger=200, **COMMITTED) as stream:
            stream.drain()
            same(values(stream.records), {0: ["first"]}, "stream")
            transact(p, topic, 0, "last")
            stream.drain()
            same(values(stream.records), {0: ["first", "last"]}, "stream, then")
