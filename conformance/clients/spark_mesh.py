"""Meshes in a session: fused and apart, with state, from a file to files; a query that goes on until it is stopped.

kafka-python fills the topics and looks at what came out.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from kafka import TopicPartition
from kafka_python_kit import consumer, make_topic, producer
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from spark_kit import PATIENCE, case, folder, refused, session
from suite import Run, eventually, same

FUNCTIONS = """\
def shout(text: str) -> str:
    return text.upper()

def count(word: str, context) -> str:
    context.incr_counter(word, 1)
    return f"{word}={context.get_counter(word)}"
"""
MESH = """\
name: {name}
trigger: {trigger}
batchSeconds: 2
fuse: {fuse}
functions:
  - {{name: {name}-shout, className: words.shout, py: words.py, inputs: [{source}], output: {middle}, keepsKey: true,
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
  - {{name: {name}-count, className: words.count, py: words.py, inputs: [{middle}], output: {target}, keepsKey: true,
      stateScope: partition, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""


class Words:
    """Two functions from topic to topic, and words in the first one."""

    def __init__(self, run: Run, path: str, fuse: str, trigger: str = "batch") -> None:
        self.run = run
        self.source, self.middle, self.target = (make_topic(run, hint, partitions=2) for hint in ("in", "mid", "out"))
        Path(path, "words.py").write_text(FUNCTIONS)
        self.file = Path(path, f"{fuse}.yaml")
        self.file.write_text(
            MESH.format(
                name=self.source, trigger=trigger, fuse=fuse, source=self.source, middle=self.middle, target=self.target
            )
        )

    def say(self, words: str) -> None:
        with producer(self.run) as p:
            for word in words.split():
                p.send(self.source, word.encode(), word.encode())

    def start(self, *, once: bool) -> Any:
        from kop.spark import run_mesh

        options = {"kafka.bootstrap.servers": self.run.bootstrap}
        checkpoints = str(self.file.parent / "checkpoints")
        return run_mesh(session(), str(self.file), options=options, once=once, checkpoints=checkpoints)

    def came(self) -> list[tuple[str, str]]:
        """The keys and values that have come out."""
        made = []
        with consumer(self.run, isolation_level="read_committed", auto_offset_reset="earliest") as client:
            places = [TopicPartition(self.target, number) for number in range(2)]
            client.assign(places)
            ends = client.end_offsets(places)
            while any(client.position(place) < ends[place] for place in places):
                records = [r for some in client.poll(timeout_ms=500).values() for r in some]
                made += [((r.key or b"").decode(), r.value.decode()) for r in records]
        return made

    def counted(self) -> list[str]:
        return sorted(value for _, value in self.came())


@case(kop=True, kafka=False, limit=180, alone=True)
def a_mesh_gives_the_same_fused_and_apart(run: Run) -> None:
    with folder() as path:
        for fuse in ("true", "false"):
            words = Words(run, path, fuse)
            words.say("to be or not to be")
            same(words.start(once=True).wait(120), True, "the mesh has ended")
            same(words.counted(), ["BE=1", "BE=2", "NOT=1", "OR=1", "TO=1", "TO=2"], f"fuse: {fuse}")


@case(kop=True, kafka=False, limit=120, alone=True)
def a_mesh_goes_on_until_it_is_stopped(run: Run) -> None:
    with folder() as path:
        words = Words(run, path, "true", "continuous")
        mesh: Any = words.start(once=False)
        eventually(lambda: mesh.status()["state"] == "running", 60)
        words.say("to be")
        eventually(lambda: words.counted() == ["BE=1", "TO=1"], 60)
        words.say("or be")
        eventually(lambda: words.counted() == ["BE=1", "BE=2", "OR=1", "TO=1"], 60)
        mesh.stop()
        same(mesh.is_over, True, "the mesh has ended")


QUERIES = """\
name: {name}
trigger: {trigger}
batchSeconds: 1
queries:
  - name: {name}-spent
    sql: SELECT value.customer AS key, value.customer, sum(value.price) AS spent FROM `{source}` GROUP BY value.customer
    views:
      {source}: {{valueFormat: json, valueSchema: "customer STRING, price INT"}}
    outputMode: {mode}
    output: {middle}
  - name: {name}-rich
    sql: SELECT key, value FROM spent WHERE value.spent >= 10
    views:
      spent: {{subscribe: {middle}, keyFormat: string, valueFormat: json, valueSchema: "customer STRING, spent INT"}}
    output: {target}
    valueFormat: json
"""


class Queries(Words):
    """Two queries, of which the second reads what the first writes."""

    def __init__(self, run: Run, path: str, trigger: str, mode: str = "update") -> None:
        super().__init__(run, path, "true", trigger)
        text = QUERIES.format(name=self.source, trigger=trigger, mode=mode, source=self.source, middle=self.middle,
                              target=self.target)  # fmt: skip
        self.file.write_text(text)

    def buy(self, *sales: tuple[str, int]) -> None:
        with producer(self.run) as p:
            for customer, price in sales:
                p.send(self.source, json.dumps({"customer": customer, "price": price}).encode())


@case(kop=True, kafka=False, limit=240, alone=True)
def queries_are_run_once_and_go_on_from_there(run: Run) -> None:
    with folder() as path:
        queries = Queries(run, path, "batch")
        queries.buy(("Ann", 4), ("Bob", 12), ("Ann", 5))
        same(queries.start(once=True).wait(120 * PATIENCE), True, "the mesh has ended")
        same(queries.counted(), ['{"customer":"Bob","spent":12}'], "the first time")
        queries.buy(("Ann", 3))
        same(queries.start(once=True).wait(120 * PATIENCE), True, "the mesh has ended")
        same(queries.counted(), ['{"customer":"Ann","spent":12}', '{"customer":"Bob","spent":12}'], "the second time")


@case(kop=True, kafka=False, limit=180, alone=True)
def queries_go_on_until_they_are_stopped(run: Run) -> None:
    with folder() as path:
        queries = Queries(run, path, "continuous")
        mesh: Any = queries.start(once=False)
        eventually(lambda: mesh.status()["state"] == "running", 60)
        queries.buy(("Ann", 30))
        eventually(lambda: queries.counted() == ['{"customer":"Ann","spent":30}'], 60)
        mesh.stop()
        same([part["state"] for part in mesh.status()["components"]], ["stopped", "stopped"], "states")


@case(kop=True, kafka=False, limit=120, alone=True)
def a_query_that_wants_another_output_mode_says_so(run: Run) -> None:
    with folder() as path:
        queries = Queries(run, path, "batch", "append")
        refused(
            "be update, or complete, or give a view a watermark", lambda: queries.start(once=True).wait(100 * PATIENCE)
        )


SINKS = """\
name: {name}
trigger: batch
batchSeconds: 1
kopOptions: {{mode: PERMISSIVE, valueSchema: "n INT"}}
sinks:
  - {{name: {name}-strict, inputs: [{source}], format: json, options: {{path: {path}/strict}},
      valueFormat: json, kopOptions: {{mode: FAILFAST}}}}
  - {{name: {name}-kept, inputs: [{source}], format: json, options: {{path: {path}/kept}}, valueFormat: json}}
"""


@case(kop=True, kafka=False, limit=180, alone=True)
def a_bad_record_stops_a_sink_and_status_says_which(run: Run) -> None:
    with folder() as path:
        words = Words(run, path, "true")
        words.file.write_text(SINKS.format(name=words.source, source=words.source, path=path))
        with producer(run) as p:
            for value in (b'{"n": 1}', b"no", b'{"n": 3}'):
                p.send(words.source, value, partition=1).get(timeout=20)
        mesh: Any = words.start(once=False)
        try:
            place = f"topic {words.source} partition 1 offset 1 is bad; value: "
            eventually(lambda: any(place in part["reason"] for part in mesh.status()["components"]), 120)
            states = {part["name"].rpartition("-")[2]: part for part in mesh.status()["components"]}
            assert states["strict"]["reason"].startswith("RecordDecodeError: set mode to PERMISSIVE"), states["strict"]
            same(states["kept"]["reason"], "", "what is wrong with the other sink")

            def kept() -> list[Any]:
                files = Path(path, "kept").glob("*.json")
                rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
                return sorted(
                    (row["offset"], row.get("value"), row.get("decodeError", "").partition(":")[0]) for row in rows
                )

            eventually(lambda: kept() == [(0, {"n": 1}, ""), (1, None, "value"), (2, {"n": 3}, "")], 60)
            same(list(Path(path, "strict").glob("*.json")), [], "what the sink that has stopped has written")
        finally:
            mesh.stop()


@case(kop=True, kafka=False, limit=120, alone=True)
def a_batch_that_is_written_again_is_in_a_table_once(run: Run) -> None:
    from kop.mesh.spec import SinkPart
    from kop.spark.mesh import table_sink

    with folder() as path:
        options = {"url": f"jdbc:derby:{path}/db;create=true", "driver": "org.apache.derby.jdbc.EmbeddedDriver",
                   "dbtable": "bills"}  # fmt: skip
        write = table_sink.once(SinkPart(name="bills", inputs=("t",), format="jdbc", options=options))
        spark = session()
        rows = spark.range(6).selectExpr("id AS price", "'t' AS topic", "0 AS partition", "id AS offset")

        def prices() -> list[int]:
            return sorted(row.price for row in spark.read.format("jdbc").options(**options).load().collect())

        write(rows.where("offset < 3"), 0)
        write(rows.where("offset >= 3 and offset < 5"), 1)  # a task of it came so far
        write(rows.where("offset >= 3"), 1)
        same(prices(), [0, 1, 2, 3, 4, 5], "each row once")
        write(rows.where("offset >= 3"), 1)
        same(prices(), [0, 1, 2, 3, 4, 5], "and once again")
        write(rows.limit(1), 2)
        same(prices(), [0, 0, 1, 2, 3, 4, 5], "a record of another batch is another one")


WINDOWS = """\
name: {name}
trigger: batch
queries:
  - name: {name}-minutes
    sql: SELECT string(window.start) AS key, count(*) AS orders FROM orders GROUP BY window(at, '1 minute')
    views:
      orders: {{subscribe: {source}, valueFormat: json, valueSchema: at TIMESTAMP, watermark: value.at 5 minutes}}
    output: {target}
"""


@case(kop=True, kafka=False, limit=180, alone=True)
def a_watermark_closes_windows_and_drops_late_records(run: Run) -> None:
    with folder() as path:
        words = Words(run, path, "true")
        words.file.write_text(WINDOWS.format(name=words.source, source=words.source, target=words.target))

        def order(*minutes: int) -> None:
            with producer(run) as p:
                for minute in minutes:
                    p.send(words.source, json.dumps({"at": f"2026-01-01T12:{minute:02}:30Z"}).encode())

        def closed() -> list[tuple[int, int]]:
            return sorted((int(key[14:16]), json.loads(value)["orders"]) for key, value in words.came())

        mesh: Any = words.start(once=False)
        try:
            eventually(lambda: mesh.status()["state"] == "running", 60 * PATIENCE)
            order(0, 1, 0, 2, 10)
            eventually(lambda: closed() == [(0, 2), (1, 1), (2, 1)], 60 * PATIENCE)
            order(1, 3, 6, 30)  # minutes 1 and 3 are late, for the watermark is at 12:05:30
            eventually(lambda: closed() == [(0, 2), (1, 1), (2, 1), (6, 1), (10, 1)], 60 * PATIENCE)
        finally:
            mesh.stop()
        same(closed(), [(0, 2), (1, 1), (2, 1), (6, 1), (10, 1)], "in the end")


def lines_format() -> Any:
    """A format of a user with a writer for batches alone: a file of JSON lines for each task.

    Its classes are made here, so that they travel to Python workers, which cannot import this module.
    """

    class Writer(DataSourceWriter):  # type: ignore[misc]  # PySpark is not there for mypy
        def __init__(self, path: str) -> None:
            self._path = path

        def write(self, iterator: Any) -> Any:
            Path(self._path, f"{uuid.uuid4().hex}.lines").write_text("".join(f"{row.value}\n" for row in iterator))
            return WriterCommitMessage()

    class Lines(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "kop_lines"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer(self.options["path"])

    return Lines


OTHER = """\
name: {name}
trigger: batch
sinks:
  - name: {name}-table
    inputs: [{source}]
    format: org.apache.spark.sql.execution.datasources.jdbc.JdbcRelationProvider
    options: {{url: "jdbc:derby:{path}/db;create=true", driver: org.apache.derby.jdbc.EmbeddedDriver, dbtable: words}}
    columns: ["string(value) AS word"]
  - name: {name}-lines
    inputs: [{source}]
    format: kop_lines
    options: {{path: "{path}/lines"}}
    valueFormat: string
"""


@case(kop=True, kafka=False, limit=240, alone=True)
def sinks_of_other_formats_have_each_row_at_least_once(run: Run) -> None:
    """Spark's own writer of tables by the name of its class, of which the mesh knows nothing, and one of a user."""
    with folder() as path:
        words = Words(run, path, "true")
        words.file.write_text(OTHER.format(name=words.source, source=words.source, path=path))
        Path(path, "lines").mkdir()
        session().dataSource.register(lines_format())

        def table() -> list[str]:
            options = {"url": f"jdbc:derby:{path}/db", "driver": "org.apache.derby.jdbc.EmbeddedDriver"}
            rows = session().read.format("jdbc").options(**options, dbtable="words").load()
            return sorted(row.word for row in rows.collect())

        def lines() -> list[str]:
            return sorted(line for file in Path(path, "lines").iterdir() for line in file.read_text().splitlines())

        def both() -> tuple[list[str], list[str]]:
            return table(), lines()

        def written(count: int, end: list[str]) -> None:
            """Run to the end, and forget that a batch was written: the next run writes it again."""
            same(words.start(once=True).wait(120 * PATIENCE), True, "the mesh has ended")
            same(both(), (end, end), "what the sinks have")
            commits = [*Path(path, "checkpoints").glob(f"**/commits/{count - 1}")]
            same(len(commits), 2, "batches of the sinks")
            for commit in commits:
                commit.unlink()
                commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)

        words.say("to be or")
        written(1, ["be", "or", "to"])
        words.say("not")
        written(2, ["be", "be", "not", "or", "or", "to", "to"])


BAD = """\
import os
import time

KEPT = []

def mark(text: str) -> str:
    return text + "!"

def kills(text: str) -> str:
    if "bad" in text:
        os._exit(3)
    return text

def hangs(text: str) -> str:
    while "bad" in text:
        time.sleep(1)
    return text

def leaks(text: str) -> str:
    while "bad" in text:
        KEPT.append(bytearray(1 << 20))
        time.sleep(0.001)
    return text
"""
BAD_MESH = """\
name: {name}
trigger: {trigger}
functions:
  - {{name: {name}-mark, className: bad.mark, py: bad.py, inputs: [{source}], output: {middle},
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""
BAD_FUNCTION = """\
  - {{name: {name}-{code}, className: bad.{code}, py: bad.py, inputs: [{middle}], output: {name}-{code}-out{more},
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""
BOUNDS = {"kills": "", "hangs": ", timeoutMs: 1500", "leaks": ", resources: {ram: 600000000}", "mark": ""}


@case(kop=True, kafka=False, limit=300, alone=True)
def a_function_that_kills_hangs_or_leaks_runs_apart_and_others_go_on(run: Run) -> None:
    _set_bad_ones_apart(run, "batch")


@case(kop=True, kafka=False, limit=300, alone=True)
def a_continuous_mesh_with_too_few_cores_takes_turns_when_functions_run_apart(run: Run) -> None:
    _set_bad_ones_apart(run, "continuous")


def _set_bad_ones_apart(run: Run, trigger: str) -> None:
    with folder() as path:
        words = Words(run, path, "true")
        Path(path, "bad.py").write_text(BAD)
        text = BAD_MESH.format(trigger=trigger, name=words.source, source=words.source, middle=words.middle)
        for code, more in BOUNDS.items():
            name = words.source if code != "mark" else f"{words.source}-good"
            text += BAD_FUNCTION.format(name=name, code=code, middle=words.middle, more=more)
        words.file.write_text(text)
        mesh: Any = words.start(once=False)
        try:
            eventually(lambda: mesh.status()["state"] == "running", 60)
            words.say("a bad b")
            words.target = f"{words.source}-good-mark-out"
            eventually(lambda: words.counted() == ["a!!", "b!!", "bad!!"], 240)
            words.say("c")
            eventually(lambda: words.counted() == ["a!!", "b!!", "bad!!", "c!!"], 60)
            components = {part["name"].rpartition("-")[2]: part for part in mesh.status()["components"]}
            same(sorted(components), ["hangs", "kills", "leaks", "mark"], "the functions that run apart")
            for code in ("kills", "hangs", "leaks"):
                where = f"{words.source}-{code}"
                told = " ".join(components[code]["ended_calls"])
                same(where in told, True, f"what is told of {code}: {told}")
        finally:
            mesh.stop()
