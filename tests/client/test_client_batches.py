"""Records as tuples become batches and come back, compiled and plain, and what a reader may not see is left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from kop.client.batches import NewRecord, RecordTooLargeError, StoredRecords, build
from kop.client.read_client import Fetched
from kop.client.record_columns import StoredRecord
from kop.client.write_client import Identity
from kop.compiled import compiled
from kop.records import _pure_arrow, columns
from kop.records.batch import Codec, read_header, stamp
from kop.records.columns import UnreadableRecordsError
from kop.records.markers import build_marker

NOBODY = Identity(-1, -1)
PLACE = "t", 0
RECORDS: list[NewRecord] = [
    (b"k", b"v", [("h", b"x"), ("n", None), ("h", b"")], 7),
    (None, b"", (), None),
    (b"", None, (), 5),
    (None, None, [("é", b"\xff")], None),
]


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = compiled(_pure_arrow) if request.param == "compiled" else _pure_arrow
    if request.param == "compiled" and twin is _pure_arrow:
        pytest.skip("nothing is compiled here")
    monkeypatch.setattr(columns, "twin", twin)


def stored(batches: Sequence[bytes | bytearray], offset: int = 0) -> bytes:
    """Batches as a log holds them."""
    log = bytearray()
    for batch in batches:
        placed = bytearray(batch)
        stamp(placed, offset)
        offset += read_header(placed).last_offset_delta + 1
        log += placed
    return bytes(log)


def read(
    records: bytes, start: int = 0, aborted: tuple[tuple[int, int], ...] = ()
) -> tuple[list[StoredRecord], StoredRecords]:
    made = StoredRecords(Fetched(records, 0, 0, 0, aborted), PLACE, start)
    return [record for some in made for record in some], made


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_every_field_comes_back(codec: int) -> None:
    ((batch, count),) = build(RECORDS, NOBODY, -1, now=99, codec=codec)
    assert count == 4
    records, made = read(stored([batch], 10))
    assert [(o, t, k, v, list(headers)) for o, t, k, v, headers in records] == [
        (10, 7, b"k", b"v", [("h", b"x"), ("n", None), ("h", b"")]),
        (11, 99, None, b"", []),
        (12, 5, b"", None, []),
        (13, 99, None, None, [("é", b"\xff")]),
    ]
    assert (made.next_offset, made.cut_off) == (14, 0)


def test_records_of_one_kind_need_no_columns_for_others() -> None:
    ((batch, _),) = build([(None, b"a", (), None), (None, b"b", (), None)], NOBODY, -1, now=3)
    assert read(stored([batch]))[0] == [(0, 3, None, b"a", ()), (1, 3, None, b"b", ())]
    assert list(build([], NOBODY, -1, now=3)) == []


def test_batches_have_the_producer_and_its_sequences() -> None:
    records = [(None, b"x" * 100, (), None)] * 10
    batches = list(build(records, Identity(7, 2, "id"), 2**31 - 2, now=1, max_bytes=400))
    assert [count for _, count in batches] == [3, 3, 3, 1]
    headers = [read_header(batch) for batch, _ in batches]
    assert [header.base_sequence for header in headers] == [2**31 - 2, 1, 4, 7]
    assert {(header.producer_id, header.producer_epoch, header.transactional) for header in headers} == {(7, 2, True)}
    assert all(len(batch) <= 400 for batch, _ in batches)
    ((plain, _),) = build(records, Identity(7, 2), 0, now=1)
    assert not read_header(plain).transactional


def test_a_record_that_is_too_large_is_named_behind_the_batches_before_it() -> None:
    records: list[NewRecord] = [(None, b"a", (), None), (b"k", b"x" * 1000, [("h", b"y" * 10)], None)]
    batches = build(records, NOBODY, -1, now=1, max_bytes=500)
    assert next(batches)[1] == 1
    with pytest.raises(
        RecordTooLargeError, match=r"a record of 1012 bytes .* the 500 .*raise max\.request\.size"
    ) as caught:
        next(batches)
    assert caught.value.index == 1


def test_a_reader_begins_within_a_batch_and_is_told_of_one_that_is_cut_off() -> None:
    batches = [batch for value in (b"a", b"b") for batch, _ in build([(None, value, (), 1)] * 3, NOBODY, -1, now=1)]
    log = stored(batches)
    records, made = read(log[:-1], 1)
    assert [(offset, value) for offset, _, _, value, _ in records] == [(1, b"a"), (2, b"a")]
    assert (made.next_offset, made.cut_off) == (3, len(batches[1]))


def test_aborted_records_and_markers_are_left_out_and_passed() -> None:
    def of(producer_id: int, value: bytes) -> bytearray:
        ((batch, _),) = build([(None, value, (), 1)], Identity(producer_id, 0, "id"), 0, now=1)
        return batch

    def marker(producer_id: int, *, commit: bool) -> bytearray:
        return build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp=1)

    log = stored([of(1, b"aborted"), of(2, b"kept"), marker(1, commit=False), of(1, b"later"), marker(2, commit=True)])
    records, made = read(log, aborted=((1, 0),))
    assert [(offset, value) for offset, _, _, value, _ in records] == [(1, b"kept"), (3, b"later")]
    assert made.next_offset == 5
    assert [value for _, _, _, value, _ in read(log)[0]] == [b"aborted", b"kept", b"later"]


def test_what_is_damaged_is_named_and_not_left_out() -> None:
    ((batch, _),) = build(RECORDS, NOBODY, -1, now=1)
    damaged = stored([batch])[:-1] + b"!"
    with pytest.raises(UnreadableRecordsError, match="t-0 at offset 0: the checksum"):
        read(damaged)


def test_the_clients_need_no_pyarrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from kop.client import batches, properties, read_client, write_client\n"
        "((batch, _),) = batches.build([(b'k', b'v', [('h', None)], 1)], write_client.Identity(-1, -1), -1, now=1)\n"
        "fetched = read_client.Fetched(bytes(batch), 0, 0, 0, ())\n"
        "print(*map(list, batches.StoredRecords(fetched, ('t', 0), 0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[(0, 1, b'k', b'v', [('h', None)])]"
