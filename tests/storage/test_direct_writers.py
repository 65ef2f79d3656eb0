"""What compiled code does with the batches of one producer, from the SEND frame to the offset, without any Pulsar.

The frames are compared with those of the ordinary path (`kop.records.transcode.to_frames`), byte for byte; what is
not taken has to leave everything as it was; and a small model in Python says what every counter has to be after any
sequence of calls. The readable and the compiled `Outgoing` run through the same tests.
"""

from __future__ import annotations

import gc
import random
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from storage.batches import Told

from kop.compiled import compiled_only
from kop.pulsar_client import outgoing as readable_outgoing
from kop.pulsar_client.outgoing import Outgoing
from kop.records import transcode
from kop.records.batch import HEADER_SIZE, MAX_SEQUENCE, Codec, Record, build, read_header
from kop.records.validation import TimeLimits
from kop.storage.pulsar.partition.decompression import MOST_AT_ONCE, DecompressionTurns, DirectCodecs
from kop.storage.pulsar.partition.direct_writers import direct_budget, direct_writer

if TYPE_CHECKING:
    from kop._native import DirectBudget, DirectWriter

NATIVE: Any = compiled_only()
NEEDS_COMPILED = pytest.mark.skipif(NATIVE is None, reason="kop._native was not built: nothing goes this way")
OUTGOING = [
    pytest.param(readable_outgoing, id="readable"),
    pytest.param(NATIVE, id="compiled", marks=NEEDS_COMPILED),
]

NOW = 1_700_000_000_000
LIMITS = TimeLimits()
NUMBER = 7
NAME = "kop-é-7".encode()
MAX_SIZE = 5 * 1024 * 1024
LEDGER = 31
LOG_START = 4


# --- frames that wait


class Called:
    """What an `Outgoing` has called, in order."""

    def __init__(self, twin: ModuleType, most: int) -> None:
        self.calls: list[str] = []
        self.outgoing: Outgoing = twin.Outgoing(
            most, lambda: self.calls.append("first"), lambda: self.calls.append("full")
        )


@pytest.mark.parametrize("twin", OUTGOING)
def test_the_first_frame_after_each_take_is_told_once(twin: ModuleType) -> None:
    told = Called(twin, 100)
    assert (told.outgoing.take(), told.calls) == ([], [])
    for _ in range(3):
        told.outgoing.push(b"one")
        told.outgoing.push(b"")
        told.outgoing.push(b"three")
        assert told.calls == ["first"]
        assert told.outgoing.size == 8
        assert told.outgoing.take() == [b"one", b"", b"three"]
        assert told.outgoing.size == 0
        told.calls.clear()


@pytest.mark.parametrize("twin", OUTGOING)
def test_every_frame_from_the_bound_on_is_told_and_not_told_as_the_first(twin: ModuleType) -> None:
    told = Called(twin, 10)
    told.outgoing.push(b"x" * 10)
    told.outgoing.push(b"")
    assert told.calls == ["full", "full"]
    told.outgoing.take()
    told.calls.clear()
    told.outgoing.push(b"x" * 9)
    told.outgoing.push(b"x")
    assert told.calls == ["first", "full"]


@pytest.mark.parametrize("twin", OUTGOING)
def test_what_is_called_may_take_the_frames_and_push_others(twin: ModuleType) -> None:
    taken: list[list[bytes]] = []

    def full() -> None:
        taken.append(outgoing.take())
        if len(taken) == 1:
            outgoing.push(b"behind")

    outgoing: Outgoing = twin.Outgoing(4, lambda: None, full)
    outgoing.push(b"abc")
    outgoing.push(b"d")
    assert taken == [[b"abc", b"d"], [b"behind"]]
    assert outgoing.size == 0


@pytest.mark.parametrize("twin", OUTGOING)
def test_a_closed_one_drops_what_it_has_and_what_comes_and_is_paused(twin: ModuleType) -> None:
    told = Called(twin, 4)
    told.outgoing.push(b"x")
    assert not told.outgoing.paused
    told.outgoing.close()
    told.outgoing.push(b"x" * 10)
    assert told.calls == ["first"]
    assert told.outgoing.paused
    assert (told.outgoing.size, told.outgoing.take()) == (0, [])
    told.outgoing.close()


@pytest.mark.parametrize("twin", OUTGOING)
def test_pausing_is_for_others_to_look_at_and_drops_nothing(twin: ModuleType) -> None:
    told = Called(twin, 100)
    told.outgoing.paused = True
    told.outgoing.push(b"x")
    assert told.outgoing.paused
    assert told.outgoing.take() == [b"x"]
    told.outgoing.paused = False
    assert not told.outgoing.paused


@pytest.mark.parametrize("twin", OUTGOING)
def test_an_error_of_what_is_called_comes_out_and_the_frame_stays(twin: ModuleType) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    outgoing: Outgoing = twin.Outgoing(100, fails, fails)
    with pytest.raises(ZeroDivisionError):
        outgoing.push(b"x")
    assert outgoing.take() == [b"x"]


