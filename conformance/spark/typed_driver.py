"""The session that `typed.py` measures: reads the topic of the format that each line of its standard input names.

python typed_driver.py BOOTSTRAP REGISTRY RECORDS
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import time
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError
from pyspark.sql import SparkSession

from kop.schemas.access import RegistryAccess
from kop.schemas.confluent import ConfluentRegistry, Schema, frame

PARTITIONS = 4
DIFFERENT = 1000
"""How many records there are of each format, over and over."""
LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "first", "type": LINE},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
DDL = (
    "id BIGINT, customer STRING, item STRING, price DOUBLE, paid BOOLEAN, at TIMESTAMP, day DATE, "
    "first STRUCT<sku: STRING, count: INT>, tags ARRAY<STRING>"
)
_parsed = fastavro.parse_schema(AVRO)


def decode(record: Any) -> Any:
    """The decoder that a user would write."""
    return fastavro.schemaless_reader(io.BytesIO(record.value[5:]), _parsed, None)


def order(number: int) -> dict[str, Any]:
    return {
        "id": number * 7919,
        "customer": f"customer-{number % 97}",
        "item": None if number % 5 == 0 else f"item {number % 31}",
        "price": number / 8,
        "paid": number % 2 == 0,
        "at": 1_700_000_000_000 + number * 1000,
        "day": 19_000 + number % 300,
        "first": {"sku": f"s{number % 13}", "count": number % 9},
        "tags": ["a", f"t{number % 7}"][: number % 3],
    }


def as_json(value: dict[str, Any]) -> bytes:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value["at"] // 1000))
    day = time.strftime("%Y-%m-%d", time.gmtime(value["day"] * 86_400))
    return json.dumps(value | {"at": at, "day": day}).encode()


def as_avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed, value)
    return out.getvalue()


def protobuf() -> tuple[str, Any]:
    """The schema in base64, and the class of its message."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="bench", syntax="proto3")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    line.field.add(name="count", number=2, type=5, label=1)
    made = file.message_type.add(name="Order")
    kinds = {"id": 3, "customer": 9, "item": 9, "price": 1, "paid": 8, "at": 3, "day": 5}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        made.field.add(name=name, number=number, type=kind, label=1)
    made.field.add(name="first", number=8, type=11, type_name=".bench.Line", label=1)
    made.field.add(name="tags", number=9, type=9, label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Order"))
    return base64.b64encode(file.SerializeToString()).decode(), message


def fill(bootstrap: str, registry: str, records: int) -> None:
    """The topics, unless they are there."""
    client = ConfluentRegistry(RegistryAccess(registry))
    schema, kind = protobuf()
    avro = frame(client.register("avro-value", Schema("AVRO", json.dumps(AVRO))))
    proto = frame(client.register("protobuf-value", Schema("PROTOBUF", schema))) + b"\2\2"  # the second message
    orders = [order(number) for number in range(DIFFERENT)]
    values = {
        "avro": [avro + as_avro(value) for value in orders],
        "json": [as_json(value) for value in orders],
        "protobuf": [
            proto + kind(**{name: each for name, each in value.items() if each is not None}).SerializeToString()
            for value in orders
        ],
    }
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics(
            {name: {"num_partitions": PARTITIONS, "replication_factor": 1} for name in values}, wait_for_metadata=True
        )
    except TopicAlreadyExistsError:
        return
    finally:
        admin.close()
    with KafkaProducer(bootstrap_servers=bootstrap, batch_size=1 << 17, linger_ms=20) as producer:
        for name, different in values.items():
            for number in range(records):
                producer.send(name, different[number % DIFFERENT], partition=number % PARTITIONS)
        producer.flush()


def main(bootstrap: str, registry: str, records: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("typed")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    fill(bootstrap, registry, int(records))
    by_registry = {"schema.registry.url": registry}
    options = {
        **{f"{name} bytes": {"subscribe": name} for name in ("json", "avro", "protobuf")},
        "json": {"subscribe": "json", "valueFormat": "json", "valueSchema": DDL},
        "avro": {"subscribe": "avro", "valueFormat": "avro"} | by_registry,
        "protobuf": {"subscribe": "protobuf", "valueFormat": "protobuf", "valueMessage": "bench.Order"} | by_registry,
        "avro decoder": {
            "subscribe": "avro",
            "decoder": "conformance.spark.typed_driver:decode",
            "decoderSchema": DDL,
        },
    }
    counted = spark.read.format("kop").options(**{"kafka.bootstrap.servers": bootstrap}, **options["avro"]).load()
    if counted.where("value.id >= 0").count() != int(records):
        sys.exit("the topic does not hold what was written")
    print("ready", flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        rows = spark.read.format("kop").options(**{"kafka.bootstrap.servers": bootstrap}, **options[line.strip()])
        rows.load().write.format("noop").mode("overwrite").save()
        print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
