"""What a broker remembers of the sequence ids that it has seen stored."""

from __future__ import annotations

from kop.storage.pulsar.partition import stored_sequences
from kop.storage.pulsar.partition.stored_sequences import StoredSequences


def test_the_highest_sequence_id_of_a_name_stays() -> None:
    stored = StoredSequences()
    assert stored.of("a") == -1
    assert "a" not in stored
    stored.add("a", -1)
    assert "a" in stored
    assert stored.of("a") == -1
    for sequence_id in (4, 9, 7):
        stored.add("a", sequence_id)
    stored.add("b", 3)
    assert (stored.of("a"), stored.of("b")) == (9, 3)


def test_names_that_were_not_seen_for_long_are_forgotten() -> None:
    stored = StoredSequences()
    for number in range(stored_sequences.MOST_NAMES):
        stored.add(f"name {number}", number)
    stored.add("name 0", 0)
    stored.add("another", 1)
    assert (stored.of("name 0"), stored.of("name 1"), stored.of("name 2")) == (0, -1, 2)
