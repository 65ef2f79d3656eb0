"""The sequence window over Pulsar's deduplication, as a table, and against a model of both; what was seen stored."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage.batches import batch

from kop.errors import ErrorCode
from kop.records.batch import BatchHeader, add_sequence, read_header
from kop.storage.idempotence import WINDOW
from kop.storage.pulsar.partition import sequences
from kop.storage.pulsar.partition.sequences import SequenceWindow, StoredSequences, Verdict

LAST = 2**31 - 1
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
DISORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD = ErrorCode.INVALID_PRODUCER_EPOCH


def at(epoch: int, unwrapped: int) -> int:
    """Pulsar's sequence id."""
    return epoch << 47 | unwrapped


def code_of(verdict: Verdict) -> ErrorCode:
    assert verdict.error is not None
    return verdict.error.code


def owner_of(verdict: Verdict) -> object:
    """Who appended the batch that a batch repeats."""
    assert verdict.original is not None
    return verdict.original.owner


def test_where_nothing_was_forgotten_a_producer_may_begin_anywhere() -> None:
    window = SequenceWindow(-1, complete=True)
    assert window.check(header(7, 2)) == Verdict(7)
    window.take(header(7, 2), 7, "first")
    assert window.check(header(9)) == Verdict(9)
    for late in (5, 6):  # it failed on the topic of that name that is gone: nobody knows what came of it
        assert code_of(window.check(header(late))) is DISORDER
    for refused in (header(3, epoch=1), header(11)):
        assert code_of(window.check(refused)) is DISORDER
    known = SequenceWindow(at(0, 4), complete=True)
    assert code_of(known.check(header(7))) is DISORDER


@pytest.mark.parametrize("complete", [True, False])
def test_where_each_epoch_begins_at_0_no_batch_comes_before_that(complete: bool) -> None:
    window = SequenceWindow(-1, complete=complete)
    assert code_of(window.check(header(1, epoch=3), from_zero=True)) is DISORDER
    assert window.check(header(0, epoch=3), from_zero=True) == Verdict(at(3, 0))
    assert not window.comes_next(header(1, epoch=3))
    assert window.comes_next(header(0, epoch=3))
    window.take(header(0, epoch=3), at(3, 0), "first")
    assert window.check(header(1, epoch=3), from_zero=True) == Verdict(at(3, 1))
    assert not window.comes_next(header(0, epoch=3))


def header(sequence: int, count: int = 1, epoch: int = 0) -> BatchHeader:
    return read_header(batch(["v"] * count, producer=1, epoch=epoch, sequence=sequence))


def test_what_pulsar_refused_is_never_known() -> None:
    window = SequenceWindow(-1)
    for first in (0, 3, 6, 9):
        window.take(header(first, 3), first, first)
    window.refuse(3, 3, 3)
    for first, count in ((3, 3), (3, 1), (5, 1), (4, 3)):
        assert code_of(window.check(header(first, count))) is UNKNOWN
    assert owner_of(window.check(header(6, 3))) == 6
    assert window.check(header(12)) == Verdict(12)
    assert window.check(header(0, epoch=1)) == Verdict(at(1, 0)), "it can be stored in a new epoch"


def test_what_pulsar_refused_takes_no_sequence_where_nothing_is_stored_behind_it() -> None:
    window = SequenceWindow(-1)
    for first in (0, 3, 6):
        window.take(header(first, 3), first, first)
    window.refuse(3, 3, 3)
    window.refuse(6, 3, 6)
    assert window.last_sequence == 2
    assert window.check(header(3, 1)) == Verdict(3)
    assert code_of(window.check(header(6, 3))) is DISORDER
    of_a_new_epoch = SequenceWindow(at(4, 9))
    of_a_new_epoch.take(header(0, epoch=5), at(5, 0), 0)
    of_a_new_epoch.refuse(at(5, 0), 1, 0)
    assert of_a_new_epoch.check(header(0, epoch=5)) == Verdict(at(5, 0))


