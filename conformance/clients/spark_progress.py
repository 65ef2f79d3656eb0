"""A script whose progress is tracked, and which ends right behind its query.

    spark_progress.py OPTIONS TOPIC GROUP CHECKPOINT

Reads what is in TOPIC with Trigger.AvailableNow; the offsets are to be those of GROUP in the end.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from kop.spark import print_lag, track_progress


def main(options: str, topic: str, group: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    servers: dict[str, str] = json.loads(options)
    track_progress(spark, group=group, options=servers, query_name="tracked")
    rows = spark.readStream.format("kop").options(**servers, subscribe=topic, startingOffsets="earliest").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).queryName("tracked")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print_lag(query)


if __name__ == "__main__":
    main(*sys.argv[1:])
