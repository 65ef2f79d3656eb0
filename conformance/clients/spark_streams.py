"""PySpark's own `format("kafka")` as a stream: source, sink, checkpoints, triggers, lost records."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from kafka import TopicPartition
from kafka_python_kit import admin, consumer, fill, make_topic, producer, take
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, window
from spark_kit import (
    BOUNDED,
    FORMAT,
    KOP,
    LIMITS,
    ROW,
    Stream,
    case,
    finish,
    folder,
    numbers,
    offsets,
    places,
    quick,
    read,
    records,
    refused,
    session,
    spread,
    write,
)
from suite import Run, eventually, same


def source(run: Run, topic: str, **options: Any) -> DataFrame:
    """A stream of one topic, from the earliest record on unless told otherwise."""
    named = run.spark | {"subscribe": topic, "startingOffsets": "earliest"}
    return session().readStream.format(FORMAT).options(**named | options).load()


def sink(run: Run, frame: DataFrame, path: str, topic: str | None, mode: str = "append", **trigger: Any) -> Any:
    """Start a query into Kafka; AvailableNow without a trigger."""
    writer = frame.writeStream.format("kafka").outputMode(mode).options(**run.spark)
    writer = writer.option("checkpointLocation", f"{path}/sink")
    return (writer.option("topic", topic) if topic else writer).trigger(**trigger or {"availableNow": True}).start()


def written(run: Run, topic: str, count: int) -> list[Any]:
    """Exactly so many records of a topic, as kafka-python reads them."""
    with consumer(run, topic) as c:
        return take(c, count, 45)


def committed(path: str) -> str:
    """The offsets that a sink's checkpoint will go on from."""
    done = max(
        (int(file.name) for file in Path(path, "sink", "commits").iterdir() if file.name.isdigit()), default=None
    )
    return "" if done is None else Path(path, "sink", "offsets", str(done)).read_text()


def commits(path: str, end: int) -> bool:
    """Whether the sink's last committed batch ends at this offset of partition 0."""
    return f'"0":{end}}}' in committed(path)


def filled(run: Run, topic: str, partition: int) -> bool:
    """Write four records, which raises where there is no such partition yet."""
    fill(run, topic, 4, partition)
    return True


def lose(run: Run, topic: str, before: int) -> None:
    """Delete the records of partition 0 before an offset."""
    with admin(run) as a:
        a.delete_records({TopicPartition(topic, 0): before})


# Reading


@quick(kop=True)
def available_now_reads_all_and_a_restart_only_the_new(run: Run) -> None:
    topic = spread(run, [20, 10])
    with folder() as path, Stream(run, path, topic, includeHeaders="true") as stream:
        stream.drain()
        same(places(stream.records), {0: list(range(20)), 1: list(range(10))}, "first run")
        same({(r.key, r.value) for r in stream.records}, {(b"k%d" % i, b"v%d" % i) for i in range(20)})
        stream.drain()
        same(len(stream.records), 30, "records after a second run with nothing new")
        fill(run, topic, 5, 1)
        stream.drain()
        same(places(stream.records[30:]), {1: [10, 11, 12, 13, 14]}, "third run")


