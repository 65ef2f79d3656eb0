"""The checker of the soak finds each anomaly in a history that has it, and none in a clean one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.harness.faults import Disturbance
from conformance.soak.checker import Anomaly, check, done_by_pulsar, latencies
from conformance.soak.faults import KINDS, ROUND_QUIET_SECONDS, SPACING, plan
from conformance.soak.history import (
    ABORTED,
    UNANSWERED,
    UNREADABLE,
    History,
    Stored,
    Write,
    dump,
    record_of,
    value_of,
    writes_in,
)
from conformance.soak.workload import TOPICS, WRITERS, Topic, records, specification, specified

TOPIC = "t"


def write(
    number: int, offset: int | None = None, *, writer: str = "rd", error: str = "", seconds: float = 0.1
) -> Write:
    """By default record N of the idempotent writer lies at offset N and was sent N seconds after 1000."""
    told = number if offset is None else offset
    return Write(writer, number, TOPIC, 0, 1000.0 + number, 1000.0 + number + seconds, -1 if error else told, error)


def stored(number: int, offset: int, *, writer: str = "rd", partition: int = 0) -> Stored:
    return Stored(TOPIC, partition, offset, f"7:{offset}:-1", writer, number)


def clean() -> History:
    """Records 0 to 9 of an idempotent writer, then of a plain one and a native one, and all readers agree."""
    rows = [stored(number, number) for number in range(10)]
    rows += [stored(number, 10 + number, writer="plain") for number in range(5)]
    rows += [stored(number, 15 + number, writer="native") for number in range(5)]
    return History(
        idempotent={"rd"},
        tells_offsets={"rd", "plain"},
        references={"native"},
        limited=set(),
        bumps_epoch=set(),
        writes=[write(number) for number in range(10)]
        + [write(number, 10 + number, writer="plain") for number in range(5)]
        + [write(number, -1, writer="native") for number in range(5)],
        stored=rows,
        views={
            "consumer": [row._replace(position="") for row in rows],
            "native reader": [row._replace(offset=-1) for row in rows],
        },
        view_partitions={"consumer": {(TOPIC, 0)}, "native reader": {(TOPIC, 0)}},
    )


def same_views(history: History) -> History:
    """What the readers saw follows what is stored: only the anomaly that is meant is in the history."""
    history.views = {
        "consumer": [row._replace(position="") for row in history.stored],
        "native reader": [row._replace(offset=-1) for row in history.stored],
    }
    return history


def lost(history: History) -> None:
    history.stored.remove(stored(3, 3))


def doubled(history: History) -> None:
    history.stored.append(stored(3, 20))


def elsewhere(history: History) -> None:
    history.writes[3] = write(3, 4)


def untold(history: History) -> None:
    history.writes[3] = write(3, -1)


def reordered(history: History) -> None:
    history.stored[3:5] = [stored(4, 3), stored(3, 4)]
    history.writes[3:5] = [write(3, 4), write(4, 3)]


def never_sent(history: History) -> None:
    history.stored.append(stored(77, 20))


def sent_to_another_partition(history: History) -> None:
    history.stored[3] = stored(3, 3, partition=1)


def unreadable(history: History) -> None:
    history.stored.append(stored(-1, 20, writer=UNREADABLE))


def refused_and_stored(history: History) -> None:
    history.limited.add(TOPIC)
    history.writes[3] = write(3, error="MSG_SIZE_TOO_LARGE")


def too_large_without_limit(history: History) -> None:
    history.writes.append(write(50, error="RecordTooLarge"))


def duplicate_sequence(history: History) -> None:
    history.writes.append(write(50, writer="plain", error="DUPLICATE_SEQUENCE_NUMBER"))


def without_answer(history: History) -> None:
    history.writes.append(write(50, error=UNANSWERED))


def test_an_answer_that_pulsar_owes_to_its_own_producer_is_no_anomaly() -> None:
    history = clean()
    history.writes.append(write(50, writer="native", error=UNANSWERED))
    assert check(history) == []


def slow_and_nothing_broken(history: History) -> None:
    history.writes[3] = write(3, seconds=6)


def slow_under_a_dispatch_rate(history: History) -> None:
    history.writes[3] = write(3, seconds=6)
    history.disturbances.append(Disturbance("dispatch_rate", TOPIC, 1000.0, 1100.0))
    history.disturbances.append(Disturbance("unload_topic", "another", 1000.0, 1100.0))


def silent(history: History) -> None:
    history.tells_offsets.add("mute")
    history.writes.append(write(0, writer="mute", error="_MSG_TIMED_OUT"))


CASES: list[tuple[Callable[[History], None], str]] = [
    (lost, "lost"),
    (doubled, "doubled"),
    (elsewhere, "elsewhere"),
    (untold, "untold"),
    (reordered, "reordered"),
    (never_sent, "invented"),
    (sent_to_another_partition, "invented"),
    (unreadable, "invented"),
    (refused_and_stored, "refused_stored"),
    (too_large_without_limit, "unexpected_error"),
    (duplicate_sequence, "unexpected_error"),
    (without_answer, "unanswered"),
    (slow_and_nothing_broken, "slow"),
    (slow_under_a_dispatch_rate, "slow"),
    (silent, "silent"),
]


def test_a_clean_history_has_no_anomaly() -> None:
    assert check(clean()) == []


@pytest.mark.parametrize(("change", "kind"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_each_anomaly_is_found_and_no_other(change: Callable[[History], None], kind: str) -> None:
    history = clean()
    change(history)
    assert [anomaly.kind for anomaly in check(same_views(history))] == [kind]


def test_an_anomaly_names_the_record_what_was_told_and_what_was_found() -> None:
    history = clean()
    elsewhere(history)
    assert check(history) == [Anomaly("elsewhere", "rd", 3, TOPIC, 0, 4, (3,), 1003.1, "")]


def test_what_is_allowed_is_no_anomaly() -> None:
    history = clean()
    history.limited.add(TOPIC)
    history.stored += [stored(2, 20, writer="plain"), stored(30, 21)]
    history.writes += [
        write(30, error="_MSG_TIMED_OUT"),  # stored all the same
        write(31, error="_MSG_TIMED_OUT"),  # and not
        write(32, error="MSG_SIZE_TOO_LARGE"),  # the topic has a limit
        write(33, error="KafkaStorageError"),
        write(0, writer="transactions", error="Execution"),  # Pulsar's own have no gateway before them
    ]
    history.writes[4] = write(4, seconds=20)
    history.writes[16] = write(1, -1, writer="native", seconds=20)
    history.disturbances.append(Disturbance("kill_gateway", "", 1010.0, 1012.0))
    assert check(same_views(history)) == []


def test_what_pulsars_own_producers_waited_for_is_not_slow() -> None:
    history = clean()
    history.writes[3] = write(3, seconds=9)
    assert [anomaly.detail for anomaly in check(history)] == [
        "9.0 s with nothing broken, 0.0 s to Pulsar's own producers"
    ]
    history.writes[17] = write(2, -1, writer="native", seconds=5)
    assert check(history) == []


def test_a_record_behind_one_that_a_fault_delayed_counts_from_that_ones_end() -> None:
    """Record 3 waits for 30 s because a gateway dies; 4 is sent to the same partition when all faults are over."""
    history = clean()
    history.disturbances.append(Disturbance("kill_gateway", "", 1000.0, 1003.5))
    history.writes[3] = write(3, seconds=30)
    history.writes[4] = write(4, seconds=29)
    assert check(history) == []
    history.writes[4] = write(4, seconds=35)
    assert [anomaly.detail for anomaly in check(history)] == [
        "6.0 s with nothing broken, 0.0 s to Pulsar's own producers"
    ]
    history.writes[4] = write(4, seconds=29)._replace(partition=1)
    assert "slow" in {anomaly.kind for anomaly in check(history)}, "nothing delayed that partition"


def test_a_size_limit_that_was_lowered_excuses_the_refusal_of_a_plain_writers_retry() -> None:
    history = clean()
    history.limited.add(TOPIC)
    history.disturbances.append(Disturbance("size_limit", TOPIC, 1002.0, 1009.0))
    history.writes[13] = write(3, writer="plain", error="MSG_SIZE_TOO_LARGE")
    assert check(same_views(history)) == []
    history.writes[3] = write(3, error="MSG_SIZE_TOO_LARGE")
    assert [(anomaly.kind, anomaly.writer) for anomaly in check(same_views(history))] == [("refused_stored", "rd")]


def test_a_new_epoch_after_a_refusal_for_size_excuses_the_second_copy_of_what_had_no_answer() -> None:
    """Only where all of it is so: the client is one that does so, the answer may have been lost, the last is told."""

    def changed(
        *,
        bumps: bool = True,
        fault: str = "kill_gateway",
        told: int = 20,
        error: str = "MSG_SIZE_TOO_LARGE",
        refused_at: float = 1007.0,
    ) -> list[str]:
        history = clean()
        history.limited.add(TOPIC)
        history.bumps_epoch |= {"rd"} if bumps else set()
        history.disturbances.append(Disturbance(fault, "", 1003.0, 1004.0))
        history.stored.append(stored(3, 20))
        history.writes[3] = write(3, told, seconds=5)
        history.writes.append(write(50, error=error)._replace(sent=1002.0, done=refused_at))
        return [anomaly.kind for anomaly in check(same_views(history)) if anomaly.kind != "slow"]

    assert changed() == []
    assert changed(bumps=False) == ["doubled"]
    assert changed(fault="dispatch_rate") == ["doubled"]
    assert changed(told=3) == ["doubled"]
    assert changed(error="_MSG_TIMED_OUT") == ["doubled"]
    assert changed(refused_at=1002.5) == ["doubled"], "before it was sent"
    assert changed(refused_at=1009.0) == ["doubled"], "after it was answered"


def test_a_size_limit_that_was_lowered_does_not_excuse_the_order_of_what_was_under_way_then() -> None:
    history = clean()
    reordered(history)
    history.disturbances.append(Disturbance("size_limit", TOPIC, 1002.0, 1009.0))
    assert [anomaly.kind for anomaly in check(same_views(history))] == ["reordered"]


def test_a_plain_writer_that_was_told_either_copy_was_told_right() -> None:
    history = clean()
    history.stored.append(stored(2, 20, writer="plain"))
    history.writes[12] = write(2, 20, writer="plain")
    assert check(same_views(history)) == []


def test_generations_of_a_writer_are_one_writer_with_records_of_their_own() -> None:
    history = clean()
    history.writes.append(write(0, 20, writer="rd#2"))
    history.stored.append(stored(0, 20, writer="rd#2"))
    assert check(same_views(history)) == []
    history.stored.append(stored(0, 21, writer="rd#2"))
    assert [anomaly.kind for anomaly in check(same_views(history))] == ["doubled"]


@pytest.mark.parametrize("view", ["consumer", "native reader"])
def test_a_reader_that_misses_a_record_is_found(view: str) -> None:
    history = clean()
    del history.views[view][3]
    assert [(anomaly.kind, anomaly.number, anomaly.detail) for anomaly in check(history)] == [
        ("view", 3, f"not seen by {view}, entry 7:3:-1")
    ]


def test_a_reader_that_sees_a_record_elsewhere_is_found() -> None:
    history = clean()
    history.views["consumer"][-1] = history.views["consumer"][-1]._replace(offset=25)
    assert [anomaly.detail for anomaly in check(history)] == [
        "not seen by consumer, entry 7:19:-1",
        "seen and not stored so by consumer",
    ]


def test_a_reader_that_is_given_records_out_of_order_is_found() -> None:
    history = clean()
    rows = history.views["consumer"]
    rows[3], rows[4] = rows[4], rows[3]
    assert [anomaly.detail for anomaly in check(history)] == ["delivered behind offset 4 by consumer"]


def test_a_reader_that_sees_nothing_is_found_and_a_partition_that_it_left_out_is_not_compared() -> None:
    history = clean()
    history.views["consumer"].clear()
    assert len(check(history)) == len(history.stored)
    history.view_partitions["consumer"].clear()
    assert check(history) == []


def test_latencies_go_by_what_was_broken() -> None:
    history = clean()
    history.writes = [write(0, seconds=2), write(1, seconds=1), write(50, seconds=3), write(60, error="_MSG_TIMED_OUT")]
    history.disturbances = [Disturbance("pause_gateway", "", 1040.0, 1070.0)]
    assert latencies(history) == {"quiet": [1.0, 2.0], "pause_gateway": [3.0]}


def test_a_plan_is_the_same_for_a_seed_and_has_every_kind_before_one_comes_again() -> None:
    names = [topic.name for topic in TOPICS]
    faults = plan(7, 600, 13, names)
    assert faults == plan(7, 600, 13, names) != plan(8, 600, 13, names)
    first = [fault.kind for fault in faults[: len(KINDS)]]
    assert sorted(first) == sorted(KINDS)
    assert all(fault.at >= SPACING.quiet for fault in faults)
    assert all(fault.at + fault.lasts <= 600 - SPACING.quiet for fault in faults)


def test_each_round_of_a_long_plan_is_followed_by_quiet() -> None:
    faults = plan(7, 600, 13, ["t"])
    assert len(faults) > 2 * len(KINDS)
    for end in (len(KINDS), 2 * len(KINDS)):
        assert faults[end].at - faults[end - 1].at >= ROUND_QUIET_SECONDS


def test_gateways_are_broken_one_after_the_other() -> None:
    for seed in range(20):
        faults = plan(seed, 600, 4, ["t"])
        gateways = [fault for fault in faults if fault.kind in ("kill_gateway", "kill_both_gateways", "pause_gateway")]
        for before, after in itertools.pairwise(gateways):
            assert before.at + before.lasts < after.at


def test_a_record_carries_its_name() -> None:
    assert record_of(value_of("rd#2", 17, "ab|cd")) == ("rd#2", 17)
    for value in (None, b"", b"x", b"a|b|c", b"a|-1|c"):
        assert record_of(value) == (UNREADABLE, -1)


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "writes.jsonl"
    rows = [write(0), write(1, error="Unanswered")]
    dump(path, rows)
    with path.open("a") as out:
        out.write('["rd", 2')
    assert writes_in(path) == rows
    assert writes_in(tmp_path / "absent") == []


def test_writers_send_the_same_for_a_seed_and_to_topics_that_exist() -> None:
    topics: dict[str, Topic] = {topic.name: topic for topic in TOPICS}
    for writer in WRITERS:
        assert specified(specification(writer)) == writer
        short = replace(writer, sizes="small")
        supply, again = records(short, topics, 1), records(short, topics, 1)
        for number in range(100):
            record = next(supply)
            assert record == next(again)
            assert record.number == number
            assert record.partition in topics[record.topic].numbers


def test_a_commit_that_pulsar_could_not_carry_out_is_no_anomaly_of_a_gateway() -> None:
    history = clean()
    lost = write(5, -1, writer="native")
    history.writes.append(lost)
    assert [anomaly.kind for anomaly in check(history)] == ["lost"]
    assert done_by_pulsar(history) == []
    history.failed_commits = {lost.record, ("native", 4)}
    assert check(history) == []
    (line,) = done_by_pulsar(history)
    assert line.startswith("Pulsar lost 1 records of its own client native")


def test_an_abort_that_pulsar_forgot_is_no_anomaly_of_a_gateway() -> None:
    history = clean()
    aborted = history.writes[-1]._replace(error=ABORTED)
    history.writes[-1] = aborted
    assert [anomaly.kind for anomaly in check(history)] == ["refused_stored"]
    assert done_by_pulsar(history) == []
    history.forgotten_aborts = {aborted.record}
    assert check(history) == []
    (line,) = done_by_pulsar(history)
    assert line.startswith("Pulsar gives 1 records that its own client native aborted to readers")
