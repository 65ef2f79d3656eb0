"""When it is looked whether Pulsar lost the end of a transaction on a partition, in simulated time."""

from __future__ import annotations

from kop.pulsar_client import TxnId
from kop.storage.pulsar.transactions.lost_ends import (
    AGAIN_SECONDS,
    FIRST_SECONDS,
    FRESH_SECONDS,
    IDLE_SECONDS,
    KEPT_SECONDS,
    MOST_AT_ONCE,
    RETRY_SECONDS,
    SETTLED_SECONDS,
    End,
    LostEnds,
)

TXN, LATER = TxnId(0, 1), TxnId(0, 2)
A, B = "persistent://t/n/a-partition-0", "persistent://t/n/b-partition-0"
RECOVERED = 1_000


def known(name: str = A, now: float = 0.0) -> LostEnds:
    """The buffer of the partition was seen, and nothing is in doubt."""
    lost = LostEnds()
    lost.ended(TXN, [name], now - SETTLED_SECONDS - 1, commit=True)
    assert lost.looked(name, RECOVERED, now) == [End(now - SETTLED_SECONDS - 1, TXN, True)]
    lost.settled(name, now)
    assert not lost
    return lost


def test_a_partition_is_looked_at_a_moment_after_the_end_and_again_after_a_while() -> None:
    lost = LostEnds()
    assert not lost
    lost.ended(TXN, [A, B], 10.0, commit=True)
    assert lost.due(10.0 + FIRST_SECONDS - 0.01) == []
    assert lost.due(10.0 + FIRST_SECONDS) == [A, B]
    assert lost.due(10.0 + FIRST_SECONDS + AGAIN_SECONDS - 0.01) == []
    assert lost.due(10.0 + FIRST_SECONDS + AGAIN_SECONDS) == [A, B]


def test_an_end_is_in_doubt_where_nothing_was_known_of_the_partition() -> None:
    lost = LostEnds()
    lost.ended(TXN, [A], 10.0, commit=False)
    assert lost.looked(A, RECOVERED, 11.0) == [End(10.0, TXN, False)]


def test_an_end_is_beyond_doubt_where_the_partition_was_not_loaded_again_for_a_while() -> None:
    lost = known()
    lost.ended(TXN, [A], 10.0, commit=True)
    assert lost.looked(A, RECOVERED, 11.0) == []
    assert lost, "a bundle may refuse lookups already whose topics are not closed yet"
    assert lost.looked(A, RECOVERED, 10.0 + SETTLED_SECONDS) == []
    assert not lost


def test_an_end_is_in_doubt_where_the_partition_was_loaded_again() -> None:
    lost = known()
    lost.ended(TXN, [A], 10.0, commit=True)
    assert lost.looked(A, RECOVERED, 11.0) == []
    lost.ended(LATER, [A], 15.0, commit=False)
    assert lost.looked(A, RECOVERED + 1, 16.0) == [End(10.0, TXN, True), End(15.0, LATER, False)]
    lost.settled(A, 16.0)
    assert lost.looked(A, RECOVERED + 2, 17.0) == [End(10.0, TXN, True), End(15.0, LATER, False)], "and once more"


def test_what_ended_while_pulsar_was_asked_is_looked_at_the_next_time() -> None:
    lost = LostEnds()
    lost.ended(TXN, [A], 10.0, commit=True)
    lost.ended(LATER, [A], 11.5, commit=True)
    assert lost.looked(A, RECOVERED, 11.0) == [End(10.0, TXN, True)]
    lost.settled(A, 11.0)
    assert lost.looked(A, RECOVERED + 1, 12.0) == [End(10.0, TXN, True), End(11.5, LATER, True)]


def test_a_partition_that_is_being_loaded_is_looked_at_soon_again_and_all_its_ends_are_in_doubt_then() -> None:
    lost = known()
    lost.ended(TXN, [A], 10.0, commit=True)
    assert lost.due(11.0) == [A]
    assert lost.failed(A, 11.0)
    assert lost.due(11.0 + RETRY_SECONDS - 0.01) == []
    assert lost.due(11.0 + RETRY_SECONDS) == [A]
    assert lost.looked(A, RECOVERED, 12.0) == [End(10.0, TXN, True)], "nobody saw what was between"


def test_a_partition_that_nobody_loads_is_given_up() -> None:
    lost = LostEnds()
    lost.ended(TXN, [A], 10.0, commit=True)
    now = 10.0 + FRESH_SECONDS + 1
    assert lost.failed(A, now)
    assert lost.due(now + RETRY_SECONDS) == []
    assert lost.due(now + AGAIN_SECONDS) == [A]
    assert not lost.failed(A, 10.0 + KEPT_SECONDS)
    assert not lost
    assert lost.due(10_000.0) == []


def test_a_partition_without_ends_is_forgotten_after_a_while() -> None:
    for idle, doubt in (IDLE_SECONDS - 1, False), (IDLE_SECONDS + 1, True):
        lost = known()
        lost.ended(TXN, [A], 0.0, commit=True)
        assert lost.due(50.0 - AGAIN_SECONDS) == [A]
        lost.settled(A, 50.0)
        assert lost.due(50.0 + idle) == []
        lost.ended(LATER, [A], 50.0 + idle, commit=True)
        assert bool(lost.looked(A, RECOVERED, 51.0 + idle)) == doubt, "nothing is known of what was forgotten"


def test_many_partitions_take_turns() -> None:
    lost = LostEnds()
    names = [f"persistent://t/n/a-partition-{number:03}" for number in range(3 * MOST_AT_ONCE)]
    lost.ended(TXN, names, 10.0, commit=True)
    seen = [lost.due(20.0) for _ in range(4)]
    assert [len(each) for each in seen] == [MOST_AT_ONCE] * 3 + [0]
    assert sorted(name for each in seen for name in each) == names


def test_a_partition_that_is_not_watched_is_left_alone() -> None:
    lost = LostEnds()
    assert lost.looked(A, RECOVERED, 1.0) == []
    lost.settled(A, 1.0)
    assert lost.failed(A, 1.0)
    assert not lost


def test_an_end_about_which_nothing_can_be_done_is_forgotten_alone() -> None:
    lost = LostEnds()
    lost.ended(TXN, [A, B], 10.0, commit=True)
    lost.ended(LATER, [A], 11.0, commit=True)
    lost.forget(A, End(10.0, TXN, True))
    assert lost.looked(A, RECOVERED, 12.0) == [End(11.0, LATER, True)]
    assert lost.looked(B, RECOVERED, 12.0) == [End(10.0, TXN, True)]
    lost.forget(A, End(11.0, LATER, True))
    lost.forget(B, End(10.0, TXN, True))
    lost.forget("persistent://t/n/unknown", End(10.0, TXN, True))
    assert not lost
