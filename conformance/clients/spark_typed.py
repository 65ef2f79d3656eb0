"""Typed columns of `format("kop")`: what Avro, JSON and Protobuf say is what Spark's columns have."""

from __future__ import annotations

import base64
import functools
import importlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from kafka_python_kit import consumer, make_topic, producer, take
from pyspark.sql import DataFrame, functions
from spark_kit import case, finish, folder, identifier, read, refused, session
from suite import Run, same

from conformance.stub_registry import StubRegistry
from kop.schemas.confluent import frame

typed = functools.partial(case, kop=True, kafka=False, limit=150)

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": ["null", "string"]}],
}
LATER = ORDER | {"fields": [*ORDER["fields"], {"name": "price", "type": ["null", "double"], "default": None}]}
VECTORS = json.loads((Path(__file__).parents[2] / "tests" / "schemas" / "schema_vectors.json").read_text())
"""Records as confluent-kafka's serializers and pulsar-client wrote them, by three versions of a schema, with rows."""
WIDE = """named_struct(
    'id', id, 'name', concat('n', id), 'at', timestamp_micros(id * 1000), 'day', date_from_unix_date(int(id)),
    'price', cast(id as decimal(9,2)), 'ok', id % 2 = 0, 'half', id / 2, 'lines', array(named_struct('sku', 'a')),
    'labels', map('x', id), 'raw', cast('r' as binary), 'nothing', cast(null as string)) as value"""


def put(run: Run, topic: str, *values: bytes | None, key: bytes = b"k", partition: int = 0) -> None:
    with producer(run) as p:
        for value in values:
            p.send(topic, value, key, partition=partition).get(timeout=20)


def rows_to_write(count: int, *columns: str) -> DataFrame:
    """Rows by expressions of `id`. A write wants a session of its thread, which this makes the session of the suite."""
    return session().createDataFrame([(number,) for number in range(count)], "id long").selectExpr(*columns)


def by_registry(registry: StubRegistry, how: str = "avro", **more: Any) -> dict[str, Any]:
    return {"valueFormat": how, "schema.registry.url": registry.url} | more


@typed(slow=False)
def avro_of_a_registry_is_columns(run: Run) -> None:
    topic = make_topic(run)
    with StubRegistry() as registry:
        first = registry.add(f"{topic}-value", json.dumps(ORDER))
        put(run, topic, frame(first) + b"\x02\x02\x06tea", None, frame(first) + b"\x04\x00")
        rows = read(run, topic, **by_registry(registry))
        same(rows.select("value").schema.simpleString(), "struct<value:struct<id:bigint,item:string>>")
        got = rows.orderBy("offset").select("value.id", "value.item", "value").collect()
        wanted = [(1, "tea", False), (None, None, True), (2, None, False)]
        same([(row.id, row.item, row.value is None) for row in got], wanted)


@typed()
def bad_records_are_told_and_no_other_goes_with_them(run: Run) -> None:
    topic = make_topic(run)
    with StubRegistry() as registry:
        first = registry.add(f"{topic}-value", json.dumps(ORDER))
        good = frame(first) + b"\x02\x02\x06tea"
        put(run, topic, good, good[:-1], good + b"x", frame(99) + good[5:], b"text", good)
        text = refused("offset 1", lambda: read(run, topic, **by_registry(registry)).collect())
        assert f"topic {topic} partition 0 offset 1 is bad; value: by schema 1 it is cut short" in text, text
        rows = read(run, topic, **by_registry(registry, mode="PERMISSIVE")).orderBy("offset").collect()
        same([None if row.value is None else row.value.id for row in rows], [1, None, None, None, None, 1])
        same([row.decodeError is None for row in rows], [True, False, False, False, False, True])
        assert "schema 99 is not known" in rows[3].decodeError, rows[3]
        registry.down = True
        refused("schema.registry.url", lambda: read(run, topic, **by_registry(registry)))


