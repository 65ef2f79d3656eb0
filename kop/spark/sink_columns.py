"""The columns of a DataFrame that is written, checked by name and type, and brought into one form.

Owns: which columns there may be, their types, the form that the rest of the sink reads.
Must not know: pyspark's classes (a type is its `simpleString()`), requests, partitions.

The form: a pyarrow.RecordBatch with the columns of `schema()`, whatever the DataFrame had. A missing column is null.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from kop.spark.decoding import DECODED, ERROR
from kop.spark.entry_metadata import METADATA
from kop.spark.exactly_once import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

    from kop.schemas.writing import WritePlan

ALLOWED: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""The columns that can be written, with their allowed types in Spark's words."""
NOT_WRITTEN: Final = frozenset(name.lower() for name in ("offset", "timestampType", METADATA, DECODED, ERROR))
"""The columns of a read that are ignored on writing, as by Spark's Kafka sink, so that what was read can be written."""
_ROWS: Final = 4096
"""The number of rows in a batch if Spark gives them one by one."""


def schema() -> pa.Schema:
    """Return the columns of a batch that is to be written; key and value are bytes, the timestamp microseconds of
    UTC.
    """
    import pyarrow as pa  # noqa: PLC0415

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The positions of the columns of a DataFrame that are written."""

    places: dict[str, int]
    """The index of each column, by its name in small letters."""
    topic: str | None
    """The topic of every row; None if a column gives it row by row."""
    plans: dict[str, WritePlan] = field(default_factory=dict)
    """The columns that are encoded by their schemas."""

    @classmethod
    def of(
        cls, fields: Sequence[tuple[str, str]], topic: str | None, plans: Mapping[str, WritePlan] | None = None
    ) -> SinkColumns:
        """Return the columns of a schema of (name, type in Spark's words). SinkError if a column cannot be written, has
        a wrong type or comes twice, or if `value`, the topic, or a column with a plan is missing. Columns of `plans`
        may be of any type. Columns that only reads have, such as `offset`, are left out.
        """
        plans = plans or {}
        places: dict[str, int] = {}
        for index, (given, kind) in enumerate(fields):
            name = given.lower()
            if name in NOT_WRITTEN:
                continue
            if name not in ALLOWED:
                near = difflib.get_close_matches(name, ALLOWED, 1, 0.6)
                meant = f" (did you mean {near[0]}?)" if near else ""
                raise SinkError(
                    f"the column {given} cannot be written{meant}: a record has the columns {', '.join(ALLOWED)}. "
                    f"Leave it out with select(), or put it into the value: to_json(struct(...)) AS value."
                )
            if name in places:
                raise SinkError(f"there are two columns {name}: rename one of them")
            if name not in plans and kind not in ALLOWED[name]:
                raise SinkError(
                    f"the column {given} has the type {kind}; it has to be {' or '.join(ALLOWED[name])}: cast it"
                )
            places[name] = index
        for name in plans:
            if name not in places:
                raise SinkError(f"the column {name} is missing, and {name}Format is set: select it, or leave that out")
        if "value" not in places:
            raise SinkError("the column value is missing: select what is to be written AS value")
        if topic is None and "topic" not in places:
            raise SinkError("set the option topic, or give each row its own in the column topic")
        return cls(places, topic, dict(plans))

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a DataFrame's batch in the form of `schema()`; columns with a plan are encoded. SinkError
        for a row without a topic, a header without a key, or a value that its schema does not take.
        """
        import pyarrow as pa  # noqa: PLC0415

        rows = batch.num_rows
        arrays = []
        for target in schema():
            place = self.places.get(target.name)
            if target.name == "topic" and self.topic is not None:
                arrays.append(pa.repeat(pa.scalar(self.topic, pa.string()), rows))
            elif place is None:
                arrays.append(pa.nulls(rows, target.type))
            else:
                arrays.append(self._encoded(target.name, batch.column(place)).cast(target.type))
        made = pa.RecordBatch.from_arrays(arrays, schema=schema())
        if self.topic is None and made.column("topic").null_count:
            raise SinkError("a row has no topic: give every row one in the column topic, or set the option topic")
        headers = made.column("headers")
        if self.places.get("headers") is not None:
            entries = headers.flatten()
            if entries.null_count or entries.field(0).null_count:
                raise SinkError("a header has no key: give every header a key, or leave it out of the array")
        return made

    def _encoded(self, name: str, column: pa.Array) -> pa.Array:
        """Return the column `name` in bytes if it has a plan, else as it is. SinkError for a value that its schema does
        not take.
        """
        if name not in self.plans:
            return column
        from kop.schemas.errors import BadRecordError  # noqa: PLC0415
        from kop.schemas.writing import writer_of  # noqa: PLC0415 (it takes pyarrow along)

        try:
            return writer_of(self.plans[name])(column)
        except BadRecordError as error:
            raise SinkError(f"leave the row out, or change it or the schema: the column {name}: {error}") from None

    def batches(self, rows: Iterable[Sequence[Any]]) -> Iterable[pa.RecordBatch]:
        """Yield batches of up to 4096 rows, in the form of `schema()`, from rows that come one by one, as a Spark
        without Arrow writers gives them. SinkError as `batch` raises it.
        """
        held: list[Sequence[Any]] = []
        for row in rows:
            held.append(row)
            if len(held) == _ROWS:
                yield self._of_rows(held)
                held = []
        if held:
            yield self._of_rows(held)

    def _of_rows(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415

        arrays = []
        for name, place in self.places.items():
            values = [_plain(row[place]) for row in rows]
            arrays.append(pa.array(values, schema().field(name).type))
        columns = SinkColumns(dict(zip(self.places, range(len(arrays)), strict=True)), self.topic, self.plans)
        return columns.batch(pa.RecordBatch.from_arrays(arrays, names=list(self.places)))


def _plain(value: Any) -> Any:
    """Return a value of a row of PySpark in the form that pyarrow takes for the types of `schema()`: times with a zone,
    headers as dicts, bytes.
    """
    if isinstance(value, datetime):
        return value.astimezone()  # a row's time has no zone and is that of the process
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [None if header is None else {"key": header[0], "value": header[1]} for header in value]
    return None if value is None else bytes(value) if isinstance(value, bytearray) else value
