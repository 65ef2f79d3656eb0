"""The window of idempotent producers: Kafka's rules by table, and a reference that never undoes but always recounts."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from kop.errors import ErrorCode, InternalError
from kop.records.batch import MAX_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader, Record, build, read_header
from kop.records.markers import EndMarker, build_marker
from kop.storage.base import ProducerView
from kop.storage.idempotence import BatchMetadata, IdempotenceVerdict, ProducerStates, ProducerWindow

NOW = 1_700_000_000_000


def header(producer_id: int, epoch: int, sequence: int, count: int = 1, timestamp: int = NOW) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, 0, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count)


class Log:
    """A log that only counts: what an engine does around the machine."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def append(self, batch: BatchHeader, now_ms: int = NOW) -> BatchMetadata:
        assert self.states.check(batch) == IdempotenceVerdict()
        entry = self.states.append(batch, self.end, now_ms)
        assert entry is not None
        self.end += batch.record_count
        return entry

    def put(self, *batch: int) -> BatchMetadata:
        entry = self.append(header(*batch))
        self.states.commit(entry)
        return entry

    def rollback(self, offset: int) -> list[BatchMetadata]:
        self.end = offset
        return self.states.rollback(offset)

    def made(self, *batch: int) -> BatchHeader:
        return header(*batch)

    def say(self, *batch: int) -> str:
        verdict = self.states.check(self.made(*batch))
        if verdict.error is not None:
            return verdict.error.code.name
        return "new" if verdict.batch is None else "duplicate"


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.name
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH.name


def test_the_next_batch_is_new_and_others_are_out_of_order() -> None:
    log = Log()
    log.put(1, 0, 0, 3)
    assert log.say(1, 0, 3, 2) == "new"
    assert log.say(1, 0, 4) == OUT_OF_ORDER
    assert log.say(1, 0, 2) == OUT_OF_ORDER
    assert log.say(1, 0, 0, 2) == OUT_OF_ORDER  # begins as the first one, but is another batch
    assert log.say(1, 0, 0, 4) == OUT_OF_ORDER
    assert log.say(1, 0, 0, 3) == "duplicate"


def test_a_batch_without_producer_is_always_new_and_leaves_no_trace() -> None:
    log = Log()
    assert log.say(-1, -1, -1) == "new"
    assert log.states.append(header(-1, -1, -1), 0, NOW) is None
    assert len(log.states) == 0
    assert log.states.rollback(0) == []


def test_the_last_five_are_known_and_older_ones_are_not() -> None:
    log = Log()
    for n in range(7):
        log.put(1, 0, n)
    assert [log.say(1, 0, n) for n in range(9)] == [OUT_OF_ORDER] * 2 + ["duplicate"] * 5 + ["new", OUT_OF_ORDER]


@pytest.mark.parametrize("sequence", [0, 5, MAX_SEQUENCE])
@pytest.mark.parametrize("epoch", [0, 7])
def test_an_unknown_producer_may_start_anywhere(epoch: int, sequence: int) -> None:
    assert Log().say(1, epoch, sequence) == "new"


def test_a_new_epoch_starts_at_zero_and_ends_the_old_one() -> None:
    log = Log()
    log.put(1, 3, 10, 2)
    assert log.say(1, 4, 12) == OUT_OF_ORDER
    assert log.say(1, 4, 0) == "new"
    assert log.say(1, 2, 12) == OLD_EPOCH
    log.put(1, 4, 0)
    assert log.say(1, 3, 12) == OLD_EPOCH
    assert log.say(1, 3, 10, 2) == OLD_EPOCH  # its window is gone
    assert log.say(1, 4, 0) == "duplicate"


def test_a_window_of_which_only_the_last_sequence_is_known_finds_what_comes_next() -> None:
    window: ProducerWindow[BatchMetadata] = ProducerWindow(3, 9)
    assert window.check(header(1, 3, 10)) == window.check(header(1, 4, 0)) == IdempotenceVerdict()
    assert window.check(header(1, 3, 9)).error is not None
    taken = BatchMetadata(1, 10, 11, 100, 101, NOW)
    after = window.then(3, taken)
    assert after == ProducerWindow(3, 11, (taken,))
    assert after.check(header(1, 3, 10, 2)) == IdempotenceVerdict(taken)
    assert window.batches == (), "it is a value"


