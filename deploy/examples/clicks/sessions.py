"""The query of the example: clicks in, sessions out, each of them once.

    kop spark --bootstrap HOST:PORT sessions.py [CHECKPOINT]

It reads the topic `clicks`, and writes a record for each session to the topic `sessions` when it is over: the user as
key; when it began and ended, how many clicks it had and on which pages as value. Killed at any moment and started
again, it goes on from its checkpoint; consumers with read_committed see every session once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import session_window

from kop.spark import write_stream

GAP = "10 seconds"
LATE = "1 hour"
"""Clicks may come so much later than others of their time."""


def start(
    spark: SparkSession,
    bootstrap: str,
    checkpoint: str,
    *,
    clicks: str = "clicks",
    sessions: str = "sessions",
    trigger: dict[str, Any] | None = None,
) -> Any:
    """Start the query; without a trigger it runs until it is stopped."""
    kop = {"kafka.bootstrap.servers": bootstrap}
    source = spark.readStream.format("kop").options(**kop, subscribe=clicks, startingOffsets="earliest").load()
    parsed = source.selectExpr("string(key) user", "timestamp", "from_json(string(value), 'page STRING').page page")
    grouped = parsed.withWatermark("timestamp", LATE).groupBy("user", session_window("timestamp", GAP).alias("session"))
    counted = grouped.agg({"*": "count", "page": "collect_set"}).toDF("user", "session", "clicks", "pages")
    rows = counted.selectExpr(
        "user AS key",
        "to_json(struct(unix_millis(session.start) AS start, unix_millis(session.end) AS end, clicks, "
        "sort_array(pages) AS pages)) AS value",  # sorted: a repeated batch has to have the same rows
    )
    options = kop | {"topic": sessions, "deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "2"}
    return write_stream(rows, options=options, checkpoint=checkpoint, trigger=trigger, name="sessions")


def main(checkpoint: str = "checkpoint-sessions") -> None:
    """Work off all clicks that there are, and end."""
    builder = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2")
    # Else PySpark before 4.2 ends before the batch in which the watermark closes the last sessions.
    spark = builder.config("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true").getOrCreate()
    start(spark, os.environ["KOP_BOOTSTRAP"], checkpoint, trigger={"availableNow": True}).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
