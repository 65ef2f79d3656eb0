"""The column `metadata` of a read with includeMetadata: what Pulsar knows of a record beyond Kafka's protocol.

Owns: its type, and how the entries that a Fetch's answer names become its rows.
Must not know: pyspark, how the answer was got.
"""

from __future__ import annotations

from bisect import bisect_left
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
        offsets: list[int] = batch.column("offset").to_pylist()
        if offsets and (not bases or offsets[0] < bases[0]):
            raise NoMetadataError(
                f"leave includeMetadata out: the servers do not say which messages the records of {partition} are; "
                "kop's gateways in front of Pulsar do"
            )
        yield batch.append_column(METADATA, _column(batch.column("offset"), offsets, places, bases))


def _column(offsets: pa.Array, values: list[int], places: Sequence[PlacedEntry], bases: list[int]) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    rows: list[int] = []
    """For each row the number of its entry, counted from the first."""
    first = max(bisect_left(bases, values[0] + 1) - 1, 0) if values else 0
    some: list[PlacedEntry] = []
    while len(rows) < len(values):
        behind = bases[first + 1] if first + 1 < len(bases) else None
        end = len(values) if behind is None else bisect_left(values, behind, len(rows))
        rows += [len(some)] * (end - len(rows))
        some.append(places[first])
        first += 1
    of_entry = pa.array(rows, pa.int32())
    index = compute.subtract(offsets, pa.array([place.base_offset for place in some], pa.int64()).take(of_entry))
    index = compute.if_else(pa.array([place.batched for place in some], pa.bool_()).take(of_entry), index, -1)
    names = pa.array([f"{place.ledger}:{place.entry}" for place in some], pa.string()).take(of_entry)
    message_ids = compute.binary_join_element_wise(names, index.cast(pa.string()), ":")
    times = [place.publish_time * 1000 if 0 <= place.publish_time <= _LATEST_MS else None for place in some]
    publish_times = pa.array(times, pa.timestamp("us", tz="UTC")).take(of_entry)
    return pa.StructArray.from_arrays([message_ids, publish_times], names=[MESSAGE_ID, PUBLISH_TIME])
