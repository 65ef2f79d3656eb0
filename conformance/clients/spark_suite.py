"""PySpark and its `format("kafka")`, or `format("kop")`: batch reads and writes.

Streams are in spark_streams.py, transactions in spark_transactions.py, what format("kop") alone has in spark_beyond.py,
meshes in spark_mesh.py.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import spark_beyond  # noqa: F401  (declares its cases)
import spark_mesh  # noqa: F401  (declares its cases)
import spark_mesh_driver  # noqa: F401  (declares its cases)
import spark_pulsar  # noqa: F401  (declares its cases)
import spark_streams  # noqa: F401  (declares its cases)
import spark_transactions  # noqa: F401  (declares its cases)
import spark_typed  # noqa: F401  (declares its cases)
from checks import CODECS, ODD_RECORDS, check_codec, check_idempotent, stored, values
from kafka import TopicPartition
from kafka_python_kit import admin, consumer, fill, make_topic, producer, take
from pyspark.sql import Row
from spark_kit import (
    CONNECTOR,
    FORMAT,
    JARS,
    KOP,
    ROW,
    case,
    identifier,
    numbers,
    offsets,
    places,
    quick,
    read,
    records,
    refused,
    session,
    spread,
    suite,
    write,
)
from suite import Run, emit, eventually, same

from conformance.security import MECHANISMS

NOW = int(time.time() * 1000)


# Batch source


@quick(kop=True)
def batch_read_keeps_keys_values_headers_and_times(run: Run) -> None:
    topic = make_topic(run, retention_ms="-1")
    # kafka-python itself refuses a record with neither key nor value, and a null as header value.
    wanted = [
        (key, value, [(k, v) for k, v in headers if v is not None])
        for key, value, headers in ODD_RECORDS
        if (key, value) != (None, None)
    ]
    stamps = [NOW - 1, NOW, NOW - 3_600_000, 1_500_000_000_001, 0, 1, NOW][: len(wanted)]
    with producer(run) as p:
        for (key, value, headers), ms in zip(wanted, stamps, strict=True):
            p.send(topic, value, key, headers=headers, timestamp_ms=ms).get(timeout=10)
    rows = records(read(run, topic, includeHeaders="true"))
    same([(r.key, r.value, r.headers) for r in rows], wanted)
    same([(r.ms, r.kind) for r in rows], [(ms, 0) for ms in stamps], "(time, type)")
    same([(r.topic, r.partition, r.offset) for r in rows], [(topic, 0, i) for i in range(len(wanted))])
    same("headers" in read(run, topic).columns, False, "a headers column nobody asked for")


@case(kop=True)
def log_append_time_is_the_servers(run: Run) -> None:
    topic = make_topic(run, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1000
    write(run, numbers(3), topic)
    rows = records(read(run, topic))
    same([r.kind for r in rows], [1, 1, 1], "timestampType")
    assert all(before < r.ms < before + 30_000 for r in rows), f"times {[r.ms for r in rows]}, now {before}"


@quick(kop=True)
def starting_and_ending_offsets(run: Run) -> None:
    topic = spread(run, [10, 10, 10])
    asked = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    same(places(records(read(run, topic, **asked))), {p: list(range(10)) for p in range(3)}, "earliest to latest")
    asked = {"startingOffsets": offsets(topic, p0=3, p1=-2, p2=9), "endingOffsets": offsets(topic, p0=5, p1=4, p2=-1)}
    same(places(records(read(run, topic, **asked))), {0: [3, 4], 1: [0, 1, 2, 3], 2: [9]}, "as JSON")
    asked = {"startingOffsets": offsets(topic, p0=10, p1=0, p2=0), "endingOffsets": offsets(topic, p0=10, p1=0, p2=1)}
    same(places(records(read(run, topic, **asked))), {2: [0]}, "empty ranges")


@case(kop=True)
def starting_and_ending_timestamps(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    base = NOW - 100_000
    with producer(run) as p:
        for i in range(10):
            for partition in range(2):
                p.send(topic, b"x", partition=partition, timestamp_ms=base + 1000 * i).get(timeout=10)
    asked: dict[str, Any] = {"startingTimestamp": base + 2001, "endingTimestamp": base + 7000}
    same(places(records(read(run, topic, **asked))), {0: [3, 4, 5, 6], 1: [3, 4, 5, 6]}, "one time for all")
    asked = {
        "startingOffsetsByTimestamp": offsets(topic, p0=base, p1=base + 9000),
        "endingOffsetsByTimestamp": offsets(topic, p0=base + 1000, p1=base + 60_000),
    }
    same(places(records(read(run, topic, **asked))), {0: [0], 1: [9]}, "a time for each partition; an end after all")
    late: dict[str, Any] = {"startingTimestamp": base + 60_000}
    refused(("No offset matched", "no offset"), lambda: records(read(run, topic, **late)))
    late["startingOffsetsByTimestampStrategy"] = "latest"
    same(records(read(run, topic, **late)), [], "from a time after all, strategy latest")


@case(kop=True, secure=True, mechanism=MECHANISMS)
def logs_in_by(run: Run, mechanism: str) -> None:
    topic, inside = make_topic(run), run.by(mechanism)
    write(inside, numbers(3), topic)
    same([r.value for r in records(read(inside, topic))], [b"v0", b"v1", b"v2"])


@case(kop=True)
def view_of_sql(run: Run) -> None:
    topic, spark = spread(run, [3]), session()
    if KOP:
        importlib.import_module("kop.spark").register(spark)  # PySpark has found it by itself already
    view = identifier(topic)
    options = ", ".join(f"`{name}` '{value}'" for name, value in (run.spark | {"subscribe": topic}).items())
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING {FORMAT} OPTIONS ({options})")
    rows = spark.sql(f"SELECT offset FROM {view} WHERE offset > 0 ORDER BY offset").collect()
    same([row.offset for row in rows], [1, 2])
    spark.catalog.dropTempView(view)


@quick(kop=True)
def subscribe_pattern_and_assign(run: Run) -> None:
    first, second, other = spread(run, [2, 2], "sub-a"), spread(run, [3], "sub-b"), spread(run, [1], "other")
    end = first.rsplit("-", 1)[1]

    def places_read(**how: str) -> set[tuple[str, int, int]]:
        return {(r.topic, r.partition, r.offset) for r in records(read(run, **how))}

    everything = {(first, p, o) for p in range(2) for o in range(2)} | {(second, 0, o) for o in range(3)}
    same(places_read(subscribe=f"{first},{second}"), everything, "subscribe")
    both = f"{first[: -len(end)]}({end})|{second}"
    same(places_read(subscribePattern=both), everything, "subscribePattern")
    same(
        places_read(assign=json.dumps({first: [1], other: [0]})),
        {(first, 1, 0), (first, 1, 1), (other, 0, 0)},
        "assign",
    )


@case(kop=True)
def more_tasks_than_partitions(run: Run) -> None:
    topic = spread(run, [100, 50])
    for how in ({"minPartitions": 8}, {"minPartitions": 3, "maxRecordsPerPartition": 20}):
        frame = read(run, topic, **how)
        tasks = frame.rdd.getNumPartitions()
        assert tasks >= 8, f"{tasks} tasks for {how}"
        same(places(records(frame)), {0: list(range(100)), 1: list(range(50))}, str(how))


@case(kop=True, codec=[c for c in CODECS if c != "none"])
def compressed_batches_are_read_from_within(run: Run, codec: str) -> None:
    topic = make_topic(run)
    wanted = values(200)
    with producer(run, compression_type=codec, linger_ms=200, batch_size=1 << 20) as p:
        for future in [p.send(topic, v) for v in wanted]:
            future.get(timeout=10)
    check_codec(run, topic, codec)
    asked = {"startingOffsets": offsets(topic, p0=50), "endingOffsets": offsets(topic, p0=150)}
    rows = records(read(run, topic, **asked))
    same([(r.offset, r.value) for r in rows], list(enumerate(wanted))[50:150])


@case(kop=True)
def twenty_thousand_records_each_once(run: Run) -> None:
    topic = make_topic(run, partitions=4)
    write(run, numbers(20_000, 2, "concat(id, repeat('x', 100))"), topic)
    frame = read(run, topic, **{"kafka.max.poll.records": 700, "kafka.max.partition.fetch.bytes": 5000})
    number = "cast(substring(cast(key as string), 2) as long)"
    rows = frame.selectExpr(f"{number} n", "length(value) size")
    got = rows.selectExpr("count(*)", "count(distinct n)", "sum(n)", "min(n)", "max(n)", "min(size)").first()
    same(tuple(got), (20_000, 20_000, 199_990_000, 0, 19_999, 101))


@case(kop=True)
def record_of_900_kb_round_trips(run: Run) -> None:
    topic = make_topic(run)
    write(run, numbers(1, 1, "repeat('0123456789', 90000)"), topic)
    same(records(read(run, topic))[0].value == b"0123456789" * 90_000, True, "the value is unchanged")


@case(kop=True)
def fifty_partitions_and_empty_ones(run: Run) -> None:
    topic = make_topic(run, partitions=50)
    same(records(read(run, topic)), [], "an empty topic")
    for partition in (0, 17, 49):
        fill(run, topic, 2, partition)
    same(places(records(read(run, topic))), {0: [0, 1], 17: [0, 1], 49: [0, 1]})


@case(kop=True)
def missing_topic_is_an_error_and_is_not_made(run: Run) -> None:
    topic = run.name()
    refused("UnknownTopicOrPartition", lambda: records(read(run, topic)))
    with admin(run) as a:
        assert topic not in a.list_topics(), "reading it made it"


@case(kop=True)
def deleted_records_are_left_out(run: Run) -> None:
    topic = spread(run, [10])
    with admin(run) as a:
        a.delete_records({TopicPartition(topic, 0): 6})
    same(places(records(read(run, topic))), {0: [6, 7, 8, 9]}, "earliest is the log start")
    lost = {"startingOffsets": offsets(topic, p0=2), "kafkaConsumer.pollTimeoutMs": 5000}
    refused(("failOnDataLoss", "data may have been lost", "out of range"), lambda: records(read(run, topic, **lost)))
    kept = records(read(run, topic, failOnDataLoss="false", **lost))
    same(places(kept), {0: [6, 7, 8, 9]}, "failOnDataLoss=false goes on at the log start")


@case(kop=True)
def compacted_topic_with_holes(run: Run) -> None:
    topic = make_topic(run, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.001")
    with producer(run) as p:
        for i in range(20):
            for key in (b"a", b"b", b"c"):
                p.send(topic, b"%d" % i, key).get(timeout=10)

    def compacted() -> bool:
        # Kafka compacts closed segments only: another record after segment.ms closes the one before.
        time.sleep(0.3)
        with producer(run) as p:
            p.send(topic, b"x", b"roll").get(timeout=10)
        return sum(b.count for b in stored(run, topic)) <= 10

    eventually(compacted, 60)
    kept = [r for r in records(read(run, topic, minPartitions=3)) if r.key != b"roll"]
    same([(r.offset, r.key, r.value) for r in kept], [(57, b"a", b"19"), (58, b"b", b"19"), (59, b"c", b"19")])


@case(kop=True)
def read_committed_hides_aborted_records(run: Run) -> None:
    topic = make_topic(run)
    with producer(run, transactional_id=run.group("tx"), max_block_ms=5000) as p:
        p.init_transactions()
        for word, end in ((b"kept", p.commit_transaction), (b"dropped", p.abort_transaction)):
            p.begin_transaction()
            p.send(topic, word).get(timeout=10)
            end()
    committed = {"kafka.isolation.level": "read_committed"}
    same([r.value for r in records(read(run, topic, **committed))], [b"kept"])
    uncommitted = [r.value for r in records(read(run, topic))]
    same(
        uncommitted in ([b"kept", b"dropped"], [b"kept"]),
        True,
        f"read_uncommitted sees both, over Pulsar one: {uncommitted}",
    )


@case(kop=True)
def group_ids_leave_no_group_behind(run: Run) -> None:
    topic, prefix = spread(run, [5]), run.group("prefix")
    for how in ({"groupIdPrefix": prefix}, {"kafka.group.id": prefix}, {"kafka.client.id": "spark-here"}):
        same(len(records(read(run, topic, **how))), 5, str(how))
    with admin(run) as a:
        same([g for g in map(str, a.list_groups()) if prefix in g], [], "groups of a reader that assigns")


@case()
def offsets_by_consumer_as_spark_3_asked(run: Run) -> None:
    """The old way joins a group with subscribe() and seeks, instead of asking by the admin client."""
    topic, prefix = spread(run, [5, 5]), run.group("old")
    old = session().newSession()
    old.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    asked: dict[str, Any] = {"groupIdPrefix": prefix, "endingOffsets": offsets(topic, p0=-1, p1=2)}
    same(places(records(read(run, topic, spark=old, **asked))), {0: [0, 1, 2, 3, 4], 1: [0, 1]})
    asked = {"groupIdPrefix": prefix, "startingTimestamp": NOW - 1_000_000}
    same(len(records(read(run, spark=old, subscribePattern=f"{topic}.*", **asked))), 10, "by pattern and time")


# Batch sink


@quick()
def batch_write_of_every_column(run: Run) -> None:
    first, second = make_topic(run, partitions=4), make_topic(run, partitions=2)
    schema = f"key binary, value binary, headers {ROW}, topic string, partition int"
    rows = [
        Row(bytearray(key) if key is not None else None, value, [Row(k, v) for k, v in headers] or None, topic, part)
        for (key, value, headers), topic, part in [
            (r, *where) for r in ODD_RECORDS for where in ((first, 3), (second, 1))
        ]
    ]
    write(run, session().createDataFrame(rows, schema).coalesce(1), includeHeaders="true")
    for topic, part in ((first, 3), (second, 1)):
        with consumer(run, topic) as c:
            rows_of_kafka = take(c, len(ODD_RECORDS))
        same([(r.key, r.value, list(r.headers)) for r in rows_of_kafka], ODD_RECORDS, f"as kafka-python reads {topic}")
        same({(r.topic, r.partition) for r in rows_of_kafka}, {(topic, part)}, "where they went")
    found_by_spark = records(read(run, first, includeHeaders="true"))
    same([(r.key, r.value, r.headers) for r in found_by_spark], ODD_RECORDS, "as Spark reads them")


@case()
def topic_option_wins_over_the_column(run: Run) -> None:
    topic, not_here = make_topic(run), make_topic(run)
    write(run, numbers(3, 1, "concat('v', id)", f"'{not_here}' topic"), topic)
    same([(r.key, r.value) for r in records(read(run, topic))], [(b"k%d" % i, b"v%d" % i) for i in range(3)])
    same(records(read(run, not_here)), [], "the topic of the column")


@case()
def keys_go_where_kafkas_partitioner_sends_them(run: Run) -> None:
    by_spark, by_kafka_python = make_topic(run, partitions=4), make_topic(run, partitions=4)
    write(run, numbers(40), by_spark)
    with producer(run) as p:
        for i in range(40):
            p.send(by_kafka_python, b"v%d" % i, b"k%d" % i).get(timeout=10)
    spark_places, kafka_python_places = (
        {r.key: r.partition for r in records(read(run, t))} for t in (by_spark, by_kafka_python)
    )
    same(spark_places, kafka_python_places, "key -> partition")
    same(set(spark_places.values()), {0, 1, 2, 3}, "partitions with records")


@quick()
def sink_is_idempotent(run: Run) -> None:
    topic = make_topic(run)
    write(run, numbers(1000), topic, **{"kafka.batch.size": 1000, "kafka.linger.ms": 1})
    check_idempotent(run, topic, 1000)
    same([r.key for r in records(read(run, topic))], [b"k%d" % i for i in range(1000)], "order")


@case(codec=CODECS)
def sink_compresses_as_told(run: Run, codec: str) -> None:
    topic = make_topic(run)
    write(run, numbers(200, 1, "repeat('abc', 100)"), topic, **{"kafka.compression.type": codec})
    check_codec(run, topic, codec)
    same(len(records(read(run, topic))), 200)


@case(acks=("0", "1", "all"))
def sink_acks(run: Run, acks: str) -> None:
    topic = make_topic(run)
    write(run, numbers(50), topic, **{"kafka.acks": acks, "kafka.enable.idempotence": "false"})
    eventually(lambda: sum(b.count for b in stored(run, topic)) == 50)
    same({b.producer_id for b in stored(run, topic)}, {-1}, "producer ids")


@case()
def too_large_a_record_fails_the_job(run: Run) -> None:
    topic = make_topic(run)
    large = numbers(1, 1, "repeat('0123456789', 300000)")
    text = refused(
        ("RecordTooLarge", "larger than the max"),
        lambda: write(run, large, topic, **{"kafka.max.request.size": 8 << 20, "kafka.buffer.memory": 16 << 20}),
    )
    assert "larger than the maximum request size" not in text.replace("max.request.size", ""), "never left the client"
    write(run, numbers(1), topic)
    same(len(records(read(run, topic))), 1, "records after the refusal")


@case()
def writing_makes_a_missing_topic(run: Run) -> None:
    topic = run.name()
    write(run, numbers(5), topic)
    same(len(records(read(run, topic))), 5)


if __name__ == "__main__":
    if "--list" not in sys.argv:
        try:
            session()
        except Exception as error:  # nothing was said about the server yet
            fetched = KOP or any(JARS.glob("jars/*kafka*"))
            why = f"{error}" if fetched else f"{CONNECTOR} was not fetched: is Maven Central in reach? {error}"
            emit(
                json.dumps({"client": suite.client, "missing": f"Spark does not start: {' '.join(why.split())[:400]}"})
            )
            os._exit(0)
    suite.main()
