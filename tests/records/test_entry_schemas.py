"""The tagged field of a Fetch answer that names versions of schemas, and where they come from."""

from __future__ import annotations

import pytest

from kop.pulsar_client.proto import pulsar_pb2
from kop.records import transcode
from kop.records.entry_schemas import NO_VERSION, SchemaRun, add_run, pack_runs, runs_between, unpack_runs


def test_records_of_one_version_are_one_run_and_the_field_brings_the_runs_back() -> None:
    runs: list[SchemaRun] = []
    for base, version in ((0, NO_VERSION), (4, 0), (6, 0), (9, 2**63 - 1), (12, NO_VERSION), (15, 0)):
        add_run(runs, base, version)
    assert runs == [(4, 0), (9, 2**63 - 1), (12, NO_VERSION), (15, 0)]
    assert unpack_runs(pack_runs(runs)) == runs
    assert unpack_runs(b"") == []
    with pytest.raises(ValueError, match="17 bytes are not runs"):
        unpack_runs(bytes(17))


@pytest.mark.parametrize(
    ("first", "end", "places"),
    [(0, 4, ()), (0, 5, (0,)), (4, 5, (0,)), (8, 9, (0,)), (8, 10, (0, 1)), (9, 12, (1,)), (20, 30, (3,))],
)
def test_the_runs_of_some_offsets_are_those_that_hold_them(first: int, end: int, places: tuple[int, ...]) -> None:
    runs = [SchemaRun(4, 0), SchemaRun(9, 1), SchemaRun(12, NO_VERSION), SchemaRun(15, 0)]
    assert runs_between(runs, first, end) == [runs[place] for place in places]


@pytest.mark.parametrize(
    ("version", "number"),
    [
        (None, NO_VERSION),
        (b"", NO_VERSION),
        (b"\0" * 8, 0),
        (b"\0" * 6 + b"\1\2", 258),
        (b"\0" * 7, NO_VERSION),
        (b"\x82\x01\0\0\0\0\0\0", -9_078_975_373_802_209_280),
    ],
)
def test_an_entry_s_version_is_a_number_of_eight_bytes(version: bytes | None, number: int) -> None:
    entry = pulsar_pb2.MessageMetadata(
        producer_name="\u0082\u0001", sequence_id=1, publish_time=2, ordering_key=b"\x82\x01"
    )
    if version is not None:
        entry.schema_version = version
    assert transcode.schema_version(entry.SerializeToString()) == number
