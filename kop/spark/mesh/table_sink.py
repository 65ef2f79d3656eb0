"""The sink into a table of a database: each row once, by the number of its batch and its place in a topic.

Owns: the columns that say so, and what is left out of a batch that is written again.
Must not know: where batches come from.

Spark's JDBC writer commits each task by itself, so a batch that was cut off is there in part. When it is written again,
rows that are there already, of the same batch and from the same place, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions

from kop.client.errors import ClientError
from kop.mesh.spec import SinkPart
from kop.spark.mesh.part_rows import TABLE

BATCH: Final = "batch"
PLACE: Final = ("topic", "partition", "offset")
_TYPES: Final = "createTableColumnTypes"


def with_places(rows: Any, read: Any, part: SinkPart) -> Any:
    """Return the rows of a sink with the columns topic, partition and offset, which say where each row comes from.
    `rows` have them already if the sink chooses no columns; `read` are the same rows before columns were chosen.
    ClientError if the sink names a column like one of those, or `batch`.
    """
    named = {name.lower() for name in rows.columns}
    if not part.columns:
        return rows
    if taken := named.intersection({*PLACE, BATCH}):
        raise ClientError(
            f"name {', '.join(sorted(taken))} in columns of the sink {part.name} otherwise (... AS other): it has the "
            f"columns {', '.join((*PLACE, BATCH))} by itself"
        )
    return read.selectExpr(*part.columns, *(f"`{name}`" for name in PLACE))


def once(part: SinkPart) -> Callable[[Any, int], None]:
    """Return the function that appends a batch of rows to the table of a sink, given rows and number of the batch. It
    makes the table if that is not there, and leaves out rows that the table has from an earlier try of the batch. It
    raises ClientError if the table has other columns.
    """
    options = dict(part.options)
    if _TYPES.lower() not in {name.lower() for name in options}:
        options[_TYPES] = "topic VARCHAR(249)"  # what a topic's name may have; some databases compare no longer texts

    def write(batch: Any, number: int) -> None:
        rows = batch.withColumn(BATCH, functions.lit(number).cast("bigint"))
        try:
            _append(rows.limit(0), options)  # makes the table if it is not there
        except AnalysisException as error:
            own = ", ".join((*PLACE, BATCH))
            raise ClientError(
                f"let the table of the sink {part.name} have the columns {', '.join(rows.columns)}; {own} make each "
                f"row there once: {error}"
            ) from None
        there = batch.sparkSession.read.format(TABLE).options(**options).load()
        done = there.where(functions.col(BATCH) == number).select(*PLACE)
        _append(rows.join(done, list(PLACE), "left_anti"), options)

    return write


def _append(rows: Any, options: dict[str, str]) -> None:
    rows.write.format(TABLE).options(**options).mode("append").save()
