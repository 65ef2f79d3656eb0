"""Typed columns of `format("kop")` over Apache Pulsar: what Pulsar's clients write by its schemas is what Spark has.

Avro and its versions are written by pulsar-client, pairs of key and value by Pulsar's Java client, `bin/pulsar-client`,
since the former has no such schema. The cases are skipped if no Pulsar is behind the server.
"""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka_python_kit import make_topic, producer
from spark_beyond import in_pulsar, pulsar
from spark_kit import PATIENCE, case, finish, folder, identifier, read, refused, session
from suite import Run, Skip, same

ID = {"name": "id", "type": "int"}
RANK = {"name": "rank", "type": "int"}
ITEM = {"name": "item", "type": ["null", "string"], "default": None}
VERSIONS: list[list[dict[str, Any]]] = [[ID, RANK], [RANK, ID], [ITEM, RANK, ID]]
"""The fields of three versions; the bytes of the first two are other rows by each other."""
ROWS: list[dict[str, Any]] = [
    {"item": None, "rank": 1, "id": 5},
    {"item": None, "rank": 2, "id": 6},
    {"item": "tea", "rank": 3, "id": 7},
]


def schema_of(version: int) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": VERSIONS[version]}


def of_version(version: int) -> dict[str, Any]:
    """The row of a version with the fields that it has."""
    return {field["name"]: ROWS[version][field["name"]] for field in VERSIONS[version]}


@contextmanager
def client_of_pulsar() -> Iterator[tuple[Any, str]]:
    """A client of Pulsar's own, and the namespace."""
    service, namespace = in_pulsar()
    if not service:
        raise Skip("no Apache Pulsar is behind this server, or pulsar-client is not there")
    native = importlib.import_module("pulsar")
    client = native.Client(service, logger=native.ConsoleLogger(native.LoggerLevel.Error))
    try:
        yield client, namespace
    finally:
        client.close()


def send_version(client: Any, topic: str, version: int) -> None:
    """Send the row of a version by a producer of that version."""
    schemas = importlib.import_module("pulsar.schema")
    by = client.create_producer(topic, schema=schemas.AvroSchema(None, schema_definition=schema_of(version)))
    by.send(of_version(version))
    by.close()


def by_topic(how: str = "auto", **more: str) -> dict[str, str]:
    return {"valueFormat": how, "pulsar.admin.url": pulsar()[0]} | more


def values(run: Run, topic: str, **options: str) -> list[Any]:
    """The values of a topic in the order of their ids, as dicts."""
    rows = read(run, topic, **options).select("value").orderBy("value.id").collect()
    return [row.value and row.value.asDict() for row in rows]


