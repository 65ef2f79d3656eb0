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

from kop.spark.arrow_types import arrow_type
from kop.spark.decoding import DECODED, ERROR, DecoderFactory, DecoderOptions
from kop.spark.entry_metadata import MESSAGE_ID, METADATA, PUBLISH_TIME
from kop.spark.given import OptionError
from kop.spark.options import ReadOptions, batch_options, stream_options

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
ENTRY_METADATA = (
    METADATA,
    StructType([StructField(MESSAGE_ID, StringType()), StructField(PUBLISH_TIME, TimestampType())]),
)


class KopDataSource(DataSource):
    """The data source behind `spark.read.format("kop")`, `readStream`, `write` and `writeStream`, with the columns of
    Spark's Kafka source.
    """

    _typed: Any = None
    """The plan of the typed columns that `schema` told: Spark keeps this object with the types, for the readers."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which users ask for the source in `format`."""
        return "kop"

    def schema(self) -> StructType | str:
        """Return the columns of a read, all nullable: those of Spark's Kafka source, then `headers` and `metadata` if
        they are wanted, and those of a decoder. With formats `key` and `value` have the types of their schemas: then
        registries are asked, the plan of the columns is kept for the reader, and OptionError says what is wrong.
        """
        options = {name.lower(): value for name, value in self.options.items()}
        own = self._own_columns()
        name, columns = options.get("decoder", ""), options.get("decoderschema", "")
        permissive = options.get("mode", "").strip().lower() == "permissive"
        more = ""
        typed: dict[str, str] = {}
        if name and columns:  # the reader refuses one without the other
            more = f", {DecoderOptions(name, columns, permissive).columns()}"
        elif any(options.get(f"{column}format", "bytes").strip().lower() != "bytes" for column in ("key", "value")):
            self._typed = self._planned()
            if self._typed is not None:
                typed = self._typed.declared
                more = f", {ERROR} STRING" if permissive else ""
        if not more and not typed:
            return own
        fields = ", ".join(f"{field.name} {typed.get(field.name, field.dataType.simpleString())}" for field in own)
        return fields + more

    def _planned(self) -> Any:
        """Return the plan of the typed columns, for which schema registries are asked; None if all columns are bytes.
        OptionError if an option or a schema is wrong.
        """
        from kop.spark.typed_columns import plan_columns  # noqa: PLC0415 (pyarrow is not needed without them)

        try:
            options = batch_options(self.options)
        except OptionError:  # Spark does not say which of them it is to be
            options = stream_options(self.options)
        return plan_columns(options)

    def _own_columns(self) -> StructType:
        options = {name.lower(): value for name, value in self.options.items()}
        more = [
            column
            for option, column in (("includeheaders", HEADERS), ("includemetadata", ENTRY_METADATA))
            if options.get(option, "").strip().lower() == "true"
        ]
        return StructType([StructField(*column) for column in (*COLUMNS, *more)])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. OptionError, which names the option, if one is wrong, or if the user's
        schema has other columns than the options give.
        """
        from kop.spark.reader import KopBatchReader  # noqa: PLC0415 (pyarrow is not needed to tell a schema)

        options = batch_options(self.options)
        return KopBatchReader(options, self._checked(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query: one that takes Spark's limits with PySpark 4.2 and later, else the
        plain one. OptionError, which names the option, if one is wrong or cannot be kept with this PySpark, or if the
        user's schema has other columns than the options give.
        """
        from kop.spark.reader import KopPlainStreamReader  # noqa: PLC0415

        options = stream_options(self.options)
        columns = self._checked(schema, options)
        try:
            from kop.spark.admission import KopLimitedStreamReader  # noqa: PLC0415
        except ImportError:  # PySpark 4.0 or 4.1
            if options.limited and not options.never_available_now:
                raise OptionError(
                    "set neverAvailableNow to true if the query has a trigger of processing time, or use PySpark 4.2: "
                    "before that, Trigger.AvailableNow would end after the first batch that a limit cuts off"
                ) from None
            return KopPlainStreamReader(options, columns)
        return KopLimitedStreamReader(options, columns)

    def _checked(self, schema: StructType, options: ReadOptions) -> Any:
        """Return the decoder's factory, or the plan of the typed columns with their types as Spark has them; None if
        all columns are bytes. OptionError if the user's schema has other columns than the options give.
        """
        own = self._own_columns()
        if options.decoder is None and options.formats is None:
            _check_columns(schema, own)
            return None
        names = [] if options.decoder is None else [DECODED]
        names += [ERROR] if options.permissive else []
        typed = {} if options.formats is None else options.formats.columns
        plain = [field for field in own if field.name not in typed]
        _check_columns(
            StructType([field for field in schema.fields[: len(own)] if field.name not in typed]), StructType(plain)
        )
        given_names = [field.name for field in schema.fields]
        if given_names != [*(field.name for field in own), *names]:
            what = "a decoder" if options.decoder is not None else "typed columns and mode=PERMISSIVE"
            raise OptionError(f"leave .schema() out: with {what} the columns end with {', '.join(names)}")
        if options.decoder is not None:
            return DecoderFactory(options.decoder, arrow_type(schema[DECODED].dataType))
        planned = self._planned() if self._typed is None else self._typed
        return planned.of_types({name: arrow_type(schema[name].dataType) for name in typed})

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a batch query. OptionError or SinkError if an option, a column or a schema is wrong, or
        if the query overwrites instead of appending.
        """
        return import_module("kop.spark.writer").make_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a streaming query. OptionError or SinkError if an option, column or schema is wrong."""
        return import_module("kop.spark.writer").make_stream_writer(dict(self.options), schema, overwrite)


def _check_columns(given: StructType, own: StructType) -> None:
    if [(field.name, field.dataType) for field in given] != [(field.name, field.dataType) for field in own]:
        raise OptionError(
            f'leave .schema() out: format("kop") has the columns {own.simpleString()}, not {given.simpleString()}'
        )