@case(kop=True)
def records_arrive_as_they_are_written(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    with folder() as path, Stream(run, path, topic).start() as stream:
        for count in (1, 2, 3):
            fill(run, topic, 10, count % 2)
            stream.wait(10 * count)
        same(places(stream.records), {0: list(range(10)), 1: list(range(20))})


@case(kop=True)
def stream_from_latest_and_from_a_time(run: Run) -> None:
    topic = spread(run, [5])
    with folder() as path, Stream(run, path, topic, startingOffsets="latest").start() as stream:
        eventually(lambda: stream.progress, 45)
        fill(run, topic, 3)
        same([r.offset for r in stream.wait(3)], [5, 6, 7], "from latest")
    later = int(time.time() * 1000) + 60_000
    with producer(run) as p:
        p.send(topic, b"later", timestamp_ms=later).get(timeout=10)
    with folder() as path, Stream(run, path, topic, startingTimestamp=later - 1000) as stream:
        stream.drain()
        same([(r.offset, r.ms) for r in stream.records], [(8, later)], "from a time")
    with folder() as path, Stream(run, path, topic, startingOffsets=offsets(topic, p0=6)) as stream:
        stream.drain()
        same([r.offset for r in stream.records], [6, 7, 8], "from an offset")


@case(kop=True, limit=120)
def stream_from_latest_whose_first_batch_fails(run: Run) -> None:
    topic = spread(run, [5])
    with folder() as path, Stream(run, path, topic, startingOffsets="latest") as stream:
        keep = stream._keep

        def fail(frame: DataFrame, batch: int) -> None:
            raise RuntimeError(f"batch {batch} is not taken")

        stream._keep = fail  # type: ignore[method-assign]
        refused("batch 0 is not taken", lambda: finish(stream.start().query))
        fill(run, topic, 3)
        stream._keep = keep  # type: ignore[method-assign]
        stream.start()
        same([r.offset for r in stream.wait(3)], [5, 6, 7], "what came since the query began")


@quick(kop=True)
def max_offsets_per_trigger_cuts_batches(run: Run) -> None:
    topic = spread(run, [500, 500])
    with folder() as path, Stream(run, path, topic, maxOffsetsPerTrigger=400, **BOUNDED) as stream:
        if LIMITS:
            stream.drain()
        else:
            stream.start()
            stream.wait(1000)
        same(places(stream.records), {0: list(range(500)), 1: list(range(500))})
        same([len(stream.sizes), max(stream.sizes) <= 400], [3, True], f"(batches, none above 400) of {stream.sizes}")


@case(kop=True)
def more_tasks_than_partitions_in_a_stream(run: Run) -> None:
    topic, tasks = spread(run, [100, 50]), []
    with folder() as path:
        writer = source(run, topic, maxRecordsPerPartition=20).writeStream.option("checkpointLocation", path)
        keep = writer.foreachBatch(
            lambda frame, _: tasks.append((frame.rdd.getNumPartitions(), places(records(frame))))
        )
        finish(keep.trigger(availableNow=True).start())
    same(tasks, [(8, {0: list(range(100)), 1: list(range(50))})], "(tasks, offsets) of each batch")


@case(kop=True)
def min_offsets_per_trigger_waits_for_more(run: Run) -> None:
    topic = spread(run, [60])
    options = {"minOffsetsPerTrigger": 50, "maxTriggerDelay": "10m"} | BOUNDED
    with folder() as path, Stream(run, path, topic, **options).start() as stream:
        stream.wait(60)
        fill(run, topic, 20)
        time.sleep(3)  # nothing may come: there is no event to wait for
        same(len(stream.records), 60, "records while fewer than the minimum are new")
        fill(run, topic, 30)
        stream.wait(110)
        same(stream.sizes[-1], 50, "records of the last batch")


@case(kop=True)
def partitions_added_during_a_stream(run: Run) -> None:
    topic = spread(run, [5])
    with folder() as path, Stream(run, path, topic).start() as stream:
        stream.wait(5)
        with admin(run) as a:
            a.create_partitions({topic: 3})
        for partition in range(3):
            eventually(partial(filled, run, topic, partition))
        same(places(stream.wait(17)), {0: list(range(9)), 1: [0, 1, 2, 3], 2: [0, 1, 2, 3]})


@case(kop=True)
def topic_that_begins_to_match_the_pattern(run: Run) -> None:
    topic = spread(run, [5], "pattern")
    second = f"{topic}-second"
    with folder() as path, Stream(run, path, subscribePattern=f"{topic}.*").start() as stream:
        stream.wait(5)
        run.topics.append(second)
        with admin(run) as a:
            a.create_topics({second: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
        fill(run, second, 3, 1)
        stream.wait(8)
        same([(r.topic, r.partition, r.offset) for r in stream.records[5:]], [(second, 1, i) for i in range(3)])


@case(kop=True)
def progress_tells_offsets_and_lag(run: Run) -> None:
    topic = spread(run, [30])
    with folder() as path, Stream(run, path, topic, maxOffsetsPerTrigger=10, **BOUNDED).start() as stream:
        stream.wait(30)
        eventually(lambda: len([p for p in stream.progress if p["numInputRows"]]) >= 3)
        seen = [p["sources"][0] for p in stream.progress if p["numInputRows"]]
    same([json.loads(s["endOffset"]) for s in seen], [{topic: {"0": n}} for n in (10, 20, 30)], "endOffset")
    if LIMITS:
        same([json.loads(s["latestOffset"]) for s in seen], [{topic: {"0": 30}}] * 3, "latestOffset")
    if KOP:
        return  # a Python source has no metrics of its own
    for metric in ("minOffsetsBehindLatest", "maxOffsetsBehindLatest"):
        same([int(float(s["metrics"][metric])) for s in seen], [20, 10, 0], metric)


@case(kop=True)
def kafka_options_of_the_consumer(run: Run) -> None:
    topic, prefix = spread(run, [300, 300]), run.group("prefix")
    options = {
        "groupIdPrefix": prefix,
        "kafka.client.id": "spark-here",
        "kafka.max.poll.records": 7,
        "kafka.fetch.min.bytes": 100_000,
        "kafka.fetch.max.wait.ms": 100,
        "kafka.max.partition.fetch.bytes": 2000,
        "kafka.receive.buffer.bytes": 4096,
        "kafka.check.crcs": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.metadata.max.age.ms": 500,
        "minPartitions": 4,
    }
    with folder() as path, Stream(run, path, topic, **options).start() as stream:
        same(places(stream.wait(600)), {p: list(range(300)) for p in range(2)})
        with admin(run) as a:
            same([g for g in map(str, a.list_groups()) if prefix in g], [], "groups of a reader that assigns")


@case()
def offsets_of_a_stream_by_consumer_as_spark_3_asked(run: Run) -> None:
    topic, prefix = spread(run, [5]), run.group("old")
    old = session().newSession()
    old.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    with folder() as path, Stream(run, path, topic, groupIdPrefix=prefix).start(old) as stream:
        stream.wait(5)
        with admin(run) as a:
            assert any(prefix in str(g) for g in a.list_groups()), "no group of this prefix, and the driver joins one"
        fill(run, topic, 4)
        same([r.offset for r in stream.wait(9)], list(range(9)))


# Lost records


@quick(kop=True)
def records_deleted_under_a_stopped_stream(run: Run) -> None:
    topic = spread(run, [10])
    with folder() as path, Stream(run, path, topic) as stream:
        stream.drain()
        fill(run, topic, 10)
        lose(run, topic, 15)
        refused(("data may have been lost", "data loss", "DATA_LOSS", "out of range"), stream.drain)
        same(len(stream.records), 10, "records after the error")
        stream.options["failOnDataLoss"] = "false"
        stream.drain()
        same([r.offset for r in stream.records], [*range(10), *range(15, 20)], "with failOnDataLoss=false")


@case(kop=True)
def all_records_deleted_under_a_stopped_stream(run: Run) -> None:
    topic = spread(run, [10])
    with folder() as path, Stream(run, path, topic, failOnDataLoss="false") as stream:
        stream.drain()
        fill(run, topic, 10)
        lose(run, topic, 20)
        stream.drain()
        same(len(stream.records), 10, "records while the log is empty")
        fill(run, topic, 2)
        stream.drain()
        same([r.offset for r in stream.records], [*range(10), 20, 21])


@case(kop=True)
def topic_deleted_and_made_again_under_a_stopped_stream(run: Run) -> None:
    topic = spread(run, [10])
    with folder() as path, Stream(run, path, topic) as stream:
        stream.drain()
        with admin(run) as a:
            a.delete_topics([topic])
            eventually(lambda: topic not in a.list_topics())
            eventually(
                lambda: a.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
            )
        fill(run, topic, 4)
        refused(("data may have been", "offset was changed", "DATA_LOSS"), stream.drain)
        stream.options["failOnDataLoss"] = "false"
        stream.drain()
        fill(run, topic, 3)
        stream.drain()
        same([r.offset for r in stream.records[-3:]], [4, 5, 6], "what was written once the stream knew the new topic")


# Writing


@quick()
def stream_from_topic_to_topics_with_headers(run: Run) -> None:
    topic, even, odd = make_topic(run), make_topic(run, partitions=2), make_topic(run, partitions=2)
    with producer(run) as p:
        for i in range(20):
            headers = [("n", str(i).encode()), ("bytes", bytes(range(256)))]
            p.send(topic, b"v%d" % i, b"k%d" % i, headers=headers).get(timeout=10)
    where = f"case when offset % 2 = 0 then '{even}' else '{odd}' end topic"
    columns = ["key", "cast(upper(cast(value as string)) as binary) value", f"cast(headers as {ROW}) headers"]
    with folder() as path:
        frame = source(run, topic, includeHeaders="true").selectExpr(*columns, "1 partition", where)
        finish(sink(run, frame, path, None))
    for name, first in ((even, 0), (odd, 1)):
        got = [(r.partition, r.key, r.value, list(r.headers)) for r in written(run, name, 10)]
        wanted = [
            (1, b"k%d" % i, b"V%d" % i, [("n", str(i).encode()), ("bytes", bytes(range(256)))])
            for i in range(first, 20, 2)
        ]
        same(got, wanted, name)


@case()
def replayed_batch_is_written_twice_and_nothing_is_lost(run: Run) -> None:
    """A sink that dies between its write and its commit: at least once, as Spark promises."""
    topic, out = spread(run, [100]), make_topic(run)
    with folder() as path:
        frame = source(run, topic, maxOffsetsPerTrigger=40).select("key", "value")
        finish(sink(run, frame, path, out))
        commits = sorted((int(c.name), c) for c in Path(path, "sink", "commits").iterdir() if c.name.isdigit())
        for file in (commits[-1][1], commits[-1][1].with_name(f".{commits[-1][0]}.crc")):
            file.unlink()
        finish(sink(run, frame, path, out))
    wanted = [b"k%d" % i for i in [*range(100), *range(80, 100)]]
    same([r.key for r in written(run, out, 120)], wanted)


@case(kop=True, limit=120)
def restarts_under_load_lose_and_repeat_nothing(run: Run) -> None:
    """Into files, which Spark commits with the batch: what its checkpoint of offsets gives is exactly once."""
    topic, stopped = make_topic(run, partitions=3), threading.Event()
    sent = [0, 0, 0]

    def load() -> None:
        with producer(run, linger_ms=5) as p:
            while not stopped.is_set():
                partition = sum(sent) % 3
                p.send(topic, b"%d" % sent[partition], partition=partition)
                sent[partition] += 1
                time.sleep(0.002)  # a steady trickle, over all of the query's restarts

    def start(path: str, **trigger: Any) -> Any:
        rows = source(run, topic).selectExpr("partition", "offset", "cast(value as string) value")
        files = (
            rows.writeStream.format("json").option("checkpointLocation", f"{path}/files").option("path", f"{path}/out")
        )
        return files.trigger(**trigger).start()

    loader = threading.Thread(target=load, daemon=True)
    with folder() as path:
        loader.start()
        try:
            for _ in range(3):
                query = start(path, processingTime="100 milliseconds")
                time.sleep(4)  # let it run into the trickle, then cut it off
                query.stop()
        finally:
            stopped.set()
            loader.join(20)
        finish(start(path, availableNow=True))
        rows_read = session().read.schema("partition int, offset long, value string").json(f"{path}/out").collect()
    same(sorted(tuple(r) for r in rows_read), [(p, n, str(n)) for p in range(3) for n in range(sent[p])])


@case(limit=120)
def windows_are_counted_across_a_restart(run: Run) -> None:
    topic, out = make_topic(run, partitions=2), make_topic(run)
    base = int(time.time() * 1000) // 60_000 * 60_000 - 600_000

    def events(spec: list[tuple[str, int]]) -> None:
        with producer(run) as p:
            for i, (key, second) in enumerate(spec):
                ms = base + 1000 * second
                p.send(topic, b"x", key.encode(), partition=i % 2, timestamp_ms=ms).get(timeout=10)

    with folder() as path:
        frame = source(run, topic).withWatermark("timestamp", "1 minute")
        counted = frame.groupBy(col("key"), window("timestamp", "10 seconds").alias("w")).agg(count("*").alias("n"))
        rows = counted.selectExpr("key", "to_json(struct(unix_millis(w.start) start, n)) value")
        events([("a", 0), ("a", 9), ("b", 9), ("a", 10)])
        finish(sink(run, rows, path, out, "update"))
        events([("a", 5), ("b", 11), ("b", 19)])
        finish(sink(run, rows, path, out, "update"))
    last = {}
    with consumer(run, out) as c:
        for r in take(c, 5, 45):
            value = json.loads(r.value)
            last[r.key, (value["start"] - base) // 1000] = value["n"]
    same(last, {(b"a", 0): 3, (b"b", 0): 1, (b"a", 10): 1, (b"b", 10): 2})


@case(alone=True)
def continuous_trigger_from_topic_to_topic(run: Run) -> None:
    """Spark's tasks that never end: one for each partition, commits between batches."""
    topic, out = make_topic(run), make_topic(run)
    with folder() as path:
        frame = source(run, topic).select("key", "value")
        for start in (0, 30):
            query = sink(run, frame, path, out, continuous="500 milliseconds")
            try:
                fill(run, topic, 30, start=start)
                got = [r.key for r in written(run, out, start + 30)]
                same(got[start:], [b"k%d" % i for i in range(start, start + 30)])
                eventually(partial(commits, path, start + 30), 30)
                assert query.exception() is None, str(query.exception())
            finally:
                query.stop()
    same(len(records(read(run, out))), 60)


@case(kop=True)
def two_queries_on_one_topic_see_all_of_it(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    with (
        folder() as first_path,
        folder() as second_path,
        Stream(run, first_path, topic).start() as a,
        Stream(run, second_path, topic).start() as b,
    ):
        write(run, numbers(50, 2), topic)
        for stream in (a, b):
            same({r.key for r in stream.wait(50)}, {b"k%d" % i for i in range(50)})
