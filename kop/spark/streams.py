"""`write_stream`: a streaming query whose batches are written one by one, for what PySpark's own sinks cannot do.

Owns: the repartitioning that an exactly-once sink needs, and how a batch is named.
Must not know: how rows are written (`kop.spark.writer`), requests.

A Python sink of PySpark refuses the update mode, and with PySpark 4.0 one costs a second a batch. Here each batch goes
through `foreachBatch`, which serves every mode.
"""

from __future__ import annotations

from typing import Any

from kop.spark.given import OptionError
from kop.spark.write_options import EXACTLY_ONCE, write_options


def write_stream(
    frame: Any,
    *,
    options: dict[str, Any],
    checkpoint: str,
    output_mode: str = "append",
    trigger: dict[str, Any] | None = None,
    name: str | None = None,
    repartition_by: tuple[str, ...] = (),
) -> Any:
    """Start a query that writes a streaming DataFrame to topics; returns PySpark's StreamingQuery.

    `options`: those of `format("kop")`, OptionError if they cannot be kept; `checkpoint`: a folder that every worker
    reaches; `output_mode`: append, complete or update; `trigger`: what DataStreamWriter.trigger takes, such as
    `{"availableNow": True}`.

    With deliveryGuarantee=exactly-once each batch gets `exactlyOnceTasks` tasks: by the columns `repartition_by`, by
    the column key where none is named, in turns where there is no key. Rows of one key stay in one task, and their
    order within it is the one of the query only where the query sorts within partitions.
    """
    lowered = {str(key).lower(): str(value) for key, value in options.items()}
    exactly_once = lowered.get("deliveryguarantee", "").strip().lower() == EXACTLY_ONCE
    named = {"exactlyonceid": "query"} if exactly_once else {}
    given = named | {str(key): str(value) for key, value in options.items()}
    checked = write_options(given, streaming=False).exactly_once  # else an error is found in the first batch
    tasks = 0 if checked is None else checked.tasks
    if exactly_once and "exactlyonceid" not in lowered and not _tells_query_ids(frame):
        raise OptionError("set exactlyOnceId to a name of this query: a session of Spark Connect does not tell its id")
    columns = repartition_by or (("key",) if "key" in {field.lower() for field in frame.columns} else ())

    def write(batch: Any, number: int) -> None:
        writer_options = dict(options)
        if exactly_once:
            batch = batch.repartition(tasks, *columns)
            if "exactlyonceid" not in lowered:
                writer_options["exactlyOnceId"] = _query_id(batch)
            writer_options["exactlyOnceBatch"] = number
        texts = {key: str(value) for key, value in writer_options.items()}
        batch.write.format("kop").options(**texts).mode("append").save()

    query = frame.writeStream.foreachBatch(write).outputMode(output_mode).option("checkpointLocation", checkpoint)
    if name is not None:
        query = query.queryName(name)
    if trigger is not None:
        query = query.trigger(**trigger)
    return query.start()


def _tells_query_ids(frame: Any) -> bool:
    try:
        return frame.sparkSession.sparkContext is not None
    except AttributeError:  # PySpark's own, for what Spark Connect does not have
        return False


def _query_id(batch: Any) -> str:
    """Return the id of the streaming query that calls the function of `foreachBatch` with this batch; it stays the same
    when the query is started again. ValueError if Spark does not tell it.
    """
    query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise ValueError("set exactlyOnceId to a name of this query: this Spark does not tell its id")
    return str(query_id)
