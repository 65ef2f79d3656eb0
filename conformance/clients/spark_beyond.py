"""What `format("kop")` has beyond Spark's Kafka source, and its own sink; over Apache Pulsar, unloads of topics, too.

KOP_SPARK_PULSAR=ADMIN-URL,NAMESPACE,SERVICE-URL names the Pulsar behind the gateway, for cases that ask it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka_python_kit import make_topic, producer
from spark_kit import (
    BOUNDED,
    FORMAT,
    PATIENCE,
    Stream,
    case,
    finish,
    folder,
    identifier,
    offsets,
    places,
    read,
    records,
    refused,
    session,
)
from suite import Run, Skip, eventually, same

beyond = functools.partial(case, kop=True, kafka=False)
EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "clicks"
DECODER = """
import json

def number(record):
    fields = json.loads(record.value)
    return {"n": fields["n"], "place": f"{record.topic}-{record.partition}-{record.offset}", "h": len(record.headers)}
"""


def pulsar() -> tuple[str, str]:
    """The admin URL and the namespace of the Pulsar behind the gateway."""
    admin, namespace, *_ = [*os.environ.get("KOP_SPARK_PULSAR", "").split(","), ""]
    if not admin:
        raise Skip("no Apache Pulsar is behind this server, or nobody says where")
    return admin, namespace


def ask(method: str, path: str) -> Any:
    """A request to Pulsar's admin REST about a topic or a partition."""
    admin, namespace = pulsar()
    url = f"{admin}/admin/v2/persistent/{namespace}/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def send(run: Run, topic: str, count: int, partition: int = 0, *, start: int = 0, **more: Any) -> None:
    """Records whose values are numbers, each in a batch of its own."""
    with producer(run) as p:
        for number in range(start, start + count):
            p.send(topic, b"%d" % number, b"k%d" % (number % 7), partition=partition, **more).get(timeout=20)


