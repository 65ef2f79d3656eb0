"""The session that `speed.py` measures: does the work that each line of its standard input names.

python speed_driver.py BOOTSTRAP RECORDS SIZE CODEC
"""

from __future__ import annotations

import json
import os
import sys
import time

from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from conformance.spark.row_source import RowSource
from conformance.suites import CACHE

READ, WRITTEN = "speed", "speed-written"
PARTITIONS = 4
TASKS = 2
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
NEVER_TWICE = 1000
"""How many values there are: records of a batch differ, as a codec has to see it."""


def fill(bootstrap: str, records: int, size: int, codec: str) -> None:
    """The topic that is read, and an empty one for what is written."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    wanted = {"num_partitions": PARTITIONS, "replication_factor": 1}
    admin.create_topics({READ: wanted, WRITTEN: wanted}, wait_for_metadata=True)
    admin.close()
    values = [os.urandom((size + 1) // 2).hex()[:size].encode() for _ in range(NEVER_TWICE)]
    with KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        batch_size=1 << 17,
        linger_ms=20,
    ) as producer:
        for number in range(records):
            key, value = b"key-%d" % (number % 1000), values[number % NEVER_TWICE]
            producer.send(READ, value, key, partition=number % PARTITIONS)
        producer.flush()


def main(bootstrap: str, records: str, size: str, codec: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("speed")
    for name, value in {
        "spark.jars.packages": CONNECTOR,
        "spark.jars.ivy": str(CACHE / "ivy"),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(RowSource)
    fill(bootstrap, int(records), int(size), codec)
    servers = {"kafka.bootstrap.servers": bootstrap, "kafka.compression.type": codec}
    rows = spark.range(0, int(records), 1, TASKS).selectExpr("concat('key-', id % 1000) key", padded(int(size)))
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        what, kind, *once = line.split()
        begun = time.perf_counter()
        if what == "read":
            check(spark.read.format(kind).options(**servers_of(servers), subscribe=READ).load(), int(records))
        else:
            options = servers | {"topic": WRITTEN}
            if once:
                options |= {"deliveryGuarantee": "exactly-once", "exactlyOnceTasks": str(TASKS)}
                options["exactlyOnceId"] = f"speed-{number}"
            rows.write.format(kind).options(**options).mode("append").save()
        print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)
    spark.stop()


def servers_of(options: dict[str, str]) -> dict[str, str]:
    """Of the options of a write those that a read takes."""
    return {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]}


def padded(size: int) -> str:
    """An expression of values of this size, each another one."""
    return f"substring(repeat(sha2(cast(id as string), 256), {size // 64 + 1}), 1, {size}) value"


def check(rows: DataFrame, records: int) -> None:
    """Read every key and every value; whether that were all records."""
    (seen,) = rows.selectExpr("count(*) n", "sum(length(key) + length(value)) size").collect()
    if seen.n != records:
        sys.exit(f"{seen.n} rows of {records}")


if __name__ == "__main__":
    main(*sys.argv[1:])
