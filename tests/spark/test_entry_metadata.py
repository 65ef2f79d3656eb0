"""The column `metadata`: the message id and the publish time of each row, by the entries that a Fetch named."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kop.records.entry_places import PlacedEntry
from kop.records.entry_schemas import NO_VERSION, SchemaRun
from kop.spark.entry_metadata import NoMetadataError, with_metadata, with_schema_versions

AT = 1_700_000_000_123
PLACES = [
    PlacedEntry(10, 7, 0, AT, batched=True),
    PlacedEntry(13, 7, 1, AT + 1, batched=False),
    PlacedEntry(14, 9, 0, AT + 2, batched=True),
    PlacedEntry(20, 9, 5, 2**63 - 1, batched=True),
]


def rows(*offsets: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())})


def metadata(*batches: pa.RecordBatch, places: list[PlacedEntry] = PLACES) -> list[list[tuple[str, int | None]]]:
    """Of each batch the ids and the milliseconds of its rows."""
    made = []
    for batch in with_metadata(batches, places, "topic t partition 0"):
        assert batch.schema.names == ["offset", "metadata"]
        rows = batch.column("metadata").to_pylist()
        made.append([(row["message_id"], milliseconds(row["publish_time"])) for row in rows])
    return made


def milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def test_each_row_has_the_id_of_its_message_and_the_time_of_its_entry() -> None:
    assert metadata(rows(10, 11, 12, 13, 14, 17)) == [
        [("7:0:0", AT), ("7:0:1", AT), ("7:0:2", AT), ("7:1:-1", AT + 1), ("9:0:0", AT + 2), ("9:0:3", AT + 2)]
    ]


def test_rows_may_begin_and_end_inside_entries_and_lack_messages_that_compaction_took() -> None:
    assert metadata(rows(12), rows(14, 16), rows()) == [[("7:0:2", AT)], [("9:0:0", AT + 2), ("9:0:2", AT + 2)], []]
    assert metadata(rows(11, 19)) == [[("7:0:1", AT), ("9:0:5", AT + 2)]]


def test_a_time_that_spark_does_not_hold_is_null() -> None:
    assert metadata(rows(20)) == [[("9:5:0", None)]]


@pytest.mark.parametrize("places", [[], PLACES])
def test_rows_of_no_entry_are_refused(places: list[PlacedEntry]) -> None:
    with pytest.raises(NoMetadataError, match=r"leave includeMetadata out: .* of topic t partition 0 are; kop's"):
        metadata(rows(9, 10), places=places)


def test_each_row_has_the_version_that_its_record_names() -> None:
    runs = [SchemaRun(10, 0), SchemaRun(13, 4), SchemaRun(14, NO_VERSION)]
    made = list(with_schema_versions([rows(9, 10, 12, 13, 14, 20), rows(13)], runs))
    assert [batch.column("schemaVersion").to_pylist() for batch in made] == [[None, 0, 0, 4, None, None], [4]]
    (without,) = with_schema_versions([rows(1, 2)], [])
    assert without.column("schemaVersion").to_pylist() == [None, None]