def committed(run: Run, topic: str) -> list[str]:
    """The values of a topic that a consumer with read_committed gets, in the order of each partition."""
    with KafkaConsumer(**run.kafka_python, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        parts = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        texts = []
        while any(consumer.position(part) < ends[part] for part in parts):
            texts += [r.value.decode() for some in consumer.poll(timeout_ms=500).values() for r in some]
    return texts


def output_of(script: str, *arguments: str, seconds: float, by: Sequence[str] = ()) -> str:
    """What a script beside this module prints, which has a session of its own; it has to end with 0 in time.

    `by` are arguments of Python that run it, instead of Python itself.
    """
    child = subprocess.run(
        [sys.executable, *by, str(Path(__file__).with_name(script)), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds * PATIENCE,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout


# Reading


@beyond()
def bounds_of_time_are_inclusive_or_not(run: Run) -> None:
    topic = make_topic(run)
    base = int(time.time() * 1000) - 100_000
    with producer(run) as p:
        for number in range(5):
            p.send(topic, b"x", timestamp_ms=base + number).get(timeout=10)
    asked: dict[str, Any] = {"startingTimestamp": base + 1, "endingTimestamp": base + 3}
    same(places(records(read(run, topic, **asked))), {0: [1, 2]}, "as Spark has them")
    asked |= {"startingTimestampInclusive": "false", "endingTimestampInclusive": "true"}
    same(places(records(read(run, topic, **asked))), {0: [2, 3]}, "the other way")


@beyond()
def rows_of_other_event_times_are_left_out(run: Run) -> None:
    topic = make_topic(run)
    base = int(time.time() * 1000) - 100_000
    times = [30, 10, 50, 20, 40]
    with producer(run) as p:
        for late in times:
            p.send(topic, b"x", timestamp_ms=base + late).get(timeout=10)
    within = records(read(run, topic, startingEventTime=base + 20, endingEventTime=base + 50))
    same([r.ms - base for r in within], [30, 20, 40])


@beyond(limit=120)
def decoder_gives_columns_and_names_what_it_does_not_take(run: Run) -> None:
    topic = make_topic(run)
    with producer(run) as p:
        for number in range(3):
            p.send(topic, b'{"n": %d}' % number, headers=[("a", b"b")]).get(timeout=10)
    options = {"decoder": f"decoder_{identifier(topic)}:number", "decoderSchema": "n BIGINT, place STRING, h INT"}
    with folder() as path:
        file = Path(path, f"decoder_{identifier(topic)}.py")
        file.write_text(DECODER)
        session().sparkContext.addPyFile(str(file))
        rows = read(run, topic, **options).selectExpr("decoded.*").collect()
        same([tuple(row) for row in rows], [(number, f"{topic}-0-{number}", 1) for number in range(3)])
        send(run, topic, 1, start=7)  # a number has no fields
        refused(f"topic {topic} partition 0 offset 3", lambda: read(run, topic, **options).collect())
        decoded = read(run, topic, mode="PERMISSIVE", **options).selectExpr("decoded.n", "decodeError").collect()
        same([row.n for row in decoded], [0, 1, 2, None])
        assert "TypeError" in decoded[3].decodeError, decoded[3].decodeError


@beyond()
def max_bytes_per_trigger_cuts_batches(run: Run) -> None:
    topic = make_topic(run)
    with producer(run) as p:
        for _ in range(60):
            p.send(topic, bytes(10_000)).get(timeout=10)
    with folder() as path, Stream(run, path, topic, maxBytesPerTrigger="250k", **BOUNDED) as stream:
        stream.start()
        stream.wait(60)
        assert 2 <= len(stream.sizes) <= 6, f"batches of {stream.sizes} records"


@beyond()
def messages_of_pulsar_are_bounds(run: Run) -> None:
    admin, namespace = pulsar()
    topic = make_topic(run)
    send(run, topic, 8)
    ledger = ask("GET", f"{topic}-partition-0/internalStats")["ledgers"][-1]["ledgerId"]
    asked = {"pulsar.admin.url": admin}
    first, last = (json.dumps({topic: {"0": f"{ledger}:{entry}:-1"}}) for entry in (2, 5))
    by_id: dict[str, Any] = {"startingMessageId": first, "endingMessageId": last}
    same([r.offset for r in records(read(run, topic, **asked, **by_id))], [2, 3, 4])
    by_id |= {"startingMessageIdInclusive": "false", "endingMessageIdInclusive": "true"}
    same([r.offset for r in records(read(run, topic, **asked, **by_id))], [3, 4, 5])
    full = {name: text.replace(topic, f"{namespace}/{topic}") for name, text in by_id.items()}
    same([r.offset for r in records(read(run, topic, topicNamespace=namespace, **asked, **full))], [3, 4, 5])


@beyond()
def records_are_named_as_messages_of_pulsar(run: Run) -> None:
    topic = make_topic(run)
    send(run, topic, 6)
    rows = read(run, topic, includeMetadata="true", includeHeaders="true").selectExpr("offset", "metadata.*")
    try:
        told = sorted(rows.collect())
    except Exception as error:
        if os.environ.get("KOP_SPARK_PULSAR") or "leave includeMetadata out" not in str(error):
            raise
        return
    admin, _ = pulsar()
    ledger = ask("GET", f"{topic}-partition-0/internalStats")["ledgers"][-1]["ledgerId"]
    same([row.message_id.rpartition(":")[0] for row in told], [f"{ledger}:{entry}" for entry in range(6)])
    now = time.time()
    assert all(now - 600 < row.publish_time.timestamp() < now + 1 for row in told), told
    by_id = {"pulsar.admin.url": admin, "startingMessageId": json.dumps({topic: {"0": told[3].message_id}})}
    same([r.offset for r in records(read(run, topic, **by_id))], [3, 4, 5])
    streamed: list[str] = []
    named = run.spark | {"subscribe": topic, "startingOffsets": "earliest"}
    stream = session().readStream.format(FORMAT).options(**named, includeMetadata="true").load()
    ids = stream.select("metadata.message_id").writeStream.foreachBatch(
        lambda frame, _: streamed.extend(row.message_id for row in frame.collect())
    )
    with folder() as path:
        finish(ids.option("checkpointLocation", path).trigger(availableNow=True).start())
    same(streamed, [row.message_id for row in told], "a stream")


# Writing


@beyond(limit=120)
def batch_is_written_and_an_exactly_once_one_is_written_once(run: Run) -> None:
    topic, once = make_topic(run, partitions=2), make_topic(run, partitions=2)
    # This also makes the session the active one of this thread: else Spark's writer finds no Python data source.
    numbers = session().createDataFrame([(number,) for number in range(500)], "id long").repartition(2)
    rows = numbers.selectExpr("concat('k', id % 7) key", "cast(id as string) value")
    named = run.spark
    rows.write.format(FORMAT).options(**named, topic=topic).mode("append").save()
    same(sorted(committed(run, topic), key=int), [str(n) for n in range(500)], "at least once")
    options = {"topic": once, "deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "2", "exactlyOnceId": once}
    for _ in range(2):
        rows.repartition(2, "key").write.format(FORMAT).options(**named, **options).mode("append").save()
    same(sorted(committed(run, once), key=int), [str(n) for n in range(500)], "exactly once, by a job that ran twice")


@beyond(limit=240)
def spark_connect_reads_and_writes(run: Run) -> None:
    if importlib.util.find_spec("grpc") is None:
        raise Skip("this environment has no Spark Connect: grpcio is missing")
    topic, copy = make_topic(run, partitions=2), make_topic(run, partitions=2)
    with folder() as path:
        text = output_of("spark_connect.py", json.dumps(run.spark), topic, copy, f"{path}/copy", seconds=220)
    said = json.loads(text.strip().splitlines()[-1])
    same(said, {"session": "pyspark.sql.connect.session", "values": list(range(10))})
    same(sorted(committed(run, copy), key=int), [str(n) for n in range(10)])


@beyond(limit=240)
def standalone_cluster(run: Run) -> None:
    """What `kop spark --master` gives a cluster: the tasks run in executors, which are processes of their own."""
    with folder() as path:
        on_cluster(run, path)


@beyond(limit=480, alone=True)
def executors_run_the_environment_of_an_archive(run: Run) -> None:
    """What `kop spark --pack` writes is all that an executor has of kop and of its clients."""
    with folder() as path:
        archive = f"{path}/environment.tar.gz"
        packing = [sys.executable, "-m", "kop.cli.main", "spark", "--pack", archive]
        done = subprocess.run(packing, capture_output=True, text=True, check=False, timeout=240 * PATIENCE)
        same((done.returncode, done.stderr if done.returncode else ""), (0, ""), "packing")
        settings = [f"spark.archives={archive}#environment", "spark.pyspark.python=./environment/bin/python"]
        said = on_cluster(run, path, *settings)
        for home, (python, module) in zip(said["homes"], said["origins"], strict=True):
            same(python, f"{home}/environment/bin/python", "the Python of a task")
            assert Path(module).is_relative_to(f"{home}/environment"), f"kop of a task: {module}"


def on_cluster(run: Run, path: str, *settings: str) -> Any:
    """Run a script on a cluster, with settings on one whose executors know nothing of this checkout; what it said."""
    topic, copy = make_topic(run, partitions=2), make_topic(run, partitions=2)
    with cluster(path, knows_kop=not settings) as master:
        given = ["spark.conformance=a value", "spark.driver.host=127.0.0.1", "spark.executor.memory=512m"]
        text = output_of(
            "spark_on_cluster.py",
            json.dumps(run.spark),
            topic,
            copy,
            f"{path}/checkpoint",
            seconds=180,
            by=(
                *("-m", "kop.cli.main", "spark", "--bootstrap", run.bootstrap, "--master", master),
                *(text for setting in (*given, "spark.ui.enabled=false", *settings) for text in ("--conf", setting)),
            ),
        )
        said = json.loads(text.strip().splitlines()[-1])
        same((said["master"], said["setting"]), (master, "a value"))
        same(said["values"], list(range(10)))
        assert all(home.startswith(f"{path}/work/") for home in said["homes"]), said
        same(sorted(committed(run, copy), key=int), [str(n) for n in range(10)])
        return said


@contextlib.contextmanager
def cluster(path: str, *, knows_kop: bool) -> Iterator[str]:
    """Spark's own master and one worker, of the jars in PySpark; gives the master's URL."""
    environment = {name: value for name, value in os.environ.items() if knows_kop or name != "PYTHONPATH"}
    tool = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    work = ["--cores", "2", "--memory", "1g", "--work-dir", f"{path}/work"]
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> Path:
            said = Path(path) / f"{name}.log"
            command = [*tool, f"org.apache.spark.deploy.{name.lower()}.{name}", *where, *arguments]
            with said.open("w") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return said

        def told(said: Path, words: str) -> str:
            def look() -> str:
                match = re.search(words, said.read_text())
                assert match, said.read_text()[-500:]
                return match[1]

            return str(eventually(look, 60 * PATIENCE))

        master = told(start("Master"), r"Starting Spark master at (spark://\S+)")
        told(start("Worker", *work, master), r"(Successfully registered with master)")
        yield master


@beyond(limit=180)
def progress_of_a_script_is_a_group_with_lag(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    send(run, topic, 12)
    with folder() as path:
        text = output_of("spark_progress.py", json.dumps(run.spark), topic, group, f"{path}/progress", seconds=160)
    assert topic in text, f"the table of print_lag: {text[-500:]}"
    with contextlib.closing(KafkaAdminClient(**run.kafka_python)) as admin:
        committed = admin.list_group_offsets({group: None})[group]
    same({tuple(place): value.offset for place, value in committed.items()}, {(topic, 0): 12})


@contextlib.contextmanager
def copied(run: Run, topic: str, out: str, path: str) -> Iterator[Any]:
    """A query that copies a topic, exactly once, until it is stopped."""
    named = run.spark
    source = session().readStream.format(FORMAT).options(**named, subscribe=topic, startingOffsets="earliest").load()
    query = importlib.import_module("kop.spark").write_stream(
        source.selectExpr("key", "value"),
        options=named | {"topic": out, "deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "2"},
        checkpoint=f"{path}/copy",
        trigger={"processingTime": "200 milliseconds"},
    )
    try:
        yield query
    finally:
        query.stop()


@beyond(limit=150)
def stream_is_copied_exactly_once_over_a_restart(run: Run) -> None:
    topic, out = make_topic(run, partitions=2), make_topic(run, partitions=2)
    with folder() as path:
        for start in (0, 40):
            with copied(run, topic, out, path) as query:
                send(run, topic, 40, start // 40, start=start)
                query.processAllAvailable()
    same(sorted(committed(run, out), key=int), [str(n) for n in range(80)])


@beyond(limit=240)
def topics_of_pulsar_are_unloaded_under_a_stream_and_its_sink(run: Run) -> None:
    pulsar()
    topic, out = make_topic(run, partitions=2), make_topic(run, partitions=2)
    sent = [0, 0]
    stopped = threading.Event()

    def load() -> None:
        with producer(run, linger_ms=5, retries=50) as p:
            while not stopped.is_set():
                partition = sum(sent) % 2
                p.send(topic, b"%d" % sum(sent), b"k%d" % (sum(sent) % 7), partition=partition)
                sent[partition] += 1
                time.sleep(0.005)  # a steady trickle while topics are unloaded

    loader = threading.Thread(target=load, daemon=True)
    with folder() as path, copied(run, topic, out, path) as query, Stream(run, path, topic) as stream:
        stream.start()
        loader.start()
        try:
            for _ in range(4):
                for name in (topic, out):
                    ask("PUT", f"{name}/unload")
                time.sleep(3)  # let the streams run into what the unload has closed
        finally:
            stopped.set()
            loader.join(30)
        stream.wait(sum(sent), 90)
        same(places(stream.records), {p: list(range(sent[p])) for p in range(2)}, "offsets that were read")
        query.processAllAvailable()
    numbers_out = committed(run, out)
    same(sorted(numbers_out, key=int), [str(n) for n in range(sum(sent))], "what was copied")


@beyond()
def options_that_cannot_be_kept_are_refused(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    refused(
        "set startingOffsets for each partition",
        lambda: records(read(run, topic, startingOffsets=offsets(topic, p0=0))),
    )
    named = run.spark | {"subscribe": topic}
    refused(
        "leave .schema() out", lambda: session().read.format(FORMAT).schema("x INT").options(**named).load().collect()
    )
    refused("did you mean startingOffsets", lambda: read(run, topic, startingOffset="latest").collect())
    nobody = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": 1000}
    refused("set kafka.bootstrap.servers", lambda: read(run, topic, **nobody).collect())
    with folder() as path:
        refused(
            "would never end it",
            lambda: finish(
                session()
                .readStream.format(FORMAT)
                .options(**run.spark, subscribe=topic, endingEventTime=1)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", path)
                .trigger(availableNow=True)
                .start()
            ),
        )


@beyond(limit=150)
def checkpoint_of_another_topic_is_refused(run: Run) -> None:
    topic, other = make_topic(run), make_topic(run)
    send(run, topic, 3)
    send(run, other, 5)
    with folder() as path:
        with Stream(run, path, other) as stream:
            stream.drain()
        with Stream(run, path, topic) as stream:
            refused("give the query a checkpointLocation of its own", stream.drain)


# The example of deploy/examples/clicks


@beyond(limit=180)
def example_makes_sessions_of_clicks(run: Run) -> None:
    """Clicks by a Kafka client, over Pulsar by its own client as well; sessions once, read by both."""
    sys.path.insert(0, str(EXAMPLE))
    clicks, sessions, reading = map(importlib.import_module, ("clicks", "sessions", "read_sessions"))
    topic, out = make_topic(run, partitions=2), make_topic(run, partitions=2)
    begin = int(time.time() * 1000) - 6 * 3_600_000
    made = clicks.clicks(begin)
    service, namespace = in_pulsar()
    if service:
        others = [click for session in made[1::2] for click in session]
        clicks.send_by_pulsar(service, f"persistent://{namespace}/{topic}", others)
    own = [click for session in (made[::2] if service else made) for click in session]
    plain = "{}:{}".format(*run.plain)  # it is an example without logins
    clicks.send_by_kafka(plain, [*own, clicks.the_end(begin)], topic)
    with folder() as path:
        for _ in range(2):  # the second run finds nothing to do
            query = sessions.start(
                session(), plain, f"{path}/sessions", clicks=topic, sessions=out, trigger={"availableNow": True}
            )
            finish(query, 90)
    gap = clicks.GAP_SECONDS * 1000
    wanted = sorted(
        (
            session_clicks[0].user,
            session_clicks[0].ms,
            session_clicks[-1].ms + gap,
            len(session_clicks),
            tuple(sorted({click.page for click in session_clicks})),
        )
        for session_clicks in made
    )
    same(
        [tuple(sessions_read) for sessions_read in reading.by_kafka(plain, out)],
        wanted,
        "sessions, by a Kafka client",
    )
    if service:
        sessions_read = reading.by_pulsar(service, f"persistent://{namespace}/{out}")
        same([tuple(session_clicks) for session_clicks in sessions_read], wanted, "sessions, by Pulsar's client")


def in_pulsar() -> tuple[str, str]:
    """The service URL and the namespace of the Pulsar behind the gateway, empty where there is none, or no client."""
    _, _, rest = os.environ.get("KOP_SPARK_PULSAR", "").partition(",")
    namespace, _, service = rest.partition(",")
    return (service, namespace) if importlib.util.find_spec("pulsar") else ("", "")