@case(kop=True, kafka=False, limit=150)
def versions_of_avro_in_a_topic_are_columns(run: Run) -> None:
    topic = make_topic(run)
    with client_of_pulsar() as (client, namespace), folder() as path:
        name = f"persistent://{namespace}/{topic}"
        send_version(client, name, 0)
        send_version(client, name, 1)
        stream = {"kafka.bootstrap.servers": run.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        planned = session().readStream.format("kop").options(**stream, **by_topic()).load()
        send_version(client, name, 2)
        send_version(client, name, 0)
        for how in ("auto", "avro"):
            same(values(run, topic, **by_topic(how)), [ROWS[0], *ROWS], f"valueFormat={how}")
        first = [{field: row[field] for field in ("id", "rank")} for row in (ROWS[0], *ROWS)]
        same(values(run, topic, **by_topic(schemaVersion="0")), first, "by the first version")
        refused("no version 7", lambda: read(run, topic, **by_topic(schemaVersion="7")))
        table = identifier(f"versions_{topic}")
        query = planned.select("value.*").writeStream.format("memory").queryName(table)
        finish(query.option("checkpointLocation", path).trigger(availableNow=True).start(), 100)
        got = [row.asDict() for row in session().table(table).orderBy("id").collect()]
        same(got, first, "rows of a stream that was planned by the second version")
        with producer(run) as p:
            p.send(topic, b"\xff").get(timeout=20)
        place = f"topic {topic} partition 0 offset 4 is bad; value: it fits no version of its schema"
        refused(place, lambda: read(run, topic, **by_topic()).collect())
        kept = read(run, topic, **by_topic(mode="PERMISSIVE")).where("decodeError IS NOT NULL").collect()
        same([(row.offset, row.value) for row in kept], [(4, None)], "bad records")


def produce_pair(service: str, topic: str, key: str, version: int, encoding: str) -> None:
    """Send a pair of a text and the row of a version by Pulsar's Java client."""
    here = Path(__file__).resolve().parents[1]
    home = subprocess.run(
        [str(here / "pulsar_server.sh"), "home"], capture_output=True, text=True, check=True, timeout=600
    ).stdout.strip()
    arguments = ["--key-schema", "string", "--value-schema", f"avro:{json.dumps(schema_of(version))}"]
    arguments += ["--key-value-encoding-type", encoding, "--key-value-key", key, "--separator", "#"]
    done = subprocess.run(
        [f"{home}/bin/pulsar-client", "--url", service, "produce", *arguments, "-m", as_avro_json(version), topic],
        capture_output=True,
        text=True,
        check=False,
        timeout=90 * PATIENCE,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-1500:]


def as_avro_json(version: int) -> str:
    """The row of a version as Avro's JSON has it, which names the branch of a union."""
    row = of_version(version)
    return json.dumps(row | ({"item": {"string": row["item"]}} if row.get("item") else {}))


@case(kop=True, kafka=False, limit=240, encoding=["inline", "separated"])
def pairs_of_key_and_value_are_columns(run: Run, encoding: str) -> None:
    topic = make_topic(run)
    service, namespace = in_pulsar()
    if not service:
        raise Skip("no Apache Pulsar is behind this server, or pulsar-client is not there")
    for version in range(len(VERSIONS)):
        produce_pair(service, f"persistent://{namespace}/{topic}", f"k{version}", version, encoding)
    rows = read(run, topic, **by_topic(keyFormat="auto")).orderBy("offset").collect()
    if encoding == "inline":
        got = [(row.value.key, row.value.value.asDict()) for row in rows]
    else:
        got = [(row.key, row.value.asDict()) for row in rows]
    same(got, [(f"k{number}", row) for number, row in enumerate(ROWS)])


@case(kop=True, kafka=False, limit=150)
def what_is_written_by_pulsar_s_schema_is_read_by_its_client(run: Run) -> None:
    topic = make_topic(run)
    with client_of_pulsar() as (client, namespace):
        name = f"persistent://{namespace}/{topic}"
        send_version(client, name, 0)
        rows = session().createDataFrame([(number,) for number in range(8, 12)], "n int")
        writing = {"kafka.bootstrap.servers": run.bootstrap, "topic": topic} | by_topic()
        rows = rows.selectExpr("string(n) AS key", "named_struct('id', n, 'rank', -n) AS value")
        rows.write.format("kop").options(**writing).mode("append").save()
        same(values(run, topic, **by_topic())[1:], [{"id": n, "rank": -n} for n in range(8, 12)])
        schemas = importlib.import_module("pulsar.schema")
        native = importlib.import_module("pulsar")
        schema = schemas.AvroSchema(None, schema_definition=schema_of(0))
        reader = client.create_reader(name, native.MessageId.earliest, schema=schema)
        got = [reader.read_next(20_000).value() for _ in range(5)]
        same(sorted(record["id"] for record in got), [5, 8, 9, 10, 11], "ids, by Pulsar's client")
        narrow = rows.selectExpr("named_struct('id', 1L, 'rank', 2) AS value")
        refused("id has the type BIGINT", lambda: narrow.write.format("kop").options(**writing).mode("append").save())
