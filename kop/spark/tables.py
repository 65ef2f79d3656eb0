"""Topics as tables: SQL whose tables are topics as they are now, and the newest row of each key.

Owns: which names of a query are topics, when their views are made, what is a deleted row.
Must not know: how topics are read.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import functions

from kop.spark.decoding import ERROR

_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_LOG: Final = "SQLQueryContextLogger"
_views: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""The views that `sql` made in each session."""


def sql(spark: Any, text: str, options: Mapping[str, Any]) -> Any:
    """Return the DataFrame of a query in SQL whose tables are topics, each as it is now.

    A name in the text that the session does not know as a table or view is a topic. `options` are those of
    `format("kop")` for all of them; a value that is a mapping has the options of the topic of that name alone, such as
    `subscribe` if the topic is called otherwise. The views stay until the next call, which makes them anew: PySpark
    plans a Python source once for each DataFrame, so an older view ends where the log ended when it was first read.
    """
    made = _views.setdefault(spark, set())
    while made:
        spark.catalog.dropTempView(made.pop())
    shared = {name: str(value) for name, value in options.items() if not isinstance(value, Mapping)}
    while True:
        try:
            with _without_log():
                return spark.sql(text)
        except AnalysisException as error:
            name = _missing(error)
            if name is None or name in made:
                raise
            given = options.get(name)
            own = {option: str(value) for option, value in given.items()} if isinstance(given, Mapping) else {}
            make_view(spark.read, name, {"subscribe": name} | shared | own)
            made.add(name)


def make_view(reader: Any, name: str, options: Mapping[str, str], watermark: str = "") -> None:
    """Make, or replace, the session's temporary view of the topic that `options` subscribe, under the name `name`.
    `reader` is `spark.read`, or `spark.readStream` for a streaming view.

    `watermark`: COLUMN DELAY, for a streaming view. A nested COLUMN becomes a column of its own, under the last part of
    its name.
    """
    frame = reader.format("kop").options(**options).load()
    if watermark:
        column, delay = watermark.split(None, 1)
        last = column.rpartition(".")[2].replace("`", "")
        if last not in frame.columns:
            frame = frame.withColumn(last, functions.expr(column))
        frame = frame.withWatermark(last, delay)
    frame.createOrReplaceTempView(_quoted(name))


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Suppress PySpark's logging of a query's errors within the block: the caller handles or raises them."""
    log = logging.getLogger(_LOG)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _missing(error: AnalysisException) -> str | None:
    """Return the name of the table that a query does not find; None for another error, or a name of several parts."""
    if (error.getCondition() or "") != _NOT_FOUND:
        return None
    relation = (error.getMessageParameters() or {}).get("relationName", "")
    match = re.fullmatch(r"`((?:[^`]|``)+)`", relation)
    return None if match is None else match[1].replace("``", "`")


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def latest(frame: Any) -> Any:
    """Return the newest row of each key of a read, without those that were deleted.

    The newest is the one of the highest offset; of a key in several partitions, the one of the latest timestamp among
    their newest. A row whose value is null deletes its key, unless it is null because its record is bad. Rows without a
    key are left out. In a streaming DataFrame the same key in two partitions is two keys, with a row each; and it needs
    `outputMode("complete")`, for update mode does not tell a sink which rows are gone.
    """
    columns = frame.columns
    row = functions.struct(*[functions.col(_quoted(name)) for name in columns])
    present = functions.col("key").isNotNull()
    of_partition = (
        frame.where(present)
        .groupBy("topic", "partition", "key")
        .agg(functions.max_by(row, functions.col("offset")).alias("newest"))
    )
    newest = of_partition.select("newest")
    if not frame.isStreaming:
        by = functions.struct("newest.timestamp", "newest.partition")
        newest = (
            of_partition.groupBy("topic", "key")
            .agg(functions.max_by(functions.col("newest"), by).alias("newest"))
            .select("newest")
        )
    there = functions.col("value").isNotNull()
    if ERROR in columns:
        there |= functions.col(ERROR).isNotNull()
    return newest.select("newest.*").where(there)
