"""Which message an output was made from: the same headers for many at once as for one."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from kop.functions import origins

TOPIC = "lines-é"
STARTS = st.sampled_from([0, 1, 100, 127, 16_300, 2**21 - 50, 2**28 - 100, 2**28, 2**35 - 60]) | st.integers(0, 2**60)


def in_runs(index: int, offsets: list[int]) -> list[list[tuple[str, bytes]]]:
    rows = []
    for run in origins.header_runs(TOPIC, index, offsets):
        values, at = bytes(run.values), 0
        for _ in range(run.records):
            row = []
            for name, size in zip(run.names, run.sizes, strict=True):
                row.append((name.decode(), values[at : at + size]))
                at += size
            rows.append(row)
        assert at == len(values)
    return rows


@given(STARTS, st.sampled_from([0, 1, 127, 128, 20_000]), st.integers(1, 400))
def test_offsets_that_follow_one_another(start: int, index: int, count: int) -> None:
    offsets = list(range(start, start + count))
    assert in_runs(index, offsets) == [origins.headers(TOPIC, index, offset) for offset in offsets]


@given(STARTS, st.lists(st.integers(1, 5_000), min_size=1, max_size=50))
def test_offsets_with_gaps(start: int, gaps: list[int]) -> None:
    offsets = [start]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    assert in_runs(3, offsets) == [origins.headers(TOPIC, 3, offset) for offset in offsets]


def test_the_id_is_a_protobuf_of_pulsar() -> None:
    assert origins.message_id(5, (3 << 28) + 300) == b"\x08\x03\x10\xac\x02\x18\x05"
    headers = dict(origins.headers("t", 5, 300))
    assert headers == {
        "__pfn_input_topic__": b"t",
        "__pfn_input_msg_id__": base64.urlsafe_b64encode(b"\x08\x00\x10\xac\x02\x18\x05"),
    }