@typed()
def stream_keeps_the_schema_it_was_planned_with(run: Run) -> None:
    topic = make_topic(run)
    with StubRegistry() as registry, folder() as path:
        first = registry.add(f"{topic}-value", json.dumps(ORDER))
        put(run, topic, frame(first) + b"\x02\x02\x06tea")
        options = {"kafka.bootstrap.servers": run.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        source = session().readStream.format("kop").options(**options, **by_registry(registry)).load()
        second = registry.add(f"{topic}-value", json.dumps(LATER))
        put(run, topic, frame(second) + b"\x04\x00\x00")
        name = identifier(f"typed_{topic}")
        query = source.select("value.*").writeStream.format("memory").queryName(name)
        query = query.option("checkpointLocation", path).trigger(availableNow=True)
        finish(query.start(), 100)
        rows = session().table(name).collect()
        same(sorted((row.id, row.item) for row in rows), [(1, "tea"), (2, None)])
        same(read(run, topic, **by_registry(registry)).select("value.*").columns, ["id", "item", "price"])
        same(read(run, topic, **by_registry(registry, schemaVersion=1)).select("value.*").columns, ["id", "item"])


@typed()
def watermark_on_a_field(run: Run) -> None:
    topic = make_topic(run)
    values = [b'{"at": "2026-01-31T12:00:%02dZ"}' % second for second in (1, 2, 31)]
    put(run, topic, *values, b'{"at": "2026-01-31T12:05:00Z"}')
    options = {"kafka.bootstrap.servers": run.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {"valueFormat": "json", "valueSchema": "at TIMESTAMP"}
    with folder() as path:
        source = session().readStream.format("kop").options(**options).load().select("value.at")
        counts = source.withWatermark("at", "1 minute").groupBy(functions.window("at", "30 seconds")).count()
        name = identifier(f"marked_{topic}")
        query = counts.writeStream.format("memory").queryName(name).option("checkpointLocation", path)
        finish(query.trigger(availableNow=True).start(), 100)
        rows = session().table(name).orderBy("window").collect()
        same([row["count"] for row in rows], [2, 1], "windows that the watermark closed")


@typed(how=["avro", "json"])
def what_is_written_is_read(run: Run, how: str) -> None:
    topic = make_topic(run, partitions=2)
    with StubRegistry() as registry:
        rows = rows_to_write(50, "concat('k', id) as key", WIDE)
        writing = {"kafka.bootstrap.servers": run.bootstrap, "topic": topic, "registerSchema": "true"}
        rows.write.format("kop").options(**writing, **by_registry(registry, how)).mode("append").save()
        same(list(registry.subjects), [f"{topic}-value"])
        got = read(run, topic, **by_registry(registry, how))
        back = got.select("value.*").orderBy("id")
        if how == "json":  # JSON Schema has no words for what these are
            back = back.withColumn("price", back.price.cast("decimal(9,2)")).withColumn(
                "raw", functions.unbase64("raw")
            )
        same(back.collect(), rows.select("value.*").orderBy("id").collect())
        registry.refusals[f"{topic}-value"] = (409, "Schema being registered is incompatible: READER_FIELD_MISSING")
        narrow = rows_to_write(1, "named_struct('other', id) as value")
        with_id = narrow.write.format("kop").options(**writing, **by_registry(registry, how)).mode("append")
        refused("READER_FIELD_MISSING", with_id.save)


@typed()
def typed_keys_are_written_and_read(run: Run) -> None:
    topic = make_topic(run, partitions=3)
    rows = rows_to_write(30, "named_struct('customer', id % 5) as key", "named_struct('id', id) as value")
    with StubRegistry() as registry:
        asked = by_registry(registry, keyFormat="avro")
        writing = {"kafka.bootstrap.servers": run.bootstrap, "topic": topic, "registerSchema": "true"}
        rows.write.format("kop").options(**writing, **asked).mode("append").save()
        same(sorted(registry.subjects), [f"{topic}-key", f"{topic}-value"])
        got = read(run, topic, **asked)
        same(got.select("key", "value").orderBy("value.id").collect(), rows.orderBy("value.id").collect())
        same(got.groupBy("key").agg(functions.countDistinct("partition").alias("p")).where("p > 1").count(), 0)
        with consumer(run, topic) as c:
            same({record.key[:5] for record in take(c, 30)}, {frame(registry.subjects[f"{topic}-key"][0])})


@typed()
def protobuf_is_written_and_read(run: Run) -> None:
    topic = make_topic(run)
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="tags", number=2, type=9, label=3)
    schema = base64.b64encode(file.SerializeToString()).decode()
    rows = rows_to_write(5, "named_struct('id', id, 'tags', array('a', concat('t', id))) as value")
    with StubRegistry() as registry:
        writing = {
            "kafka.bootstrap.servers": run.bootstrap,
            "topic": topic,
            "registerSchema": "true",
            "valueSchema": schema,
        }
        rows.write.format("kop").options(**writing, **by_registry(registry, "protobuf")).mode("append").save()
        with consumer(run, topic) as c:
            assert take(c, 5)[0].value.startswith(b"\0\0\0\0\1\0")
        got = read(run, topic, **by_registry(registry, "auto")).select("value.*").orderBy("id").collect()
        same(got, rows.select("value.*").orderBy("id").collect())


def shown(value: Any) -> Any:
    """A value of a row as the vectors have it."""
    if hasattr(value, "asDict"):
        return {name: shown(inner) for name, inner in value.asDict().items()}
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, datetime):
        return str(value.astimezone(UTC))
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)


@typed(group=["avro", "json_schema", "protobuf"])
def versions_that_confluent_s_serializers_wrote_are_rows(run: Run, group: str) -> None:
    topic, how = make_topic(run), group.partition("_")[0]
    records = VECTORS[group]["records"][:3]
    put(run, topic, *(bytes.fromhex(record["data"]) for record in records))
    with StubRegistry() as registry:
        registry.schemas = VECTORS[group]["schemas"]
        registry.subjects = {f"{topic}-value": [1, 2, 3]}
        more = {"valueMessage": "shop.Order"} if how == "protobuf" else {}
        for version in (2, 3):
            asked = by_registry(registry, how, schemaVersion=str(version), mode="PERMISSIVE", **more)
            rows = read(run, topic, **asked).orderBy("offset").collect()
            wanted = records[version - 1]["row"]
            same(shown(rows[version - 1].value), wanted, f"version {version} by itself")
            shared = wanted.keys() & records[0]["row"].keys()
            first = shown(rows[0].value)
            same({name: first[name] for name in shared}, {name: wanted[name] for name in shared}, "version 1 by it")
        same([row.decodeError for row in rows], [None] * 3)
        same([row.value.id for row in rows], [5] * 3)