def test_sequences_wrap_between_and_inside_batches() -> None:
    log = Log()
    log.put(1, 0, MAX_SEQUENCE - 1, 2)
    assert log.say(1, 0, MAX_SEQUENCE) == OUT_OF_ORDER
    log.put(1, 0, 0, 3)
    assert log.say(1, 0, MAX_SEQUENCE - 1, 2) == "duplicate"
    log = Log()
    entry = log.put(1, 0, MAX_SEQUENCE - 1, 4)
    assert (entry.base_sequence, entry.last_sequence) == (MAX_SEQUENCE - 1, 1)
    assert log.say(1, 0, 2) == "new"
    assert log.say(1, 0, MAX_SEQUENCE - 1, 4) == "duplicate"


def test_a_duplicate_names_the_original_pending_or_not() -> None:
    log = Log()
    log.put(2, 0, 0)
    entry = log.append(header(1, 0, 0, 3))
    entry.owner = "a future"
    verdict = log.states.check(header(1, 0, 0, 3))
    assert verdict == IdempotenceVerdict(entry)
    assert (entry.pending, entry.owner, entry.base_offset, entry.last_offset) == (True, "a future", 1, 3)
    log.states.commit(entry)
    assert log.states.check(header(1, 0, 0, 3)).batch is entry
    assert not entry.pending


