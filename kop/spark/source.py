"""The data source `format("kop")` as PySpark sees it.

Owns: its name, its columns, and which reader or writer serves which call.
Must not know: how anything is read or written.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kop.spark.options import OptionError, batch_options, stream_options

COLUMNS = [
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
]
HEADERS = ("headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])))


class KopDataSource(DataSource):
    """`spark.read.format("kop")`, `readStream`, `write` and `writeStream`: the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """What is given to `format`."""
        return "kop"

    def schema(self) -> StructType:
        """The columns of a read, all nullable; `headers` where includeHeaders is true."""
        options = {name.lower(): value for name, value in self.options.items()}
        with_headers = options.get("includeheaders", "").strip().lower() == "true"
        return StructType([StructField(*column) for column in (*COLUMNS, *([HEADERS] if with_headers else []))])

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads a batch; OptionError."""
        from kop.spark.reader import KopBatchReader  # noqa: PLC0415 (pyarrow is not needed to tell a schema)

        options = batch_options(self.options)
        _check_columns(schema, self.schema())
        return KopBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What reads a stream; OptionError."""
        from kop.spark.reader import KopPlainStreamReader  # noqa: PLC0415

        options = stream_options(self.options)
        _check_columns(schema, self.schema())
        try:
            from kop.spark.admission import KopLimitedStreamReader  # noqa: PLC0415
        except ImportError:  # PySpark 4.0 or 4.1
            if options.limited and not options.never_available_now:
                raise OptionError(
                    "set neverAvailableNow to true if the query has a trigger of processing time, or use PySpark 4.2: "
                    "before that, Trigger.AvailableNow would end after the first batch that a limit cuts off"
                ) from None
            return KopPlainStreamReader(options)
        return KopLimitedStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """What writes a batch."""
        return import_module("kop.spark.writer").make_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """What writes a stream."""
        return import_module("kop.spark.writer").make_stream_writer(dict(self.options), schema, overwrite)


def _check_columns(given: StructType, own: StructType) -> None:
    if [(field.name, field.dataType) for field in given] != [(field.name, field.dataType) for field in own]:
        raise OptionError(
            f'leave .schema() out: format("kop") has the columns {own.simpleString()}, not {given.simpleString()}'
        )
