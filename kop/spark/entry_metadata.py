"""The column `metadata` of a read with includeMetadata: what Pulsar knows of a record beyond Kafka's protocol.

Owns: its names, and how the entries that an answer of Fetch names become its rows.
Must not know: pyspark, how the answer is fetched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kop.records.entry_places import PlacedEntry

if TYPE_CHECKING:
    import pyarrow as pa

METADATA: Final = "metadata"
MESSAGE_ID: Final = "message_id"
"""LEDGER:ENTRY:BATCH-INDEX, as startingMessageId takes it; the index is -1 for a message that is not in a batch."""
PUBLISH_TIME: Final = "publish_time"
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Spark's timestamps have."""


class NoMetadataError(Exception):
    """The servers do not say where Pulsar keeps records; the text says what to do."""


def with_metadata(
    batches: Iterable[pa.RecordBatch], places: Sequence[PlacedEntry], partition: str
) -> Iterator[pa.RecordBatch]:
    """The rows with the column; NoMetadataError where no place is told for one. `partition` is how errors name it."""
    bases = [place.base_offset for place in places]
    for batch in batches:
        offsets = batch.column("offset")
        entries = [bisect_right(bases, offset) - 1 for offset in offsets.to_pylist()]
        if -1 in entries:
            raise NoMetadataError(
                f"leave includeMetadata out: the servers do not say which messages the records of {partition} are; "
                "kop's gateways in front of Pulsar do"
            )
        yield batch.append_column(METADATA, _column(offsets, entries, places))


def _column(offsets: pa.Array, entries: list[int], places: Sequence[PlacedEntry]) -> pa.Array:
    """The column of rows with these offsets, each of the entry with that index in `places`."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    of_row = pa.array(entries, pa.int32())
    names = pa.array([f"{place.ledger}:{place.entry}" for place in places], pa.string()).take(of_row)
    bases = pa.array([place.base_offset for place in places], pa.int64()).take(of_row)
    batched = pa.array([place.batched for place in places], pa.bool_()).take(of_row)
    indices = compute.if_else(batched, compute.subtract(offsets, bases), -1)
    times = [place.publish_time * 1000 if 0 <= place.publish_time <= _LATEST_MS else None for place in places]
    return pa.StructArray.from_arrays(
        [
            compute.binary_join_element_wise(names, indices.cast(pa.string()), ":"),
            pa.array(times, pa.timestamp("us", tz="UTC")).take(of_row),
        ],
        names=[MESSAGE_ID, PUBLISH_TIME],
    )
