"""When it is asked whether fences are late, in simulated time."""

from __future__ import annotations

from kop.pulsar_client import TxnId
from kop.storage.pulsar.transactions.late_fences import (
    ASK_SECONDS,
    LOOKS_AFTER,
    SOON_SECONDS,
    UNKNOWN_SECONDS,
    Due,
    LateFences,
)

TXN, OTHER = TxnId(0, 1), TxnId(0, 2)
A, B = "persistent://t/n/a-partition-0", "persistent://t/n/b-partition-0"
SOON = SOON_SECONDS


def asked(*names: str, txn: TxnId = TXN, ended: bool = False, commit: bool = True) -> Due:
    return Due(txn, frozenset(names), ended, commit)


def test_a_fence_is_asked_about_once_where_its_transaction_is_open() -> None:
    late = LateFences()
    late.stored(TXN, [A], 10.0)
    assert late.due(10.0 + SOON - 0.01) == []
    assert late.due(10.0 + SOON) == [asked(A)]
    late.answered(asked(A), 10.0 + SOON)
    assert not late


def test_a_transaction_that_ends_here_is_not_asked_about() -> None:
    late = LateFences()
    late.stored(TXN, [A], 10.0)
    late.stored(OTHER, [A], 10.0)
    late.ended_here(TXN)
    assert late.due(1000.0) == [asked(A, txn=OTHER)]


def test_fences_that_come_while_it_is_asked_are_asked_about_too() -> None:
    late = LateFences()
    late.stored(TXN, [A], 10.0)
    (question,) = late.due(20.0)
    late.stored(TXN, [B], 20.0)
    late.answered(question, 20.5)
    assert late.due(20.5) == []
    assert late.due(20.0 + SOON) == [asked(A, B)]


def test_a_doubtful_fence_is_asked_about_at_once_and_again_until_pulsar_answers() -> None:
    late = LateFences()
    late.stored(TXN, [A], 10.0, doubtful=True)
    now = 10.0
    while now < 10.0 + ASK_SECONDS:
        assert late.due(now) == [asked(A)]
        assert late.failed(asked(A), now)
        assert late.due(now) == []
        now += SOON
    assert late.due(now) == [asked(A)]
    assert not late.failed(asked(A), now)
    assert not late


def test_a_transaction_of_another_broker_is_looked_at_several_times_after_its_end() -> None:
    late = LateFences()
    late.stored(TXN, [A], 10.0)
    late.ended_of_other(TXN, [B], 10.5, commit=False)
    for after in LOOKS_AFTER:
        assert late.due(10.5 + after - 0.01) == []
        assert late.due(10.5 + after) == [asked(A, B, ended=True, commit=False)]
        late.answered(asked(A, B, ended=True), 10.5 + after)
    assert not late


def test_a_look_that_fails_is_done_again() -> None:
    late = LateFences()
    late.ended_of_other(TXN, [A], 0.0, commit=True)
    (question,) = late.due(LOOKS_AFTER[0])
    assert late.failed(question, LOOKS_AFTER[0])
    assert late.due(LOOKS_AFTER[0] + SOON) == [question]
    late.ended_of_other(OTHER, [], 0.0, commit=True)
    assert len(late) == 1, "nothing is looked at where there is no partition"


def test_the_answer_that_a_transaction_is_open_says_nothing_of_one_that_ended_since() -> None:
    late = LateFences()
    late.stored(TXN, [A], 0.0, doubtful=True)
    (question,) = late.due(0.0)
    late.ended_of_other(TXN, [A], 0.1, commit=True)
    late.answered(question, 0.2)
    assert late.due(100.0) == [asked(A, ended=True)]


def test_who_does_not_know_how_a_transaction_ended_looks_last() -> None:
    late = LateFences()
    late.stored(TXN, [A], 0.0, doubtful=True)
    (question,) = late.due(0.0)
    late.ended_elsewhere(question, 1.0)
    assert LOOKS_AFTER[-1] < UNKNOWN_SECONDS
    assert late.due(1.0 + UNKNOWN_SECONDS - 0.01) == []
    (look,) = late.due(1.0 + UNKNOWN_SECONDS)
    assert look == asked(A, ended=True)
    late.answered(look, 20.0)
    assert not late


def test_how_a_transaction_ended_is_known_where_it_is_ended_though_that_was_asked_before() -> None:
    late = LateFences()
    late.stored(TXN, [A], 0.0, doubtful=True)
    (question,) = late.due(0.0)
    late.ended_of_other(TXN, [B], 0.1, commit=False)
    late.ended_elsewhere(question, 0.2)
    assert late.due(0.1 + LOOKS_AFTER[0]) == [asked(A, B, ended=True, commit=False)]