def test_of_a_batch_that_was_refused_in_part_the_rest_is_asked_for() -> None:
    window = SequenceWindow(-1)
    window.take(header(0, 9), 0, "in three entries")
    window.take(header(9, 1), 9, "behind it")
    window.refuse(3, 3, "in three entries")
    assert window.check(header(0, 3)) == Verdict(0, known=True)
    assert code_of(window.check(header(2, 2))) is UNKNOWN
    assert window.check(header(6, 3)) == Verdict(6, known=True)
    assert owner_of(window.check(header(9, 1))) == "behind it"


def test_behind_a_refused_batch_only_the_same_bytes_are_the_same_batch() -> None:
    """Java clients before 2.5 count their sequences down by a refused batch: the next one has that of a stored one."""
    window = SequenceWindow(-1)
    for first in range(4):
        window.take(header(first), first, first)
    window.refuse(1, 1, 1)
    stored, another = header(3), read_header(batch(["another"], producer=1, epoch=0, sequence=3))
    assert owner_of(window.check(stored)) == 3
    assert code_of(window.check(another)) is UNKNOWN
    assert code_of(window.check(header(3, 2))) is UNKNOWN


@dataclass(frozen=True)
class Step:
    """A batch, and what is said of it: a sequence id, "known" one, the batch that it repeats, or an error."""

    sequence: int
    count: int = 1
    epoch: int = 0
    sent: int | None = None
    known: int | None = None
    repeats: int | None = None
    error: ErrorCode | None = None


TABLE: dict[str, tuple[int, list[Step]]] = {
    "a new producer begins at 0": (-1, [Step(0, 3, sent=0), Step(3, sent=3)]),
    "a forgotten name": (-1, [Step(7, error=UNKNOWN)]),
    "a forgotten name, then a new epoch": (-1, [Step(7, error=UNKNOWN), Step(0, epoch=1, sent=at(1, 0))]),
    "a gap": (-1, [Step(0, 3, sent=0), Step(4, error=DISORDER), Step(3, sent=3)]),
    "a duplicate in the window": (-1, [Step(0, 3, sent=0), Step(3, 2, sent=3), Step(0, 3, repeats=0)]),
    "the oldest of the window": (
        -1,
        [*(Step(i, sent=i) for i in range(WINDOW)), Step(0, repeats=0), Step(WINDOW, sent=WINDOW)],
    ),
    "behind the window, never told by Pulsar": (
        -1,
        [*(Step(i, sent=i) for i in range(WINDOW + 1)), Step(0, error=DISORDER)],
    ),
    "same start, other length": (-1, [Step(0, 3, sent=0), Step(0, 2, error=DISORDER)]),
    "window lost, the next batch": (at(0, 9), [Step(10, sent=10)]),
    "window lost, a stored batch": (at(0, 9), [Step(8, 2, known=8), Step(10, sent=10)]),
    "window lost, an old stored batch": (at(0, 9), [Step(0, 2, known=0)]),
    "window lost, stored ones again when new ones came": (at(0, 9), [Step(10, sent=10), Step(8, 2, known=8)]),
    "window lost, a gap": (at(0, 9), [Step(11, error=DISORDER)]),
    "a split batch half stored": (at(0, 9), [Step(8, 4, sent=8), Step(12, sent=12), Step(8, 4, repeats=8)]),
    "over the end but not split: something came since": (at(0, 9), [Step(10, sent=10), Step(8, 4, error=DISORDER)]),
    "a new epoch begins at 0": (at(2, 9), [Step(0, epoch=3, sent=at(3, 0)), Step(1, epoch=3, sent=at(3, 1))]),
    "a new epoch does not begin elsewhere": (at(2, 9), [Step(10, epoch=3, error=DISORDER)]),
    "an old epoch": (at(2, 9), [Step(10, epoch=1, error=OLD)]),
    "a new epoch ends the old one": (-1, [Step(0, sent=0), Step(0, epoch=1, sent=at(1, 0)), Step(1, error=OLD)]),
    "after a new epoch the stored ones of the old are not known": (
        at(0, 9),
        [Step(0, epoch=1, sent=at(1, 0)), Step(5, epoch=1, error=DISORDER)],
    ),
    "a new epoch forgets the window": (
        -1,
        [Step(0, 2, sent=0), Step(0, 2, epoch=1, sent=at(1, 0)), Step(0, 2, epoch=1, repeats=0)],
    ),
    "the largest epoch": (-1, [Step(0, epoch=32767, sent=at(32767, 0))]),
    "up to the wrap": (at(0, LAST - 1), [Step(LAST, sent=LAST), Step(0, sent=LAST + 1), Step(1, sent=LAST + 2)]),
    "a batch over the wrap": (at(0, LAST - 2), [Step(LAST - 1, 4, sent=LAST - 1), Step(2, sent=LAST + 3)]),
    "a batch over the wrap again": (
        at(0, LAST - 2),
        [Step(LAST - 1, 4, sent=LAST - 1), Step(LAST - 1, 4, repeats=LAST - 1)],
    ),
    "behind the wrap, window lost": (at(0, LAST + 3), [Step(3, sent=LAST + 4), Step(LAST, known=LAST)]),
    "stored over the wrap, window lost": (at(0, LAST + 2), [Step(LAST - 1, 4, known=LAST - 1)]),
    "behind the wrap, a gap ahead is not taken for stored": (at(0, 2**32 + 9), [Step(12, error=DISORDER)]),
    "a gap ahead over the wrap": (at(0, 2**32 + LAST - 1), [Step(0, error=DISORDER)]),
}


