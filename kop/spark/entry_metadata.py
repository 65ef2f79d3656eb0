"""The facts that Pulsar knows of a record beyond Kafka's protocol, as columns: `metadata` of a read with
includeMetadata, and the version of its schema, by which typed columns are read.

Owns: their names, and how the entries and versions that an answer of Fetch names become their rows.
Must not know: pyspark, how the answer is fetched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kop.records.entry_places import PlacedEntry
from kop.records.entry_schemas import NO_VERSION, SchemaRun

if TYPE_CHECKING:
    import pyarrow as pa

METADATA: Final = "metadata"
MESSAGE_ID: Final = "message_id"
"""The name of the field with the message id: LEDGER:ENTRY:BATCH-INDEX, as startingMessageId takes it; the index is -1
for a message that is not in a batch.
"""
PUBLISH_TIME: Final = "publish_time"
SCHEMA_VERSION: Final = "schemaVersion"
"""The name of the column with the version of Pulsar's schema that a record names, null for none. It is for
`kop.spark.typed_columns` alone.
"""
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last time that Spark's timestamps can hold, in ms."""


class NoMetadataError(Exception):
    """An error for servers that do not tell at which places Pulsar keeps records; the text says what to do."""


def with_metadata(
    batches: Iterable[pa.RecordBatch], places: Sequence[PlacedEntry], partition: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the column `metadata` added: message id and publish time of the entry, among `places` in
    order of their offsets, that holds the row's offset. NoMetadataError if a row comes before the first place, or there
    are none. `partition` names the partition in errors.
    """
    bases = [place.base_offset for place in places]
    entries = _entries(places)
    for batch in batches:
        offsets = batch.column("offset")
        of_row = [bisect_right(bases, offset) - 1 for offset in offsets.to_pylist()]
        if -1 in of_row:
            raise NoMetadataError(
                f"leave includeMetadata out: the servers do not say which messages the records of {partition} are; "
                "kop's gateways in front of Pulsar do"
            )
        yield batch.append_column(METADATA, _column(offsets, entries, of_row))


def with_schema_versions(batches: Iterable[pa.RecordBatch], runs: Sequence[SchemaRun]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the column `schemaVersion` added. Each run, in order, has the version, or none, that the
    records from its base offset on name, up to the next run; rows before the first run have none (null).
    """
    import pyarrow as pa  # noqa: PLC0415

    bases = [run.base_offset for run in runs]
    versions = [None, *(None if run.version == NO_VERSION else run.version for run in runs)]
    for batch in batches:
        if runs:
            of_row = [bisect_right(bases, offset) for offset in batch.column("offset").to_pylist()]
            column = pa.array(versions, pa.int64()).take(pa.array(of_row, pa.int64()))
        else:
            column = pa.nulls(batch.num_rows, pa.int64())
        yield batch.append_column(SCHEMA_VERSION, column)


def _entries(places: Sequence[PlacedEntry]) -> pa.RecordBatch:
    """Return one row of facts for each entry, from which `_column` makes the column `metadata`: first offset, if it is
    a batch, ledger and entry as text, publish time (null if out of range).
    """
    import pyarrow as pa  # noqa: PLC0415

    times = [place.publish_time * 1000 if 0 <= place.publish_time <= _LATEST_MS else None for place in places]
    columns = {
        "base_offset": pa.array([place.base_offset for place in places], pa.int64()),
        "batched": pa.array([place.batched for place in places], pa.bool_()),
        "name": pa.array([f"{place.ledger}:{place.entry}" for place in places], pa.string()),
        PUBLISH_TIME: pa.array(times, pa.timestamp("us", tz="UTC")),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _column(offsets: pa.Array, entries: pa.RecordBatch, of_row: list[int]) -> pa.Array:
    """Return the column `metadata` for rows with these offsets; `of_row` is the index in `entries` of each row's
    entry.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    taken = entries.take(pa.array(of_row, pa.int32()))
    within = compute.subtract(offsets, taken.column("base_offset"))
    indices = compute.if_else(taken.column("batched"), within, -1)
    message_ids = compute.binary_join_element_wise(taken.column("name"), indices.cast(pa.string()), ":")
    return pa.StructArray.from_arrays([message_ids, taken.column(PUBLISH_TIME)], names=[MESSAGE_ID, PUBLISH_TIME])