def test_commit_takes_those_before_with_it_and_may_be_repeated() -> None:
    log = Log()
    entries = [log.append(header(n % 2, 0, n // 2)) for n in range(6)]
    log.states.commit(entries[3])
    assert [entry.pending for entry in entries] == [False] * 4 + [True] * 2
    log.states.commit(entries[0])
    log.states.commit(entries[3])
    assert [entry.pending for entry in entries] == [False] * 4 + [True] * 2


def test_committing_what_was_undone_is_our_own_error_and_changes_nothing() -> None:
    log = Log()
    undone = log.append(header(1, 0, 0))
    log.rollback(0)
    other = log.append(header(1, 0, 0))
    with pytest.raises(InternalError):
        log.states.commit(undone)
    assert other.pending


def test_rollback_undoes_a_new_producer() -> None:
    log = Log()
    first = log.append(header(1, 5, 30))
    second = log.append(header(1, 5, 31))
    assert log.rollback(0) == [first, second]
    assert len(log.states) == 0
    assert log.say(1, 0, 9) == "new"


def test_rollback_undoes_a_new_epoch() -> None:
    log = Log()
    log.put(1, 0, 0)
    log.append(header(1, 1, 0))
    assert log.say(1, 0, 1) == OLD_EPOCH
    log.rollback(1)
    assert log.say(1, 0, 0) == "duplicate"
    assert log.say(1, 0, 1) == "new"
    assert log.say(1, 1, 1) == OUT_OF_ORDER


def test_rollback_brings_back_what_fell_out_of_the_window() -> None:
    log = Log()
    for n in range(5):
        log.put(1, 0, n)
    for n in range(5, 11):
        log.append(header(1, 0, n))
    assert log.say(1, 0, 0) == OUT_OF_ORDER
    log.rollback(5)
    assert [log.say(1, 0, n) for n in range(6)] == ["duplicate"] * 5 + ["new"]


def test_rollback_leaves_what_lies_before() -> None:
    log = Log()
    log.append(header(1, 0, 0, 4))
    keep = log.append(header(2, 0, 0, 4))
    gone = log.append(header(1, 0, 4, 4))
    assert log.rollback(8) == [gone]
    assert log.say(1, 0, 4, 4) == "new"
    assert log.say(2, 0, 0, 4) == "duplicate"
    log.states.commit(keep)
    assert log.rollback(0) == []  # what is committed stays


def test_expiry_forgets_the_idle_and_not_the_pending() -> None:
    log = Log()
    log.put(1, 0, 0)
    log.states.commit(log.append(header(2, 0, 0), now_ms=NOW + 500))
    log.append(header(3, 0, 0), now_ms=NOW)
    assert log.states.expire(NOW + 999, 1000) == 0
    assert log.states.expire(NOW + 1000, 1000) == 1
    assert log.say(1, 0, 77) == "new"
    assert log.say(2, 0, 0) == "duplicate"
    assert log.say(3, 0, 0) == "duplicate"
    log.rollback(2)
    assert log.states.expire(NOW + 5000, 1000) == 1
    assert len(log.states) == 0


def test_a_snapshot_holds_what_is_committed() -> None:
    log = Log()
    for n in range(7):
        log.put(1, 2, n)
    log.put(2, 0, MAX_SEQUENCE, 2)
    log.append(header(1, 2, 7))
    log.append(header(1, 3, 0))
    log.append(header(9, 0, 0))
    restored = ProducerStates.restore(json.loads(json.dumps(log.states.snapshot())))
    log.rollback(9)
    assert restored.snapshot() == log.states.snapshot()
    for batch in [(1, 2, n, 1) for n in range(9)] + [(2, 0, MAX_SEQUENCE, 2), (2, 0, 1, 1), (9, 0, 0, 1), (1, 3, 0, 1)]:
        theirs, ours = restored.check(header(*batch)), log.states.check(header(*batch))
        assert (theirs.batch is None, theirs.error is None) == (ours.batch is None, ours.error is None)
        if theirs.batch is not None and ours.batch is not None:
            assert (theirs.batch.base_offset, theirs.batch.pending) == (ours.batch.base_offset, False)


@pytest.mark.parametrize(
    "text",
    [
        "3", "[1]", "[[1,2]]", "[[1,2,3,[[1,2,3,4]],-1,5]]", '[[1,2,3,[[1,2,3,4,5]],"x",5]]',
        '[[1,2,3,[[1,2,3,4,5]],-1,"x"]]', "[[1,2,3,[],4,5,6]]",
        pytest.param("[[1,2,3,[[1,2,3,4,5]]]]", id="unreleased: without the transaction"),
        pytest.param("[[1,2,3,[[1,2,3,4,5]],6]]", id="unreleased: without the last timestamp"),
    ],
)  # fmt: skip
def test_a_snapshot_that_is_none(text: str) -> None:
    with pytest.raises(InternalError, match="begin with a new store"):
        ProducerStates.restore(json.loads(text))


def test_replay_continues_a_snapshot_and_may_overlap_it() -> None:
    log = Log()
    batches = [header(n % 2, 0, n // 2 * 2, 2) for n in range(12)] + [header(0, 1, 0, 2), header(-1, -1, -1, 2)]
    offsets = range(0, 28, 2)
    snapshot = None
    for batch in batches[:-1]:
        log.states.commit(log.append(batch))
        if log.end == 10:
            snapshot = log.states.snapshot()
    assert snapshot is not None
    for start in (0, 3, 5):
        states = ProducerStates.restore(snapshot)
        for batch, offset in list(zip(batches, offsets, strict=True))[start:]:
            states.replay(batch, offset, NOW)
        assert states.snapshot() == log.states.snapshot()
    states = ProducerStates()
    for batch, offset in zip(batches, offsets, strict=True):
        states.replay(batch, offset, NOW)
    assert states.snapshot() == log.states.snapshot()


def test_replay_reads_what_compaction_left() -> None:
    states = ProducerStates()
    emptied = build([], base_offset=10, last_offset=14, producer_id=1, producer_epoch=0, base_sequence=0)
    states.replay(read_header(emptied), 10, NOW)
    assert states.views() == [ProducerView(1, 0, 4, -1)]
    control = build([Record(15, NOW, b"", b"")], producer_id=1, producer_epoch=0, control=True)
    states.replay(read_header(control), 15, NOW)
    assert states.views() == [ProducerView(1, 0, 4, -1)]


def test_views_are_of_committed_producers_by_id() -> None:
    log = Log()
    log.put(7, 1, 0, 3, NOW + 5)
    log.put(3, 0, 9, 1, NOW)
    log.append(header(7, 1, 3))
    log.append(header(1, 0, 0))
    assert log.states.views() == [ProducerView(3, 0, 9, NOW), ProducerView(7, 1, 2, NOW + 5)]


class Reference:
    """The rules over a plain list of all batches: what is rolled back is cut off, the rest makes the window."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int, int]] = []  # producer, epoch, base sequence, count, offset

    def window(self, producer_id: int) -> list[tuple[int, int, int, int, int]]:
        mine = [batch for batch in self.batches if batch[0] == producer_id]
        return [batch for batch in mine if batch[1] == mine[-1][1]][-5:]

    def say(self, producer_id: int, epoch: int, sequence: int, count: int) -> str | int:
        window = self.window(producer_id)
        if not window:
            return "new"
        _, known, last, length, _ = window[-1]
        if epoch < known:
            return OLD_EPOCH
        if epoch > known:
            return "new" if sequence == 0 else OUT_OF_ORDER
        for batch in window:
            if batch[2:4] == (sequence, count):
                return batch[4]
        return "new" if sequence == (last + length) % 2**31 else OUT_OF_ORDER


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.integers(20, 120))
def test_the_window_against_the_reference_under_faults(seed: int, steps: int) -> None:
    """Producers that retry, reorder, wrap, bump epochs and start in the middle, over a log whose commits fail."""
    rng = random.Random(seed)
    log, reference = Log(), Reference()
    pending: list[BatchMetadata] = []
    sent: list[tuple[int, int, int, int]] = []
    following: dict[int, tuple[int, int]] = {}
    for _ in range(steps):
        action = rng.random()
        if action < 0.08 and pending:
            cut = rng.randrange(len(pending))
            offset = pending[cut].base_offset
            assert log.rollback(offset) == pending[cut:]
            del pending[cut:]
            reference.batches = [batch for batch in reference.batches if batch[4] < offset]
            continue
        if action < 0.25 and pending:
            upto = rng.randrange(len(pending))
            log.states.commit(pending[upto])
            assert not any(entry.pending for entry in pending[: upto + 1])
            del pending[: upto + 1]
            continue
        if action < 0.30:
            restored = ProducerStates.restore(json.loads(json.dumps(log.states.snapshot())))
            durable = pending[0].base_offset if pending else log.end
            alone = Reference()
            alone.batches = [batch for batch in reference.batches if batch[4] < durable]
            for batch in sent[-8:]:
                compare(restored, alone, batch)
            continue
        if action < 0.55 and sent:
            batch = rng.choice(sent[-9:])
        else:
            producer_id = rng.randrange(3)
            epoch, sequence = following.get(producer_id, (0, rng.choice([0, 0, 9, MAX_SEQUENCE - 1])))
            if rng.random() < 0.1:
                epoch, sequence = epoch + 1, rng.choice([0, 0, 0, 2])
            elif rng.random() < 0.1:
                sequence = (sequence + rng.choice([-2, -1, 1, 2])) % 2**31
            batch = (producer_id, epoch, sequence, rng.randrange(1, 4))
        if compare(log.states, reference, batch) == "new":
            reference.batches.append((*batch, log.end))
            pending.append(log.append(header(*batch)))
            sent.append(batch)
            following[batch[0]] = (batch[1], (batch[2] + batch[3]) % 2**31)


def compare(states: ProducerStates, reference: Reference, batch: tuple[int, int, int, int]) -> str | int:
    verdict = states.check(header(*batch))
    expected = reference.say(*batch)
    if verdict.batch is not None:
        assert verdict.batch.base_offset == expected
    elif verdict.error is not None:
        assert verdict.error.code.name == expected
    else:
        assert expected == "new"
    return expected


# --- transactions


def in_transaction(producer_id: int, epoch: int, sequence: int, count: int = 1) -> BatchHeader:
    return header(producer_id, epoch, sequence, count)._replace(attributes=TRANSACTIONAL_BIT)


MARKED = NOW + 7
"""The timestamp of markers."""


class TransactionalLog(Log):
    def made(self, *batch: int) -> BatchHeader:
        return in_transaction(*batch)

    def data(self, *batch: int) -> BatchMetadata:
        entry = self.append(in_transaction(*batch))
        self.states.commit(entry)
        return entry

    def marker(self, producer_id: int, epoch: int, *, commit: bool = True, durable: bool = True) -> BatchMetadata:
        entry = self.states.append_marker(producer_id, epoch, self.end, MARKED, MARKED, commit=commit)
        self.end += 1
        if durable:
            self.states.commit(entry)
        return entry

    def refuses(self, producer_id: int, epoch: int, *, bumps_epoch: bool) -> bool:
        error = self.states.check_marker(producer_id, epoch, bumps_epoch=bumps_epoch)
        assert error is None or error.code is ErrorCode.INVALID_PRODUCER_EPOCH
        return error is not None


def test_an_end_that_bumps_the_epoch_begins_the_sequences_again() -> None:
    log = TransactionalLog()
    log.data(1, 0, 0, 3)
    assert log.states.transactions.first_open == 0
    log.marker(1, 1)
    assert log.states.transactions.first_open is None
    assert log.say(1, 0, 3) == OLD_EPOCH  # a late batch of the transaction that has ended
    assert log.say(1, 1, 3) == OUT_OF_ORDER
    assert log.say(1, 1, 0) == "new"
    assert log.states.views() == [ProducerView(1, 1, -1, MARKED)]


def test_an_end_under_the_same_epoch_goes_on_with_the_sequences() -> None:
    log = TransactionalLog()
    log.data(1, 4, 0, 3)
    log.marker(1, 4, commit=False)
    assert log.say(1, 4, 3) == "new"
    assert log.say(1, 4, 0, 3) == "duplicate"
    assert log.states.views() == [ProducerView(1, 4, 2, MARKED)]
    assert [transaction.first_offset for transaction in log.states.transactions.aborted] == [0]


def test_which_epochs_a_marker_may_have() -> None:
    log = TransactionalLog()
    assert not log.refuses(1, 0, bumps_epoch=True)  # nothing is known of the producer
    log.data(1, 5, 0)
    for bumps_epoch, lowest in ((False, 5), (True, 6)):
        assert log.refuses(1, lowest - 1, bumps_epoch=bumps_epoch)
        assert not log.refuses(1, lowest, bumps_epoch=bumps_epoch)
        assert not log.refuses(1, lowest + 3, bumps_epoch=bumps_epoch)


def test_a_marker_that_was_written_is_not_needed_again() -> None:
    log = TransactionalLog()
    assert log.states.needs_marker(1, 0)  # its epoch fences: the partition was added, nothing was written
    log.data(1, 0, 0)
    assert log.states.needs_marker(1, 0)
    log.marker(1, 1)
    assert not log.states.needs_marker(1, 1)
    assert not log.refuses(1, 1, bumps_epoch=True)
    assert log.states.needs_marker(1, 2)


def test_what_is_not_transactional_waits_for_the_end_of_the_producers_transaction() -> None:
    log = TransactionalLog()
    log.data(1, 0, 0)
    for sequence, code in ((1, ErrorCode.INVALID_TXN_STATE), (2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)):
        error = log.states.check(header(1, 0, sequence)).error
        assert error is not None
        assert error.code is code
    assert log.states.check(header(1, 0, 0)).batch is not None
    log.marker(1, 0)
    assert log.states.check(header(1, 0, 1)) == IdempotenceVerdict()


def test_a_marker_that_could_not_be_stored_ends_nothing() -> None:
    log = TransactionalLog()
    log.data(1, 0, 0, 2)
    log.marker(1, 1, commit=False, durable=False)
    assert log.states.transactions.first_open == 0
    assert log.say(1, 0, 2) == OLD_EPOCH
    log.rollback(2)
    assert log.say(1, 0, 2) == "new"
    assert log.states.transactions.first_offset(1) == 0
    assert log.states.transactions.aborted == []


def test_producers_with_an_open_transaction_do_not_expire() -> None:
    log = TransactionalLog()
    log.data(1, 0, 0)
    log.data(2, 0, 0)
    log.marker(2, 1)
    assert log.states.expire(MARKED + 1000, 1000) == 1
    assert [view.producer_id for view in log.states.views()] == [1]
    assert log.states.views()[0].current_txn_start_offset == 0


def test_transactions_are_the_same_after_a_restart() -> None:
    log = TransactionalLog()
    batches: list[tuple[BatchHeader, int, EndMarker | None]] = []

    def data(*batch: int) -> None:
        entry = log.data(*batch)
        batches.append((in_transaction(*batch), entry.base_offset, None))

    def marker(producer_id: int, epoch: int, *, commit: bool) -> None:
        entry = log.marker(producer_id, epoch, commit=commit)
        raw = build_marker(producer_id, epoch, commit=commit, coordinator_epoch=0, timestamp=MARKED)
        batches.append((read_header(raw), entry.base_offset, EndMarker(commit, 0)))

    data(1, 0, 0)
    data(2, 7, 0, 3)
    data(1, 0, 1)
    snapshot = json.loads(json.dumps(log.states.snapshot()))
    marker(1, 1, commit=False)
    data(1, 1, 0)
    marker(2, 7, commit=True)
    data(3, 0, 0)
    marker(1, 2, commit=False)
    for states, rest in ((ProducerStates(), batches), (ProducerStates.restore(snapshot), batches[3:])):
        for batch, offset, end in rest:
            states.replay(batch, offset, NOW if end is None else MARKED, end)
        assert states.snapshot() == log.states.snapshot()
        assert states.transactions.aborted == log.states.transactions.aborted
        assert states.transactions.first_open == log.states.transactions.first_open
    restored = ProducerStates.restore(log.states.snapshot(), log.states.transactions.aborted)
    assert restored.transactions.open_transactions == {3: 8}
    assert restored.transactions.aborted_between(0, 10) == log.states.transactions.aborted_between(0, 10)