@NEEDS_COMPILED
@pytest.mark.parametrize("seed", range(3))
def test_both_twins_do_the_same_with_any_calls(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        most = rng.choice([0, 1, 10, 50])
        both = [Called(readable_outgoing, most), Called(NATIVE, most)]
        for _ in range(rng.randrange(40)):
            call = rng.choices(["push", "take", "pause", "close"], [20, 5, 3, 0.3])[0]
            frame, pauses = bytes(rng.choice([0, 1, 4, 12, 60])), rng.random() < 0.5
            results: list[object] = []
            for told in both:
                if call == "push":
                    told.outgoing.push(frame)
                elif call == "take":
                    results.append(told.outgoing.take())
                elif call == "pause":
                    told.outgoing.paused = pauses
                else:
                    told.outgoing.close()
                results.append((told.outgoing.size, told.outgoing.paused, tuple(told.calls)))
            assert results[: len(results) // 2] == results[len(results) // 2 :]


# --- batches


class SizeLimit:
    """Stands for `EntrySizeLimit`."""

    def __init__(self, surely_taken: int = sys.maxsize) -> None:
        self.surely_taken = surely_taken


class Turn:
    """A turn of the loop that does not end."""

    def __init__(self) -> None:
        loop: Any = self
        self.turns = DecompressionTurns(loop)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Stands for that of a loop."""


class Sending:
    """A compiled writer with all that it writes to."""

    def __init__(
        self,
        epoch: int | None = None,
        next_sequence: int = 0,
        *,
        most: int = 1 << 30,
        max_size: int = MAX_SIZE,
        most_inflated: int = 1 << 22,
        limit: SizeLimit | None = None,
    ) -> None:
        self.limit = limit or SizeLimit()
        self.turns = Turn().turns
        self.codecs = DirectCodecs(self.turns)
        self.outgoing: Outgoing = NATIVE.Outgoing(1 << 30, lambda: None, lambda: None)
        budget = direct_budget(most)
        assert budget is not None
        self.budget: DirectBudget = budget
        writer = direct_writer(
            NUMBER, NAME, self.outgoing, budget, self.limit, self.codecs, most_inflated, max_size, epoch, next_sequence
        )
        assert writer is not None
        self.writer: DirectWriter = writer
        self.told = Told()

    def submit(
        self, batch: bytearray, place: int = 0, *, now: float = 1.0, now_ms: int = NOW, compacted: bool = False
    ) -> bool:
        return self.writer.submit(batch, self.told, place, now, now_ms, compacted, *LIMITS) >= 0

    def receipts(
        self, sequence_ids: Sequence[int], *, ledger: int = LEDGER, first: int = 0, end: int = 0, now: float = 2.0
    ) -> int:
        """Give receipts of entries that lie behind one another from `first` on, where the log ends before them."""
        given = [(NUMBER, known, 0, ledger, first + index) for index, known in enumerate(sequence_ids)]
        taken, _, _ = self.writer.receipts(given, LEDGER, first - 1, end, LOG_START, now)
        return taken

    def state(self) -> tuple[object, ...]:
        """All that a batch which is not taken must leave as it is."""
        writer = self.writer
        return (
            writer.next_sequence,
            writer.in_flight,
            writer.taken,
            writer.used,
            writer.sent_bytes,
            writer.answered_bytes,
            writer.highest,
            writer.stored_up_to,
            writer.awaited,
            writer.oldest,
            self.budget.used,
            self.outgoing.size,
            tuple(self.told.ends),
        )


def small(
    count: int = 1,
    *,
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    epoch: int = -1,
    sequence: int = -1,
    codec: int = Codec.NONE,
) -> bytearray:
    records = [Record(index, NOW, key, value) for index in range(count)]
    return build(
        records,
        codec=codec,
        producer_id=-1 if epoch < 0 else 5,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def any_records(rng: random.Random) -> list[Record]:
    """Of all shapes that clients send."""

    def some(*sizes: int) -> bytes | None:
        size = rng.choice((None, 0, *sizes))
        return None if size is None else rng.randbytes(size)

    time = rng.choice([-1, 0, NOW, NOW, NOW + rng.randrange(10**6)])
    return [
        Record(
            index,
            time + rng.choice([0, 0, index, rng.randrange(1000)]),
            some(1, 3, 40),
            some(1, 9, 100, rng.choice([5, 20_000])),
            [(rng.randbytes(rng.choice([0, 1, 5])), some(1, 7, 200)) for _ in range(rng.choice([0, 0, 0, 1, 3]))],
        )
        for index in range(rng.choice([1, 1, 1, 2, 5, 30, 200]))
    ]


def ordinary(batch: bytearray, sequence_id: int, now_ms: int) -> transcode.SendFrame:
    """The entry that the ordinary path makes of a batch."""
    made = transcode.to_frames(
        batch,
        read_header(batch),
        producer_id=NUMBER,
        producer_name=NAME.decode(),
        sequence_base=sequence_id,
        publish_time=now_ms,
        max_size=MAX_SIZE,
    )
    assert len(made) == 1
    return made[0]


def without_start(batch: bytes | bytearray) -> bytes:
    """A batch but for what is written into it when it is stored: the base offset and the leader epoch."""
    return bytes(batch[8:12] + batch[16:])


@NEEDS_COMPILED
@pytest.mark.parametrize("epoch", [None, 0, 1, 3, 32767])
def test_a_frame_is_that_of_the_ordinary_path_byte_for_byte(epoch: int | None) -> None:
    rng = random.Random(f"frames {epoch}")
    begin = rng.choice([0, MAX_SEQUENCE - 300])
    sending = Sending(epoch, begin)
    unwrapped, size, wrapped = begin, 0, False
    for index in range(120):
        records = any_records(rng)
        sequence = unwrapped & MAX_SEQUENCE
        wrapped |= sequence != unwrapped
        batch = build(
            records,
            codec=rng.choice([Codec.NONE, Codec.NONE, *Codec]),
            producer_id=-1 if epoch is None else 5,
            producer_epoch=-1 if epoch is None else epoch,
            base_sequence=-1 if epoch is None else sequence,
        )
        sequence_id = unwrapped if epoch is None else epoch << 47 | unwrapped
        now_ms = NOW + rng.randrange(10**9)
        before = bytes(batch)
        assert sending.submit(batch, index, now=float(index), now_ms=now_ms)
        made = ordinary(batch, sequence_id, now_ms)
        assert sending.outgoing.take() == [made.frame]
        assert batch == before
        sending.turns.add(-1 << 20)  # the loop goes on
        size += made.entry_size
        unwrapped += len(records)
        assert sending.writer.sent_bytes == size
        assert sending.writer.highest == sequence_id + len(records) - 1
        assert sending.writer.next_sequence == unwrapped
        assert sending.writer.used == float(index)
        assert sending.writer.oldest == 0.0
    assert sending.writer.in_flight == sending.writer.taken == 120
    assert wrapped == (begin > 0)


@NEEDS_COMPILED
def test_sequences_go_on_at_0_behind_the_highest_while_sequence_ids_ascend() -> None:
    """Pulsar would drop the batch as a duplicate else."""
    sending = Sending(2, MAX_SEQUENCE - 1)
    assert sending.submit(small(4, epoch=2, sequence=MAX_SEQUENCE - 1))
    assert not sending.submit(small(1, epoch=2, sequence=MAX_SEQUENCE))
    assert sending.submit(small(1, epoch=2, sequence=2))
    first, second = sending.outgoing.take()
    assert transcode.parse_entry(transcode.entry_in(first)[0]).sequence_id == 2 << 47 | MAX_SEQUENCE - 1
    assert transcode.parse_entry(transcode.entry_in(second)[0]).sequence_id == 2 << 47 | MAX_SEQUENCE + 3
    assert sending.receipts([2 << 47 | MAX_SEQUENCE - 1, 2 << 47 | MAX_SEQUENCE + 3]) == 2


def damaged_records() -> bytearray:
    batch = small()
    batch[HEADER_SIZE] = 0x7F  # the length of the first record
    return batch


ODD_BATCHES: dict[str, Callable[[], bytearray]] = {
    "compressed in a codec that there is not": lambda: with_codec(5),
    "compressed in another codec than it says": lambda: with_codec(Codec.ZSTD),
    "inflates to more than it may": lambda: small(9, value=bytes(1 << 19), codec=Codec.LZ4),
    "compressed with a record too many": lambda: with_count(3, 2, Codec.LZ4),
    "compressed without keys": lambda: small(2, key=None, codec=Codec.SNAPPY),
    "records that cannot be walked": damaged_records,
    "a record too many": lambda: with_count(3, 2),
    "a record too few": lambda: with_count(2, 3),
    "shorter than a header": lambda: bytearray(HEADER_SIZE - 1),
    "larger than an entry": lambda: small(2, value=bytes(MAX_SIZE // 2)),
    "larger than Pulsar surely takes": lambda: small(value=bytes(4096)),
    "larger than what is left": lambda: small(value=bytes(1 << 20)),
    "no key": lambda: small(2, key=None),
}
MOMENTS: dict[str, Callable[[Sending], None]] = {
    "paused": lambda sending: setattr(sending.outgoing, "paused", True),
    "connection closed": lambda sending: sending.outgoing.close(),
    "engine closed": lambda sending: setattr(sending.budget, "closed", True),
}


def with_codec(said: int) -> bytearray:
    """A batch that is compressed in another codec than its header says."""
    batch = small(9, value=bytes(99), codec=Codec.LZ4)
    batch[22] = said
    return batch


def with_count(said: int, there: int, codec: int = Codec.NONE) -> bytearray:
    """A batch whose header names another number of records than there are."""
    batch = small(there, codec=codec)
    struct.pack_into(">i", batch, 57, said)
    struct.pack_into(">i", batch, 23, said - 1)
    return batch


@NEEDS_COMPILED
@pytest.mark.parametrize("why", [*ODD_BATCHES, *MOMENTS])
def test_what_is_not_taken_changes_nothing(why: str) -> None:
    sending = Sending(most=1 << 20 if why == "larger than what is left" else 1 << 30)
    assert sending.submit(small(3))
    assert sending.submit(small(2))
    assert sending.receipts([0]) == 1
    if why in MOMENTS:
        MOMENTS[why](sending)
    elif why == "larger than Pulsar surely takes":
        sending.limit.surely_taken = 4096
    batch = ODD_BATCHES.get(why, small)()
    before, bytes_before = sending.state(), bytes(batch)
    assert not sending.submit(batch, now=9.0, compacted=why in {"no key", "compressed without keys"})
    assert sending.state() == before
    assert batch == bytes_before


@NEEDS_COMPILED
def test_no_more_is_inflated_than_a_turn_of_the_loop_has_room_for() -> None:
    """The ordinary path lets others have their turn then."""
    sending = Sending()
    compressed = small(9, value=bytes(9999), codec=Codec.GZIP)
    assert sending.submit(compressed)
    sending.turns.add(MOST_AT_ONCE)
    before = sending.state()
    assert not sending.submit(bytearray(compressed))
    assert sending.state() == before
    assert sending.submit(small())
    sending.turns.add(-MOST_AT_ONCE)
    assert sending.submit(bytearray(compressed))


@NEEDS_COMPILED
def test_a_batch_may_inflate_to_so_much_and_no_more() -> None:
    compressed = small(9, value=bytes(1000), codec=Codec.ZSTD)
    size = len(small(9, value=bytes(1000))) - HEADER_SIZE
    assert Sending(most_inflated=size).submit(compressed)
    assert not Sending(most_inflated=size - 1).submit(compressed)


@NEEDS_COMPILED
@pytest.mark.parametrize(
    ("epoch", "sequence"), [(3, 11), (3, 13), (3, 0), (2, 12), (4, 0), (4, 12), (0, 12), (3, MAX_SEQUENCE)]
)
def test_a_batch_that_does_not_come_next_is_not_taken(epoch: int, sequence: int) -> None:
    sending = Sending(3, 10)
    assert sending.submit(small(2, epoch=3, sequence=10))
    before = sending.state()
    assert not sending.submit(small(epoch=epoch, sequence=sequence))
    assert sending.state() == before
    assert sending.submit(small(epoch=3, sequence=12))


@NEEDS_COMPILED
def test_what_was_not_taken_for_the_moment_is_taken_later() -> None:
    sending = Sending(most=len(small()))
    sending.outgoing.paused = True
    assert not sending.submit(small())
    sending.outgoing.paused = False
    assert sending.submit(small())
    assert not sending.submit(small())
    assert sending.receipts([0]) == 1
    assert sending.budget.used == 0
    assert sending.submit(small())


@NEEDS_COMPILED
def test_keys_are_asked_for_on_compacted_topics_alone() -> None:
    sending = Sending()
    assert sending.submit(small(key=None))
    assert not sending.submit(small(key=None), compacted=True)
    assert sending.submit(small(key=b""), compacted=True)


@NEEDS_COMPILED
def test_the_largest_entry_is_the_one_that_pulsar_surely_takes() -> None:
    batch = small(value=bytes(3000))
    size = ordinary(batch, 0, NOW).entry_size
    assert Sending(limit=SizeLimit(size)).submit(batch)
    assert not Sending(limit=SizeLimit(size - 1)).submit(batch)
    assert not Sending(limit=SizeLimit(0)).submit(batch)
    assert Sending(max_size=size + transcode.ENTRY_ROOM).submit(batch)
    assert not Sending(max_size=size + transcode.ENTRY_ROOM - 1).submit(batch)
    assert not Sending(max_size=0).submit(batch)


@NEEDS_COMPILED
def test_the_budget_is_one_for_all_writers() -> None:
    first, second = Sending(most=200), Sending()
    size = len(small())
    both = direct_writer(NUMBER, NAME, second.outgoing, first.budget, first.limit, first.codecs, 0, MAX_SIZE, None, 0)
    assert both is not None
    assert first.submit(small())
    assert both.submit(small(), second.told, 0, 1.0, NOW, False, *LIMITS) == 0
    assert first.budget.used == 2 * size
    assert not first.submit(small())
    assert both.submit(small(), second.told, 0, 1.0, NOW, False, *LIMITS) == -1
    both.hand_over()
    assert first.budget.used == size
    assert first.submit(small())


def test_there_is_no_writer_for_the_readable_outgoing() -> None:
    readable = readable_outgoing.Outgoing(1, lambda: None, lambda: None)
    budget = direct_budget(1)
    assert (budget is None) == (NATIVE is None)
    bound: Any = budget
    assert direct_writer(1, b"", readable, bound, SizeLimit(), DirectCodecs(Turn().turns), 1, 1, None, 0) is None


# --- receipts


def three(sending: Sending) -> list[bytearray]:
    """Send batches of 2, 1 and 3 records, at the times 1, 2 and 3."""
    batches = [small(2), small(1), small(3)]
    for place, batch in enumerate(batches):
        assert sending.submit(batch, place, now=1.0 + place)
    return batches


@NEEDS_COMPILED
def test_receipts_that_follow_one_another_give_each_batch_its_offset() -> None:
    sending = Sending(next_sequence=10)
    batches = three(sending)
    texts = [without_start(batch) for batch in batches]
    sizes = [ordinary(batch, 10, NOW).entry_size for batch in batches]
    given = [(NUMBER, 10, 11, LEDGER, 5), (NUMBER, 12, 0, LEDGER, 6)]
    taken, placed, waited = sending.writer.receipts(given, LEDGER, 4, 1000, LOG_START, 5.0)
    assert taken == 2
    assert [(entry, last, timestamp) for entry, last, _, timestamp in placed] == [(5, 1001, NOW), (6, 1002, NOW)]
    assert placed[0][2] is batches[0]
    assert placed[1][2] is batches[1]
    assert waited == 4.0
    assert [read_header(batch).base_offset for batch in batches] == [1000, 1002, 0]
    assert [read_header(batch).leader_epoch for batch in batches[:2]] == [0, 0]
    assert [without_start(batch) for batch in batches] == texts
    writer = sending.writer
    assert (writer.in_flight, writer.awaited, writer.oldest) == (1, 13, 3.0)
    assert (writer.stored_up_to, writer.highest) == (12, 15)
    assert (writer.answered_bytes, writer.sent_bytes) == (sum(sizes[:2]), sum(sizes))
    assert sending.budget.used == len(batches[2])
    assert sending.told.ends == []
    assert writer.answer() == [(sending.told, 0, 1000, LOG_START), (sending.told, 1, 1002, LOG_START)]
    assert writer.answer() == []
    assert sending.receipts([13], first=7, end=1003) == 1
    assert (writer.in_flight, writer.awaited, writer.oldest) == (0, -1, None)
    assert writer.answer() == [(sending.told, 2, 1003, LOG_START)]
    assert sending.budget.used == 0
    assert (writer.answered_bytes, writer.stored_up_to) == (sum(sizes), 15)


@NEEDS_COMPILED
def test_a_leader_epoch_of_the_client_is_overwritten() -> None:
    sending = Sending()
    batch = small()
    struct.pack_into(">i", batch, 12, -1)
    assert sending.submit(batch)
    assert sending.receipts([0], end=2**40 + 3) == 1
    assert (read_header(batch).leader_epoch, read_header(batch).base_offset) == (0, 2**40 + 3)


@NEEDS_COMPILED
@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((NUMBER, 2, 0, LEDGER, 2), "an entry lies between"),
        ((NUMBER, 2, 0, LEDGER, 0), "it lies where another one does"),
        ((NUMBER, 2, 0, LEDGER + 1, 0), "it lies in another ledger"),
        ((NUMBER, 2, 0, LEDGER + 1, 1), "it lies in another ledger at the same number"),
        ((NUMBER, 2, 0, -1, -1), "it was dropped as a duplicate"),
        ((NUMBER, 3, 0, LEDGER, 1), "it is of the batch behind"),
        ((NUMBER, 99, 0, LEDGER, 1), "it is of no batch"),
        ((NUMBER, 0, 0, -1, -1), "one before was dropped as a duplicate"),
    ],
)
def test_receipts_are_taken_up_to_the_first_that_is_not_of_the_next_entry(
    second: tuple[int, int, int, int, int], why: str
) -> None:
    sending = Sending()
    batches = three(sending)
    given = [(NUMBER, 0, 0, LEDGER, 0), second, (NUMBER, 3, 0, LEDGER, 2)]
    taken, placed, _ = sending.writer.receipts(given, LEDGER, -1, 50, LOG_START, 5.0)
    assert (taken, len(placed)) == (1, 1), why
    assert sending.writer.answer() == [(sending.told, 0, 50, LOG_START)]
    assert (sending.writer.awaited, sending.writer.in_flight) == (2, 2)
    assert read_header(batches[1]).base_offset == 0
    under_way = sending.writer.hand_over()[1]
    assert [sent[2] for sent in under_way] == [2, 3]


@NEEDS_COMPILED
def test_a_receipt_of_an_entry_that_the_tail_brought_before_is_passed_over() -> None:
    sending = Sending()
    three(sending)
    assert sending.receipts([0]) == 1  # the tail brought it
    given = [(NUMBER, 0, 1, LEDGER, 0), (NUMBER, 2, 2, LEDGER, 1), (NUMBER, 0, 1, LEDGER, 0)]
    taken, placed, waited = sending.writer.receipts(given, LEDGER, 0, 2, LOG_START, 9.0)
    assert (taken, [entry for entry, *_ in placed], waited) == (3, [1], 7.0)
    assert [base for _, _, base, _ in sending.writer.answer()] == [0, 2]
    assert sending.writer.awaited == 3


@NEEDS_COMPILED
def test_receipts_where_nothing_is_awaited_are_not_taken() -> None:
    sending = Sending()
    assert sending.receipts([0]) == 0
    assert sending.writer.receipts([], LEDGER, -1, 0, LOG_START, 1.0) == (0, [], 0.0)
    assert sending.writer.answer() == []


@NEEDS_COMPILED
def test_the_receipt_of_a_batch_that_somebody_cut_off_is_not_taken_and_nothing_is_lost() -> None:
    sending = Sending()
    batches = three(sending)
    del batches[1][30:]
    assert sending.receipts([0, 2, 3]) == 1
    assert sending.writer.answer() == [(sending.told, 0, 0, LOG_START)]
    under_way = sending.writer.hand_over()[1]
    assert [sent[2] for sent in under_way] == [2, 3]
    assert sending.budget.used == 0


# --- handing over


@NEEDS_COMPILED
@pytest.mark.parametrize("stored", range(9))
def test_what_is_handed_over_is_all_that_has_no_receipt_and_the_last_five_that_have(stored: int) -> None:
    sending = Sending(6, 100)
    sent: list[tuple[bytearray, int, float, bytes]] = []
    sequence = 100
    entry_sizes = []
    for place in range(8):
        count = 1 + place % 3
        batch = small(count, epoch=6, sequence=sequence)
        assert sending.submit(batch, place, now=float(place))
        (frame,) = sending.outgoing.take()
        entry_sizes.append(transcode.entry_size(frame))
        sent.append((batch, 6 << 47 | sequence, float(place), frame))
        sequence += count
    assert sending.receipts([known for _, known, _, _ in sent[:stored]], end=1000) == stored
    expected_bases = [1000 + (known & 0xFFFF) - 100 for _, known, _, _ in sent]
    headers = [read_header(batch) for batch, _, _, _ in sent]
    settled, under_way = sending.writer.hand_over()
    assert [(known, base) for _, known, base in settled] == [
        (sent[index][1], expected_bases[index]) for index in range(max(0, stored - 5), stored)
    ]
    for index, (fields, _, _) in zip(range(max(0, stored - 5), stored), settled, strict=True):
        assert fields[1:2] + fields[4:] == headers[index][1:2] + headers[index][4:]
    assert [(batch, known, frame, size, at, waiter, place) for _, batch, known, frame, size, at, _, waiter, place
            in under_way] == [
        (batch, known, frame, entry_sizes[index], at, sending.told, index)
        for index, (batch, known, at, frame) in enumerate(sent) if index >= stored
    ]  # fmt: skip
    assert [tuple(fields) for fields, *_ in under_way] == [tuple(header) for header in headers[stored:]]
    assert all(batch is sent[stored + index][0] for index, (_, batch, *_) in enumerate(under_way))
    assert [before for _, _, _, _, _, _, before, _, _ in under_way] == [0] * (8 - stored)
    assert sending.budget.used == 0
    assert not sending.writer.open
    assert (sending.writer.next_sequence, sending.writer.highest) == (sequence, (6 << 47 | sequence) - 1)
    assert (sending.writer.in_flight, sending.writer.awaited, sending.writer.oldest) == (0, -1, None)
    state = sending.state()
    assert not sending.submit(small(epoch=6, sequence=sequence))
    assert sending.writer.hand_over() == ([], [])
    assert sending.state() == state
    assert len(sending.writer.answer()) == stored


@NEEDS_COMPILED
def test_without_a_producer_id_no_stored_batch_is_kept() -> None:
    sending = Sending()
    three(sending)
    assert sending.receipts([0, 2]) == 2
    settled, under_way = sending.writer.hand_over()
    assert (settled, [sent[2] for sent in under_way]) == ([], [3])


@NEEDS_COMPILED
def test_what_was_answered_before_a_batch_was_sent_is_handed_over_with_it() -> None:
    sending = Sending()
    assert sending.submit(small(1))
    assert sending.submit(small(1))
    assert sending.receipts([0]) == 1
    answered = sending.writer.answered_bytes
    assert answered > 0
    assert sending.submit(small(1))
    assert [sent[6] for sent in sending.writer.hand_over()[1]] == [0, answered]


@NEEDS_COMPILED
def test_a_push_that_hands_the_writer_over_loses_no_batch() -> None:
    """Writing to the connection may end the producer."""
    handed: list[int] = []
    told = Told()
    budget = direct_budget(1 << 20)
    assert budget is not None

    def full() -> None:
        writers = [each for each in (writer,) if each is not None]
        handed.extend(sent[2] for each in writers for sent in each.hand_over()[1])

    outgoing: Outgoing = NATIVE.Outgoing(0, lambda: None, full)
    writer = direct_writer(
        NUMBER, NAME, outgoing, budget, SizeLimit(), DirectCodecs(Turn().turns), 0, MAX_SIZE, None, 0
    )
    assert writer is not None
    assert writer.submit(small(), told, 0, 1.0, NOW, False, *LIMITS) == 0
    assert handed == [0]
    assert writer.submit(small(), told, 0, 1.0, NOW, False, *LIMITS) == -1


# --- any sequence of calls


@dataclass
class WriterModel:
    """What a writer has to say of itself."""

    epoch: int | None
    next: int
    in_flight: deque[tuple[int, int, bytearray, int, float, int, int]] = field(default_factory=deque)
    """Sequence id, count, batch, size of the entry, sent, bytes answered before, place."""
    settled: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))
    taken: int = 0
    sent_bytes: int = 0
    answered_bytes: int = 0
    highest: int = -1
    stored_up_to: int = -1

    def id_of(self, unwrapped: int) -> int:
        return unwrapped if self.epoch is None else self.epoch << 47 | unwrapped


class PlayedLog:
    """A log that one producer writes to, which goes on with another writer after each hand-over."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.end = rng.choice([0, 7, 2**33])
        self.last_entry = rng.choice([-1, 5])
        self.now = 0.0
        self.place = 0
        self.begin(rng.choice([None, 0, 4]), rng.choice([0, 50, MAX_SEQUENCE - 40]))
        self.told: dict[int, int] = {}
        self.expected: dict[int, int] = {}
        """The base offset of each place."""

    def begin(self, epoch: int | None, next_sequence: int) -> None:
        self.sending = Sending(epoch, next_sequence, most=4000)
        self.model = WriterModel(epoch, next_sequence)

    def submit(self) -> None:
        rng, model, sending = self.rng, self.model, self.sending
        count = rng.choice([1, 1, 2, 7])
        sequence = model.next & MAX_SEQUENCE
        fits = True
        epoch = model.epoch
        if epoch is not None and rng.random() < 0.2:
            if rng.random() < 0.5:
                sequence = (sequence + rng.choice([-1, 1, 20])) & MAX_SEQUENCE
            else:
                epoch += 1
            fits = False
        batch = small(
            count,
            value=bytes(rng.choice([0, 5, 300])),
            epoch=-1 if epoch is None else epoch,
            sequence=-1 if epoch is None else sequence,
        )
        sending.outgoing.paused = rng.random() < 0.05
        fits = fits and not sending.outgoing.paused and sending.budget.used + len(batch) <= 4000
        self.now += 0.25
        self.place += 1
        assert sending.submit(batch, self.place, now=self.now) == fits
        if not fits:
            assert sending.outgoing.take() == []
            return
        made = ordinary(batch, model.id_of(model.next), NOW)
        assert sending.outgoing.take() == [made.frame]
        first = model.id_of(model.next)
        model.in_flight.append((first, count, batch, made.entry_size, self.now, model.answered_bytes, self.place))
        model.next += count
        model.taken += 1
        model.sent_bytes += made.entry_size
        model.highest = first + count - 1

    def receipts(self) -> None:
        rng, model = self.rng, self.model
        given: list[tuple[int, int, int, int, int]] = []
        expected, fits = 0, True
        entry, end = self.last_entry, self.end
        placed: list[tuple[int, int]] = []
        longest = 0.0
        for sent in list(model.in_flight)[: rng.randrange(6)]:
            if model.stored_up_to >= 0 and rng.random() < 0.1:
                given.append((NUMBER, max(0, model.stored_up_to - rng.randrange(3)), 0, LEDGER, 3))
                old = model.epoch is None or given[-1][1] >= 0
                expected += fits and old and given[-1][1] != model.in_flight[0][0]
            fault = rng.random()
            if fault < 0.03:
                given.append((NUMBER, sent[0], 0, LEDGER, entry + 2))
            elif fault < 0.05:
                given.append((NUMBER, sent[0], 0, LEDGER + 1, 0))
            elif fault < 0.07:
                given.append((NUMBER, sent[0], 0, -1, -1))
            elif fault < 0.09:
                given.append((NUMBER, model.highest + 1, 0, LEDGER, entry + 1))
            else:
                given.append((NUMBER, sent[0], 0, LEDGER, entry + 1))
                if not fits:
                    continue
                model.in_flight.popleft()
                entry += 1
                self.expected[sent[6]] = end
                model.settled.append((sent[0], end))
                end += sent[1]
                placed.append((entry, end - 1))
                longest = max(longest, self.now - sent[4])
                model.answered_bytes += sent[3]
                model.stored_up_to = sent[0] + sent[1] - 1
                expected += 1
                continue
            fits = False
        result = self.sending.writer.receipts(given, LEDGER, self.last_entry, self.end, LOG_START, self.now)
        assert (result[0], [(each[0], each[1]) for each in result[1]], result[2]) == (expected, placed, longest)
        self.last_entry, self.end = entry, end

    def answer(self) -> None:
        for waiter, place, base, log_start_offset in self.sending.writer.answer():
            assert waiter is self.sending.told
            assert log_start_offset == LOG_START
            assert place not in self.told
            self.told[place] = base

    def hand_over(self) -> None:
        writer, model = self.sending.writer, self.model
        settled, under_way = writer.hand_over()
        self.answer()
        assert [(known, base) for _, known, base in settled] == ([] if model.epoch is None else list(model.settled))
        assert [(sent[2], sent[1], sent[4], sent[5], sent[6], sent[8]) for sent in under_way] == [
            (first, batch, size, at, before, place) for first, _, batch, size, at, before, place in model.in_flight
        ]
        assert self.sending.budget.used == 0
        for _, count, batch, _, _, _, place in model.in_flight:  # the ordinary path stores them
            assert read_header(batch).base_offset == 0
            self.told[place] = self.expected[place] = self.end
            self.end += count
            self.last_entry += 1
        epoch, behind = model.epoch, writer.next_sequence
        if epoch is not None and self.rng.random() < 0.3:
            epoch, behind = epoch + 1, 0
        self.begin(epoch, behind)

    def check(self) -> None:
        writer, model = self.sending.writer, self.model
        flight = model.in_flight
        assert (writer.next_sequence, writer.in_flight, writer.taken) == (model.next, len(flight), model.taken)
        assert (writer.sent_bytes, writer.answered_bytes) == (model.sent_bytes, model.answered_bytes)
        assert (writer.highest, writer.stored_up_to) == (model.highest, model.stored_up_to)
        assert writer.awaited == (flight[0][0] if flight else -1)
        assert writer.oldest == (flight[0][4] if flight else None)
        assert self.sending.budget.used == sum(len(sent[2]) for sent in flight)
        assert writer.open


@NEEDS_COMPILED
@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_calls_does_what_the_model_says(seed: int) -> None:
    rng = random.Random(seed)
    played = PlayedLog(rng)
    for _ in range(1500):
        call = rng.choices(["submit", "receipts", "answer", "hand_over"], [20, 10, 10, 1])[0]
        getattr(played, call)()
        played.check()
    played.hand_over()
    assert played.told == played.expected
    assert len(played.told) > 300


# --- nothing is left behind


class PointsBack:
    """A waiter, or whatever else compiled code holds, that holds that in turn."""

    surely_taken = sys.maxsize

    def __init__(self) -> None:
        self.holds: list[object] = []

    def answered(self, answer: object) -> None:
        self.holds.append(answer)

    def call(self) -> None:
        """Stands for what an `Outgoing` calls."""


def circle(where: str) -> list[weakref.ref[PointsBack]]:
    """Objects of compiled code that hold, at `where`, an object that holds them."""
    back = PointsBack()
    call = back.call if where == "outgoing" else lambda: None
    outgoing = NATIVE.Outgoing(1 << 20, call, call)
    limit = back if where == "size limit" else SizeLimit()
    codecs: Any = back if where == "codecs" else None
    budget = direct_budget(1 << 20)
    assert budget is not None
    writer = direct_writer(NUMBER, NAME, outgoing, budget, limit, codecs, 0, MAX_SIZE, None, 0)
    assert writer is not None
    other = back if where == "handler" else PointsBack()
    requests = NATIVE.DirectRequests(other, back if where == "latencies" else None)
    requests.add("t", 0, -1, writer, 1 << 20, 1 << 60, 1 << 60, False, True)
    waiter: Any = back if where in {"in flight", "ended"} else Told()
    assert writer.submit(small(), waiter, 0, 1.0, NOW, False, *LIMITS) == 0
    if where == "ended":
        assert writer.receipts([(NUMBER, 0, 0, LEDGER, 0)], LEDGER, -1, 0, 0, 1.0)[0] == 1
    frame = produce_frame(small())
    answer = requests.take(memoryview(frame), 0.0, 0.0, NOW)
    assert answer is not None
    answer.taker = back if where == "taker" else None
    back.holds += [outgoing, writer, requests, answer, budget]
    return [weakref.ref(back)]


def produce_frame(records: bytes | bytearray) -> bytes:
    """A Produce of version 3 without its size."""
    head = struct.pack(">hhih", 0, 3, 1, -1)
    body = struct.pack(">hhiih", -1, -1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, len(records)) + records
    return head + body


@NEEDS_COMPILED
@pytest.mark.parametrize(
    "where", ["outgoing", "size limit", "codecs", "handler", "latencies", "in flight", "ended", "taker", "nowhere"]
)
def test_a_circle_through_compiled_objects_is_collected(where: str) -> None:
    gc.collect()
    refs = circle(where)
    gc.collect()
    assert [ref() for ref in refs] == [None]
