"""Where PySpark finds the data source `format("kop")`: it looks for `DefaultSource` in top-level modules `pyspark_*`.

Owns: nothing but the name. All of it is in `kop.spark`, which is imported when it is used: one module of this kind that
fails to import makes PySpark forget the Python data sources of everybody, without a word about why.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


def _source(options: Any) -> Any:
    try:
        from kop.spark.source import KopDataSource  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            "install kop with its extra named spark on the driver and on every executor: "
            f'format("kop") needs {error.name or "a module"} ({error})'
        ) from error
    return KopDataSource(options)


class DefaultSource(DataSource):
    """`format("kop")`: everything is asked of one `kop.spark.source.KopDataSource`, which goes along where Spark sends
    this one: what `schema` found out is what a reader is to know.
    """

    _made: Any = None

    @property
    def _source(self) -> Any:
        if self._made is None:
            self._made = _source(self.options)
        return self._made

    @classmethod
    def name(cls) -> str:
        """What is given to `format`."""
        return "kop"

    def schema(self) -> Any:
        """The columns of a read."""
        return self._source.schema()

    def reader(self, schema: Any) -> Any:
        """What reads a batch."""
        return self._source.reader(schema)

    def streamReader(self, schema: Any) -> Any:
        """What reads a stream."""
        return self._source.streamReader(schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """What writes a batch."""
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """What writes a stream."""
        return self._source.streamWriter(schema, overwrite)
