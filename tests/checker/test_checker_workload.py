"""What a seed makes of a run of the checker, and what its recorder writes down."""

from __future__ import annotations

import itertools
from pathlib import Path

from conformance.checker.faults import SPACING, plan
from conformance.checker.history import UNANSWERED, load
from conformance.checker.recorder import Ending, Positions, Recorder
from conformance.checker.workload import (
    CHAINS,
    CONSUMERS,
    TOPICS,
    WRITERS,
    Names,
    chain_finishes,
    deeds,
    partitions_of,
    shares,
)
from conformance.harness.targets import PULSAR_KINDS, SERVER_KINDS

PLACE = ("t", 0)


def test_writers_do_the_same_for_a_seed_and_keep_a_key_in_its_partition() -> None:
    for role in WRITERS:
        first, again = deeds(role, 7), deeds(role, 7)
        partitions: dict[tuple[str, str], int] = {}
        for deed in itertools.islice(first, 200):
            assert deed == next(again)
            assert 1 <= len(deed.drafts) <= role.burst
            for draft in deed.drafts:
                assert draft.topic in role.topics
                assert draft.partition < partitions_of(draft.topic)
                assert partitions.setdefault((draft.topic, draft.key), draft.partition) == draft.partition
    assert next(deeds(WRITERS[0], 7)) != next(deeds(WRITERS[0], 8))


def test_transactions_end_in_every_way() -> None:
    writer = {deed.finish for deed in itertools.islice(deeds(WRITERS[0], 1), 300)}
    chain = set(itertools.islice(chain_finishes("first-0", 1), 300))
    assert writer == chain == {"commit", "abort", "abandon", "zombie"}


def test_all_roles_are_about_topics_that_exist() -> None:
    known = {topic.name for topic in TOPICS}
    used = {name for role in (*WRITERS, *CONSUMERS) for name in role.topics}
    used |= {name for role in CHAINS for name in (role.source, role.output)}
    assert used == known
    assert Names("run").chain(CHAINS[0]).inputs == ("run-left",)


def test_each_partition_is_of_one_worker() -> None:
    assert sorted(number for worker in range(2) for number in shares(5, 2, worker)) == list(range(5))


def test_a_plan_is_the_same_for_a_seed_and_has_every_kind_before_one_comes_again() -> None:
    kinds = SERVER_KINDS + PULSAR_KINDS
    faults = plan(7, 300, 8, kinds, 2)
    assert faults == plan(7, 300, 8, kinds, 2) != plan(8, 300, 8, kinds, 2)
    assert sorted(fault.kind for fault in faults[: len(kinds)]) == sorted(kinds)
    assert {fault.target for fault in faults} == {"1", "2"}
    assert faults[0].at >= SPACING.quiet
    assert faults[-1].at + faults[-1].lasts <= 300 - SPACING.quiet
    for before, after in itertools.pairwise(faults):
        assert before.at + before.lasts < after.at
    assert plan(7, 300, 8, (), 0) == []


def test_the_first_answer_of_a_record_counts_and_one_without_is_told_as_such(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    for number in range(3):
        recorder.sent("tx#1", number, PLACE, "tx#1/1")
    recorder.done("tx#1", 0, 5)
    recorder.done("tx#1", 0, error="late")
    recorder.done("tx#1", 1, error="_TIMED_OUT")
    assert recorder.waiting("tx#1") == 1
    recorder.close()
    recorder.done("tx#1", 2, 6)
    sends = load([tmp_path / "history.jsonl"]).sends
    assert [(send.number, send.offset, send.error) for send in sends] == [
        (0, 5, ""),
        (1, -1, "_TIMED_OUT"),
        (2, -1, UNANSWERED),
    ]


def test_the_lines_of_a_transaction_tell_its_outcome(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    committed, asked, refused, aborted, left = (Ending(recorder, f"tx#1/{n}", "tx", 1) for n in range(5))
    committed.offsets("g", [("t", 0, 3)])
    committed.ask("commit")
    committed.answer("commit")
    asked.ask("commit")
    refused.ask("commit")
    refused.answer("commit", "_TIMED_OUT")
    refused.ask("abort")
    refused.answer("abort")
    aborted.ask("abort")
    aborted.answer("abort")
    left.leave()
    recorder.close()
    last = {transaction.name: transaction for transaction in load([tmp_path / "history.jsonl"]).transactions}
    assert [transaction.outcome for transaction in last.values()] == [
        "committed",
        "unknown",
        "unknown",
        "aborted",
        "aborted",
    ]
    assert last["tx#1/0"].offsets == (("t", 0, 3),)


def test_sessions_go_on_without_a_gap_until_the_next_one_begins(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    positions = Positions(recorder, "reader", "committed")
    positions.begin({PLACE: 4})
    assert positions.given([(PLACE, 5, ("w", 0)), (PLACE, 6, ("w", 1))]) == {PLACE: 7}
    assert positions.given([]) == {PLACE: 7}
    assert positions.given([], {PLACE: 9}) == {PLACE: 9}
    positions.begin({})
    assert positions.given([(PLACE, 6, ("w", 1))]) == {PLACE: 7}
    recorder.close()
    polls = load([tmp_path / "history.jsonl"]).polls
    assert [(poll.session, poll.start, poll.position, len(poll.records)) for poll in polls] == [
        ("reader/1", 4, 7, 2),
        ("reader/1", 7, 9, 0),
        ("reader/2", 6, 7, 1),
    ]
