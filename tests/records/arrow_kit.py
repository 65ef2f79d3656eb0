"""What the tests of records in Arrow share: the twins, a reader of plain rows, and what it has to give."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from kop.compiled import compiled
from kop.records import _pure_arrow, arrow, columns
from kop.records.batch import Buffer, Record, build, stamp

TWINS = [pytest.param(_pure_arrow, id="pure")]
"""The plain twin and, where it was built, the compiled one."""
if compiled(_pure_arrow) is not _pure_arrow:
    TWINS.append(pytest.param(compiled(_pure_arrow), id="native"))

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The twin that a test runs with."""
    chosen: ModuleType = request.param
    monkeypatch.setattr(columns, "twin", chosen)
    return chosen


def batch_at(offset: int, records: Sequence[Record], **more: Any) -> bytes:
    """A stored batch whose first record has this offset; the records say theirs from 0 on."""
    made = build(records, base_offset=0, **more)
    stamp(made, offset)
    return bytes(made)


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(index, 1_000 + first + index, b"k%d" % (first + index), b"v" * index) for index in range(count)]


def decode(
    records: Buffer,
    start: int = 0,
    *,
    end: int | None = None,
    aborted: Sequence[tuple[int, int]] | None = None,
    headers: bool = True,
    max_rows: int = arrow.DEFAULT_ROWS,
    max_bytes: int = arrow.DEFAULT_BYTES,
    max_inflated: int = arrow.DEFAULT_INFLATED,
) -> arrow.Decoded:
    """The rows of partition 3 of topic t."""
    return arrow.decode(
        records,
        topic="t",
        partition=3,
        start=start,
        end=end,
        aborted=aborted,
        headers=headers,
        max_rows=max_rows,
        max_bytes=max_bytes,
        max_inflated=max_inflated,
    )


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Offset, milliseconds, key, value and headers of each row; all else is checked."""
    rows = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == arrow.schema("headers" in batch.schema.names)
        millis = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for row, micros in zip(batch.drop_columns(["timestamp"]).to_pylist(), millis, strict=True):
            assert (row["topic"], row["partition"]) == ("t", 3)
            assert micros % 1000 == 0
            headers = row.get("headers")
            assert headers != []
            pairs = tuple((header["key"].encode(), header["value"]) for header in headers or ())
            rows.append((row["offset"], micros // 1000, row["key"], row["value"], pairs))
    return rows


def offsets_of(decoded: arrow.Decoded) -> list[int]:
    return [row[0] for row in rows_of(list(decoded))]
