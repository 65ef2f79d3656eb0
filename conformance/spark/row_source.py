"""kop's reader with a tuple for each row: what a Python data source costs that does not give Spark Arrow batches.

Owns: `format("kop-rows")`, which reads a batch with the columns and the options of `format("kop")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kop.spark.options import batch_options
from kop.spark.reader import KopBatchReader
from kop.spark.source import KopDataSource


class RowReader(KopBatchReader):
    """The same fetches, decoded by the same code."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, one by one."""
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class RowSource(KopDataSource):
    """`format("kop-rows")`: reads batches, nothing else."""

    @classmethod
    def name(cls) -> str:
        return "kop-rows"

    def reader(self, schema: StructType) -> RowReader:
        return RowReader(batch_options(self.options))
