"""`format("kop")` on a cluster: a script for `kop spark --master`, as a user writes it.

    spark_on_cluster.py OPTIONS TOPIC COPY CHECKPOINT

Writes ten rows to TOPIC, reads them back, and copies all columns to COPY exactly once; prints where it ran as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from pyspark.sql import SparkSession


def main(options: str, topic: str, copy: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    servers = json.loads(options) | {"kafka.bootstrap.servers": os.environ["KOP_BOOTSTRAP"]}
    rows = spark.range(10, numPartitions=2).selectExpr("string(id) key", "string(id) value")
    rows.write.format("kop").options(**servers, topic=topic).mode("append").save()
    read = spark.read.format("kop").options(**servers, subscribe=topic).load()
    values = sorted(int(row.value) for row in read.collect())

    source = spark.readStream.format("kop").options(**servers, subscribe=topic, startingOffsets="earliest").load()
    writer = source.repartition(2, "key").writeStream.format("kop").options(**servers, topic=copy)
    once = {"deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "2", "checkpointLocation": checkpoint}
    writer.options(**once).trigger(availableNow=True).start().awaitTermination()

    context = spark.sparkContext
    tasks = context.parallelize(range(2), 2)
    homes = tasks.map(lambda _: os.getcwd()).collect()  # each executor has a folder
    origins = tasks.map(lambda _: (sys.executable, importlib.import_module("kop.spark").__file__)).collect()
    setting = context.getConf().get("spark.conformance")
    print(
        json.dumps(
            {"master": context.master, "values": values, "homes": homes, "setting": setting, "origins": origins}
        ),
        flush=True,
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