@typed(group=["pulsar_avro", "pulsar_json"])
def versions_that_pulsar_s_client_wrote_are_rows(run: Run, group: str) -> None:
    """By the schema as Pulsar has it, given: this server is no Pulsar."""
    topic = make_topic(run)
    records = VECTORS[group]["records"]
    for partition, record in enumerate(records):
        version = make_topic(run) if partition else topic
        put(run, version, bytes.fromhex(record["data"]))
        schema = record["schema"]
        if group == "pulsar_json":
            schema = json.dumps({"type": "object", "properties": {name: {} for name in record["row"]}})
        asked = {"valueFormat": group.removeprefix("pulsar_"), "valueSchema": schema}
        row = shown(read(run, version, **asked).first().value)
        if group == "pulsar_avro":
            same({name: row[name] for name in record["row"]}, record["row"])
        else:
            same(
                {name: row[name] and json.loads(row[name]) for name in ("id", "price", "lines")},
                {name: record["row"][name] for name in ("id", "price", "lines")},
            )


@typed()
def keys_and_texts_are_typed(run: Run) -> None:
    topic = make_topic(run)
    put(run, topic, b"one", b"\xff", key=b"k1")
    options = {"keyFormat": "string", "valueFormat": "string", "mode": "PERMISSIVE"}
    rows = read(run, topic, **options).orderBy("offset").collect()
    same([(row.key, row.value) for row in rows], [("k1", "one"), ("k1", None)])
    same(rows[1].decodeError, "value: it is no UTF-8")


@typed()
def json_of_columns_in_spark_s_words(run: Run) -> None:
    topic = make_topic(run)
    put(
        run,
        topic,
        b'{"id": 1, "price": 1.50, "more": {"at": "2026-01-31T12:00:00Z"}}',
        b'{"id": "x"}',
        b" ",
        b'{"id": 2}{"id": 3}',
    )
    ddl = "id INT, price DECIMAL(9,2), more STRUCT<at: TIMESTAMP>"
    asked = {"valueFormat": "json", "valueSchema": ddl, "mode": "PERMISSIVE"}
    rows = read(run, topic, **asked).orderBy("offset").collect()
    same(rows[0].value.id, 1)
    same(rows[0].value.price, Decimal("1.50"))
    assert isinstance(rows[0].value.more.at, datetime)
    same([row.value is None for row in rows], [False, True, True, True])
    same([row.decodeError is None for row in rows], [True, False, True, False])


@typed()
def sql_sees_what_is_there_now(run: Run) -> None:
    kop, topic = importlib.import_module("kop.spark"), make_topic(run)
    put(run, topic, b'{"n": 1}', b'{"n": 2}')
    options = {
        "kafka.bootstrap.servers": run.bootstrap,
        "valueFormat": "json",
        "valueSchema": "n INT",
        "numbers": {"subscribe": topic},
    }
    text = "SELECT sum(value.n) AS total FROM numbers"
    same(kop.sql(session(), text, options).first().total, 3)
    put(run, topic, b'{"n": 4}')
    same(kop.sql(session(), text, options).first().total, 7)
    same(kop.sql(session(), f"SELECT count(*) AS c FROM `{topic}` WHERE value.n > 1", options).first().c, 2)
    refused("UNRESOLVED_COLUMN", lambda: kop.sql(session(), "SELECT nothing FROM numbers", options))


@typed()
def latest_is_the_newest_row_of_each_key(run: Run) -> None:
    kop, topic = importlib.import_module("kop.spark"), make_topic(run, partitions=2)
    put(run, topic, b'{"n": 1}', b'{"n": 2}', key=b"a")
    put(run, topic, b'{"n": 3}', None, key=b"b")
    put(run, topic, b'{"n": 4}', b"no", key=b"c", partition=1)
    options = {"valueFormat": "json", "valueSchema": "n INT", "keyFormat": "string", "mode": "PERMISSIVE"}
    rows = kop.latest(read(run, topic, **options)).orderBy("key").collect()
    same([(row.key, row.value and row.value.n) for row in rows], [("a", 2), ("c", None)])
    stream = {"kafka.bootstrap.servers": run.bootstrap, "subscribe": topic, "startingOffsets": "earliest"} | options
    with folder() as path:
        newest = kop.latest(session().readStream.format("kop").options(**stream).load())
        name = identifier(f"latest_{topic}")
        query = newest.writeStream.format("memory").queryName(name).option("checkpointLocation", path)
        finish(query.outputMode("complete").trigger(availableNow=True).start(), 100)
        got = session().table(name).orderBy("key").collect()
        same([(row.key, row.value and row.value.n) for row in got], [("a", 2), ("c", None)])
