"""Places of entries, as a tagged field of Fetch carries them."""

from __future__ import annotations

import pytest

from kop.records.entry_places import PlacedEntry, pack_places, unpack_places


def test_places_come_back_as_they_were() -> None:
    places = [
        PlacedEntry(0, 12, 0, 1_700_000_000_000, batched=True),
        PlacedEntry(2**62, 2**63 - 1, 7, 0, batched=False),
    ]
    assert unpack_places(pack_places(places)) == places
    assert unpack_places(b"") == []


def test_a_time_beyond_all_times_is_cut_off() -> None:
    """A producer may write any number into the unsigned field of Pulsar."""
    packed = pack_places([PlacedEntry(0, 1, 2, 2**64 - 1, batched=True)])
    assert unpack_places(packed) == [PlacedEntry(0, 1, 2, 2**63 - 1, batched=True)]


def test_another_layout_is_no_places() -> None:
    with pytest.raises(ValueError, match="34 bytes are not entries of 33 bytes"):
        unpack_places(bytes(34))
