"""Typed columns of `format("kop")`: what Avro, JSON and Protobuf say is what Spark's columns have."""

from __future__ import annotations

import functools
import json
from typing import Any

from kafka_python_kit import make_topic, producer
from spark_kit import case, read
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


def put(run: Run, topic: str, *values: bytes | None, partition: int = 0) -> None:
    with producer(run) as p:
        for value in values:
            p.send(topic, value, b"k", partition=partition).get(timeout=20)


@typed(slow=False)
def avro_of_a_registry_is_columns(run: Run) -> None:
    topic = make_topic(run)
    with StubRegistry() as registry:
        first = registry.add(f"{topic}-value", json.dumps(ORDER))
        put(run, topic, frame(first) + b"\x02\x02\x06tea", None, frame(first) + b"\x04\x00")
        asked: dict[str, Any] = {"valueFormat": "avro", "schema.registry.url": registry.url}
        frame_ = read(run, topic, **asked)
        same(frame_.select("value").schema.simpleString(), "struct<value:struct<id:bigint,item:string>>")
        rows = frame_.orderBy("offset").select("value.id", "value.item", "value").collect()
        same(
            [(row.id, row.item, row.value is None) for row in rows],
            [(1, "tea", False), (None, None, True), (2, None, False)],
        )