@pytest.mark.parametrize("case", TABLE)
def test_verdicts(case: str) -> None:
    last, steps = TABLE[case]
    window = SequenceWindow(last)
    for step in steps:
        batch_header = header(step.sequence, step.count, step.epoch)
        verdict = window.check(batch_header)
        assert str(window.check(batch_header)) == str(verdict), "a check changes nothing"
        if step.error is not None:
            assert verdict.error is not None
            assert verdict.error.code is step.error
            assert (verdict.sequence_id, verdict.original, verdict.known) == (None, None, False)
        elif step.repeats is not None:
            assert verdict.original is not None
            assert verdict.original.owner == (step.repeats, step.epoch)
        elif step.known is not None:
            assert verdict == Verdict(step.known, known=True)
            assert window.known(step.known)
        else:
            assert verdict == Verdict(step.sent)
            assert step.sent is not None
            window.take(batch_header, step.sent, (step.sequence, step.epoch))
            assert window.last_sequence == add_sequence(step.sequence, step.count - 1)
            assert window.epoch == step.epoch


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 2**32), st.data())
def test_a_client_that_sends_again_after_any_change_of_gateway_is_stored_once_in_order(
    counts: list[int], begin: int, data: st.DataObject
) -> None:
    """Pulsar: takes what is above its last id, drops the rest. The client repeats until it hears of each batch."""
    pulsar = at(0, begin - 1) if begin else -1
    stored: list[tuple[int, int]] = []
    window, unwrapped = SequenceWindow(pulsar), begin
    for count in counts:
        batch_header = header(unwrapped % 2**31, count)
        lost = True
        while lost:
            if data.draw(st.booleans()):
                window = SequenceWindow(pulsar)  # another gateway
            verdict = window.check(batch_header)
            assert verdict.error is None, "a well-behaved client is never refused"
            if verdict.sequence_id is not None:
                if not verdict.known:
                    window.take(batch_header, verdict.sequence_id, None)
                if verdict.sequence_id > pulsar:
                    assert not verdict.known
                    pulsar = verdict.sequence_id + count - 1
                    stored.append((unwrapped, count))
            lost = data.draw(st.booleans())  # the answer
        unwrapped += count
    assert [first for first, _ in stored] == [begin + sum(counts[:i]) for i in range(len(counts))]


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
    for number in range(sequences.MOST_NAMES):
        stored.add(f"name {number}", number)
    stored.add("name 0", 0)
    stored.add("another", 1)
    assert (stored.of("name 0"), stored.of("name 1"), stored.of("name 2")) == (0, -1, 2)
