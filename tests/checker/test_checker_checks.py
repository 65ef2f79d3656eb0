"""The checker of transactions finds each anomaly in a history that has it, and none in a good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.checker.checks import KINDS, Anomaly, check
from conformance.checker.history import (
    NOT_SENT,
    UNANSWERED,
    UNREADABLE,
    Chain,
    Commit,
    Committed,
    End,
    Engine,
    History,
    Instance,
    Isolation,
    Poll,
    Send,
    Transaction,
    Whole,
    Writer,
    dump,
    load,
    record_of,
    source_of,
    value_of,
)
from conformance.harness.faults import Disturbance

IN, OUT = "in", "out"
MARKER = None


def send(writer: str, number: int, partition: int, offset: int, transaction: str = "", topic: str = IN) -> Send:
    """A record that was acknowledged a tenth of a second after it was sent, at 1000 and its number."""
    at = 1000.0 + number
    return Send(writer, number, topic, partition, transaction, "", at, at + 0.1, offset, "")


def transaction(
    name: str, ending: float, *, asked: str = "commit", error: str = "", writer: str = "tx", instance: int = 1
) -> Transaction:
    return Transaction(name, writer, instance, ending - 5, ending, ending + 0.5, asked, error, "", ())


def poll(
    session: str, isolation: Isolation, topic: str, partition: int, at: float, start: int, rows: list[Any]
) -> Poll:
    """Rows of writer and number, from offset `start` on; None for a marker, which is passed."""
    records = [(start + place, *row) for place, row in enumerate(rows) if row is not MARKER]
    return Poll(session, isolation, topic, partition, at, start, start + len(rows), tuple(records))


P0 = [("plain", 0), ("tx", 0), ("tx", 1), ("plain", 1), MARKER, MARKER, ("tx", 6), MARKER]
P1 = [("tx", 2), ("plain", 2), MARKER, MARKER]
O0 = [("chain", 0), ("chain", 1), ("chain", 2), MARKER, ("chain", 3), ("chain", 4), MARKER]
"""Where the records of a good history lie, for who reads committed ones."""


def good() -> History:
    """Two transactions of `tx`, committed and of an unknown end, one aborted; a chain from `in` to `out`; consumers."""
    history = History()
    history.writers += [Writer("plain", True), Writer("tx", True), Writer("chain", True), Writer("loose", False)]
    history.instances += [Instance("tx", 1, 990, 991), Instance("tx", 2, 1021, 1022), Instance("chain", 1, 990, 991)]
    history.sends += [
        send("plain", 0, 0, 0),
        send("plain", 1, 0, 3),
        send("plain", 2, 1, 1),
        send("tx", 0, 0, 1, "tx/1"),
        send("tx", 1, 0, 2, "tx/1"),
        send("tx", 2, 1, 0, "tx/1"),
        send("tx", 4, 1, 2, "tx/2"),  # aborted, and hidden from those who read committed records
        send("tx", 6, 0, 6, "tx/3"),  # unknown, and committed
        send("tx", 7, 2, 0, "tx/4")._replace(error=UNANSWERED, offset=-1),  # unknown, and aborted
        send("tx", 8, 2, 0, "tx/5")._replace(error=NOT_SENT, offset=-1),
    ]
    history.transactions += [
        transaction("tx/1", 1010),
        transaction("tx/2", 1015, asked="abort"),
        transaction("tx/3", 1018, error="REQUEST_TIMED_OUT"),
        transaction("tx/4", 1030, error="REQUEST_TIMED_OUT", instance=2),
        transaction("tx/5", 1035, instance=2),
    ]
    sources = [source_of((IN, 0), offset) for offset in (0, 1, 2, 3, 6)]
    places = [0, 1, 2, 4, 5]
    for number, (source, offset) in enumerate(zip(sources, places, strict=True)):
        sent = send("chain", number, 0, offset, f"chain/{1 + number // 3}", OUT)
        history.sends.append(sent._replace(sent=1040.0 + number, done=1040.5 + number, source=source))
    first = transaction("chain/1", 1050, writer="chain")._replace(group="g", offsets=((IN, 0, 3), (IN, 1, 0)))
    second = transaction("chain/2", 1060, writer="chain")._replace(group="g", offsets=((IN, 0, 8),))
    history.transactions += [first, second]
    # The chain has not come to partition 1 of its input yet.
    history.chains.append(Chain("copy", "g", (IN,), OUT))
    history.committed += [
        Committed("g", True, 1041, 1042, ((IN, 0, -1), (IN, 1, -1))),
        Committed("g", True, 1055, 1056, ((IN, 0, 3), (IN, 1, 0))),
        Committed("h", False, 1055, 1056, ((IN, 0, 4), (IN, 1, 1))),
        Committed("g", True, 1065, 1066, ((IN, 0, 8), (IN, 1, 0))),
    ]
    history.commits.append(Commit("h", 1053, 1054, "", ((IN, 0, 4), (IN, 1, 1))))
    history.polls += [
        poll("live/1", "committed", IN, 0, 1012, 0, P0[:4]),
        poll("live/1", "committed", IN, 1, 1013, 0, P1[:2]),
        poll("live/1", "committed", IN, 0, 1020, 4, P0[4:]),
        poll("live/2", "uncommitted", IN, 0, 1009, 1, P0[1:4]),
        poll("live/2", "uncommitted", IN, 1, 1009, 0, [*P1[:2], ("tx", 4)]),
    ]
    for isolation in ("committed", "uncommitted"):
        second_half = [("tx", 4), MARKER] if isolation == "uncommitted" else [MARKER, MARKER]
        name = f"whole-{isolation}"
        history.polls += [
            poll(name, isolation, IN, 0, 1100, 0, P0),
            poll(name, isolation, IN, 1, 1100, 0, P1[:2] + second_half),
            poll(name, isolation, OUT, 0, 1100, 0, O0),
        ]
        wholes = [(IN, 0), (IN, 1), (IN, 2), (OUT, 0)]
        history.wholes += [Whole(name, isolation, topic, partition) for topic, partition in wholes]
    history.ends += [
        End(IN, 0, 1005, 1006, "stable", 1),
        End(IN, 0, 1007, 1008, "high", 7),
        End(IN, 0, 1021, 1022, "stable", 8),
        End(IN, 0, 1021, 1022, "start", 0),
        End(IN, 0, 1023, 1024, "high", 8),
    ]
    return history


def place_of(history: History, session: str, topic: str, partition: int) -> int:
    return next(
        number
        for number, poll in enumerate(history.polls)
        if (poll.session, poll.topic, poll.partition) == (session, topic, partition)
    )


def change_poll(history: History, session: str, change: Callable[[Poll], Poll], topic: str = IN, part: int = 0) -> None:
    number = place_of(history, session, topic, part)
    history.polls[number] = change(history.polls[number])


def without(offset: int) -> Callable[[Poll], Poll]:
    return lambda poll: poll._replace(records=tuple(row for row in poll.records if row[0] != offset))


def having(offset: int, writer: str, number: int) -> Callable[[Poll], Poll]:
    def change(poll: Poll) -> Poll:
        kept = [row for row in poll.records if row[0] != offset]
        position = max(poll.position, offset + 1)
        return poll._replace(records=tuple(sorted([*kept, (offset, writer, number)])), position=position)

    return change


def everywhere(history: History, change: Callable[[Poll], Poll], topic: str = IN, part: int = 0) -> None:
    """What all readers see who came that far."""
    for number, poll in enumerate(history.polls):
        if (poll.topic, poll.partition) == (topic, part):
            history.polls[number] = change(poll)


def drop_everywhere(history: History, offset: int, topic: str = IN, part: int = 0) -> None:
    everywhere(history, without(offset), topic, part)


def add_at_the_end(history: History, offset: int, writer: str, number: int, topic: str = IN, part: int = 0) -> None:
    for session in ("whole-committed", "whole-uncommitted"):
        change_poll(history, session, having(offset, writer, number), topic, part)


def change_send(history: History, writer: str, number: int, **values: Any) -> None:
    place = next(at for at, send in enumerate(history.sends) if send.record == (writer, number))
    history.sends[place] = history.sends[place]._replace(**values)


def change_transaction(history: History, name: str, **values: Any) -> None:
    place = next(at for at, transaction in enumerate(history.transactions) if transaction.name == name)
    history.transactions[place] = history.transactions[place]._replace(**values)


# --- one anomaly each


def lost(history: History) -> None:
    drop_everywhere(history, 1, part=1)


def lost_of_a_transaction(history: History) -> None:
    history.sends.append(send("tx", 9, 1, 9, "tx/9"))
    history.transactions.append(transaction("tx/9", 1080, instance=2))


def doubled(history: History) -> None:
    add_at_the_end(history, 9, "plain", 2, part=1)


def doubled_and_aborted(history: History) -> None:
    change_poll(history, "whole-uncommitted", having(9, "tx", 4), part=1)


def elsewhere(history: History) -> None:
    change_send(history, "plain", 2, offset=3)


def untold(history: History) -> None:
    change_send(history, "plain", 2, offset=-1)


def never_sent(history: History) -> None:
    add_at_the_end(history, 9, "loose", 7, part=1)
    history.polls.pop(place_of(history, "whole-uncommitted", IN, 1))
    history.wholes = [whole for whole in history.wholes if whole.place != (IN, 1) or whole.isolation == "committed"]
    history.polls.pop(place_of(history, "live/2", IN, 1))


def sent_to_another_partition(history: History) -> None:
    change_poll(history, "live/1", having(9, "plain", 0), part=1)


def unreadable(history: History) -> None:
    change_poll(history, "live/1", having(9, UNREADABLE, -1), part=1)


def aborted_read(history: History) -> None:
    change_poll(history, "live/1", having(2, "tx", 4), part=1)


def aborted_read_at_the_end(history: History) -> None:
    change_poll(history, "whole-committed", having(2, "tx", 4), part=1)


def never_ended_and_read(history: History) -> None:
    history.transactions = [transaction for transaction in history.transactions if transaction.name != "tx/2"]
    change_poll(history, "whole-committed", having(2, "tx", 4), part=1)


def uncommitted_read(history: History) -> None:
    change_poll(history, "live/1", lambda poll: poll._replace(at=1009.0), part=1)


def uncommitted_read_of_an_unknown_transaction(history: History) -> None:
    change_transaction(history, "tx/3", ending=1020.5, ended=1020.8)


def torn(history: History) -> None:
    drop_everywhere(history, 2)
    change_send(history, "chain", 2, source=source_of((IN, 0), 9))
    history.sends.append(send("plain", 9, 0, 9)._replace(done=1090.0))
    add_at_the_end(history, 9, "plain", 9)


def torn_between_partitions(history: History) -> None:
    drop_everywhere(history, 0, part=1)


def torn_though_unknown(history: History) -> None:
    history.sends.append(send("tx", 9, 1, 9, "tx/3"))


def half_of_a_transaction_read(history: History) -> None:
    change_poll(history, "live/1", without(2))


def records_without_offsets(history: History) -> None:
    """The group's offset stays behind what the records of an unknown transaction tell."""
    change_transaction(history, "tx/3", group="i", offsets=((IN, 2, 5),))
    history.committed.append(Committed("i", True, 1090, 1091, ((IN, 2, -1),)))


def reordered(history: History) -> None:
    for session in ("live/1", "live/2", "whole-committed", "whole-uncommitted"):
        change_poll(history, session, having(1, "tx", 1))
        change_poll(history, session, having(2, "tx", 0))
    change_send(history, "tx", 0, offset=2)
    change_send(history, "tx", 1, offset=1)


def two_values(history: History) -> None:
    """A consumer was given a record of a writer that may store it twice, where all others find another one."""
    history.sends.append(send("loose", 0, 1, 9))
    add_at_the_end(history, 9, "loose", 0, part=1)
    change_poll(history, "live/1", having(1, "loose", 0), part=1)


def two_acknowledgements_of_one_offset(history: History) -> None:
    history.sends.append(send("tx", 9, 1, 0, "tx/2"))


def skipped(history: History) -> None:
    change_poll(history, "live/1", without(3))


def skipped_by_who_reads_everything(history: History) -> None:
    change_poll(history, "whole-uncommitted", without(3))


def vanished(history: History) -> None:
    history.sends.append(send("loose", 0, 1, -1)._replace(error=UNANSWERED))
    change_poll(history, "live/1", having(9, "loose", 0), part=1)


def position_back(history: History) -> None:
    history.polls.append(poll("live/1", "committed", IN, 0, 1021, 7, [MARKER])._replace(position=8))


def given_twice(history: History) -> None:
    history.polls.append(Poll("live/1", "committed", IN, 0, 1021, 8, 8, ((6, "tx", 6),)))


def position_behind_what_was_given(history: History) -> None:
    change_poll(history, "live/2", lambda poll: poll._replace(position=3))


def high_watermark_back(history: History) -> None:
    history.ends.append(End(IN, 2, 1001, 1002, "high", 5))
    history.ends.append(End(IN, 2, 1003, 1004, "high", 4))


def log_start_back(history: History) -> None:
    history.ends.append(End(IN, 2, 1001, 1002, "start", 1))
    history.ends.append(End(IN, 2, 1003, 1004, "start", 0))


def stable_offset_back(history: History) -> None:
    history.ends.append(End(IN, 0, 1030, 1031, "stable", 7))


def high_watermark_behind_an_acknowledgement(history: History) -> None:
    history.ends.append(End(IN, 1, 1006, 1007, "high", 1))


def stable_offset_behind_what_was_read(history: History) -> None:
    history.ends.append(End(IN, 1, 1013.5, 1014, "stable", 1))


def high_watermark_below_the_stable_offset(history: History) -> None:
    history.ends.append(End(IN, 2, 1001, 1002, "stable", 5))
    history.ends.append(End(IN, 2, 1003, 1004, "high", 4))


def commit_back(history: History) -> None:
    """The earlier answer had the offset of an unknown transaction."""
    change_transaction(history, "chain/2", error="REQUEST_TIMED_OUT")
    history.committed.append(Committed("g", True, 1067, 1068, ((IN, 0, 3), (IN, 1, 0))))
    history.committed.append(Committed("g", True, 1069, 1070, ((IN, 0, 8), (IN, 1, 0))))


def commit_lost(history: History) -> None:
    history.commits.append(Commit("h", 1050, 1051, "", ((IN, 2, 1),)))
    history.commits.append(Commit("h", 1053, 1054, "", ((IN, 2, 4),)))
    history.committed.append(Committed("h", False, 1055, 1056, ((IN, 2, 1),)))


def commit_of_a_transaction_lost(history: History) -> None:
    history.committed[1] = Committed("g", True, 1055, 1056, ((IN, 0, -1), (IN, 1, 0)))


def commit_invented(history: History) -> None:
    history.committed.append(Committed("h", False, 1060, 1061, ((IN, 0, 5),)))


def commit_seen_before_it_was_asked_for(history: History) -> None:
    history.committed[0] = Committed("g", True, 1041, 1042, ((IN, 0, 3), (IN, 1, 0)))
    change_transaction(history, "chain/1", offsets=((IN, 0, 3),))
    history.commits.append(Commit("g", 1030, 1031, "", ((IN, 1, 0),)))


def commit_of_an_aborted_transaction(history: History) -> None:
    change_transaction(history, "tx/2", group="h", offsets=((IN, 2, 9),))
    history.committed.append(Committed("h", False, 1060, 1061, ((IN, 2, 9),)))


def half_committed(history: History) -> None:
    history.committed[1] = Committed("g", True, 1050.2, 1050.4, ((IN, 0, 3), (IN, 1, -1)))


def chain_lost(history: History) -> None:
    change_transaction(history, "chain/2", offsets=((IN, 0, 8), (IN, 1, 1)))
    history.committed[-1] = Committed("g", True, 1065, 1066, ((IN, 0, 8), (IN, 1, 1)))


def chain_doubled(history: History) -> None:
    sent = send("chain", 9, 0, 9, "chain/2", OUT)
    history.sends.append(sent._replace(source=source_of((IN, 0), 1)))
    add_at_the_end(history, 9, "chain", 9, OUT)


def chain_made_of_an_aborted_record(history: History) -> None:
    sent = send("chain", 9, 0, 9, "chain/2", OUT)
    history.sends.append(sent._replace(source=source_of((IN, 1), 2)))
    add_at_the_end(history, 9, "chain", 9, OUT)


def unfenced(history: History) -> None:
    change_transaction(history, "tx/1", ending=1023, ended=1024)
    history.polls = [poll for poll in history.polls if poll.session != "live/1"]


def refused_and_committed(history: History) -> None:
    history.instances.append(Instance("tx", 3, 1014, 1015))


CASES: list[tuple[Callable[[History], None], str]] = [
    (lost, "lost"),
    (lost_of_a_transaction, "lost"),
    (doubled, "doubled"),
    (doubled_and_aborted, "doubled"),
    (elsewhere, "elsewhere"),
    (untold, "untold"),
    (never_sent, "invented"),
    (sent_to_another_partition, "invented"),
    (unreadable, "invented"),
    (aborted_read, "aborted_read"),
    (aborted_read_at_the_end, "aborted_read"),
    (never_ended_and_read, "aborted_read"),
    (uncommitted_read, "uncommitted_read"),
    (uncommitted_read_of_an_unknown_transaction, "uncommitted_read"),
    (torn, "torn"),
    (torn_between_partitions, "torn"),
    (torn_though_unknown, "torn"),
    (half_of_a_transaction_read, "torn"),
    (records_without_offsets, "torn"),
    (reordered, "reordered"),
    (two_values, "two_values"),
    (two_acknowledgements_of_one_offset, "two_values"),
    (skipped, "skipped"),
    (skipped_by_who_reads_everything, "skipped"),
    (vanished, "vanished"),
    (position_back, "position_back"),
    (given_twice, "position_back"),
    (position_behind_what_was_given, "position_back"),
    (high_watermark_back, "end_back"),
    (log_start_back, "end_back"),
    (stable_offset_back, "end_back"),
    (high_watermark_behind_an_acknowledgement, "end_behind"),
    (stable_offset_behind_what_was_read, "end_behind"),
    (high_watermark_below_the_stable_offset, "end_behind"),
    (commit_back, "commit_back"),
    (commit_lost, "commit_lost"),
    (commit_of_a_transaction_lost, "commit_lost"),
    (commit_invented, "commit_invented"),
    (commit_seen_before_it_was_asked_for, "commit_invented"),
    (commit_of_an_aborted_transaction, "commit_invented"),
    (half_committed, "half_committed"),
    (chain_lost, "chain_lost"),
    (chain_doubled, "chain_doubled"),
    (chain_made_of_an_aborted_record, "chain_invented"),
    (unfenced, "unfenced"),
    (refused_and_committed, "unfenced"),
]


def test_a_good_history_has_no_anomaly() -> None:
    assert check(good()) == []


@pytest.mark.parametrize(("change", "kind"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_each_anomaly_is_found_and_no_other(change: Callable[[History], None], kind: str) -> None:
    history = good()
    change(history)
    assert {anomaly.kind for anomaly in check(history)} == {kind}


def test_every_kind_has_a_history_of_its_own() -> None:
    assert {kind for _, kind in CASES} == set(KINDS)


def kinds(history: History) -> list[str]:
    return [anomaly.kind for anomaly in check(history)]


def test_an_anomaly_names_the_record_the_place_and_what_was_told() -> None:
    history = good()
    elsewhere(history)
    assert check(history) == [Anomaly("elsewhere", "plain|2", IN, 1, 3, 1002.1, "stored at 1")]
    history = good()
    aborted_read(history)
    assert check(history) == [
        Anomaly("aborted_read", "tx|4", IN, 1, 2, 1013, "transaction tx/2, read by live/1"),
    ]


def test_a_transaction_of_unknown_end_may_have_ended_either_way() -> None:
    history = good()
    drop_everywhere(history, 6)
    change_send(history, "chain", 4, source=source_of((IN, 1), 1))
    assert kinds(history) == []


def test_a_commit_that_failed_and_was_followed_by_an_abort_is_of_unknown_end() -> None:
    assert transaction("tx/1", 1010, error="_TIMED_OUT").outcome == "unknown"
    assert transaction("tx/1", 1010)._replace(ended=0.0).outcome == "unknown"
    assert transaction("tx/1", 1010, asked="abort", error="_TIMED_OUT").outcome == "aborted"
    assert transaction("tx/1", 1010, asked="").outcome == "aborted"
    assert transaction("tx/1", 1010).outcome == "committed"


def test_a_record_that_was_not_acknowledged_may_be_there_or_not() -> None:
    history = good()
    history.sends.append(send("loose", 0, 1, -1)._replace(error=UNANSWERED))
    assert kinds(history) == []
    add_at_the_end(history, 9, "loose", 0, part=1)
    assert kinds(history) == []


def test_a_writer_that_is_not_idempotent_may_store_a_record_twice_and_in_any_order() -> None:
    history = good()
    history.sends += [send("loose", 0, 1, 10), send("loose", 1, 1, 11)]
    for offset, number in ((8, 1), (9, 0), (10, 0), (11, 1)):
        add_at_the_end(history, offset, "loose", number, part=1)
    assert kinds(history) == []


@pytest.mark.parametrize(
    ("at", "error", "told"),
    [
        (1002.05, "_MSG_TIMED_OUT", []),
        (1002.05, "KAFKA_STORAGE_ERROR", ["doubled"]),
        (1001.9, "_MSG_TIMED_OUT", ["doubled"]),
        (1002.2, "_MSG_TIMED_OUT", ["doubled"]),
    ],
)
def test_a_record_may_be_doubled_where_its_client_gave_up_another_one_meanwhile(
    at: float, error: str, told: list[str]
) -> None:
    history = good()
    doubled(history)
    history.sends.append(send("plain", 99, 0, -1)._replace(sent=900.0, done=at, error=error))
    (record,) = [send for send in history.sends if send.record == ("plain", 2)]
    assert (record.sent, record.done) == (1002.0, 1002.1)
    assert kinds(history) == told


def test_a_record_of_a_transaction_may_not_be_doubled_even_so() -> None:
    history = good()
    doubled_and_aborted(history)
    (record,) = [send for send in history.sends if send.record == ("tx", 4)]
    history.sends.append(send("tx", 99, 0, -1)._replace(done=record.done, error="_MSG_TIMED_OUT"))
    assert kinds(history) == ["doubled"]


def test_nothing_is_lost_in_a_partition_that_was_not_read_wholly() -> None:
    history = good()
    history.wholes = [whole for whole in history.wholes if whole.place != (IN, 1) or whole.isolation != "committed"]
    history.sends.append(send("tx", 9, 1, 9, "tx/9"))
    history.transactions.append(transaction("tx/9", 1080, instance=2))
    assert kinds(history) == []


def test_a_reader_of_everything_may_see_records_before_and_after_their_transaction_is_aborted() -> None:
    history = good()
    history.polls.append(poll("live/3", "uncommitted", IN, 1, 1006, 2, [("tx", 4)]))
    assert kinds(history) == []


def test_ends_that_were_asked_for_at_the_same_time_are_not_compared() -> None:
    history = good()
    history.ends += [End(IN, 2, 1001, 1004, "high", 5), End(IN, 2, 1003, 1006, "high", 4)]
    assert kinds(history) == []


def test_where_open_transactions_hide_what_is_behind_them_an_acknowledgement_says_nothing_of_ends() -> None:
    history = good()
    high_watermark_behind_an_acknowledgement(history)
    history.engines.append(Engine(hides=True))
    assert kinds(history) == []
    stable_offset_behind_what_was_read(history)
    assert kinds(history) == ["end_behind"]


def test_a_commit_without_an_answer_may_be_carried_out_late() -> None:
    history = good()
    history.commits += [
        Commit("h", 1050, 1051, "_TIMED_OUT", ((IN, 2, 1),)),
        Commit("h", 1052, 1053, "", ((IN, 2, 4),)),
    ]
    history.committed += [
        Committed("h", False, 1054, 1055, ((IN, 2, 4),)),
        Committed("h", False, 1056, 1057, ((IN, 2, 1),)),
    ]
    assert kinds(history) == []


def test_an_answer_that_does_not_wait_for_transactions_may_lack_the_offsets_of_one() -> None:
    history = good()
    history.committed.append(Committed("g", False, 1050.6, 1050.7, ((IN, 0, -1), (IN, 1, -1))))
    assert kinds(history) == []


def test_offsets_of_a_transaction_whose_end_is_unknown_may_be_done_by_several_later_ones() -> None:
    history = good()
    change_transaction(history, "chain/1", error="REQUEST_TIMED_OUT")
    history.committed[1] = Committed("g", True, 1050.2, 1050.4, ((IN, 0, 3), (IN, 1, -1)))
    assert kinds(history) == []


def test_of_the_lines_of_a_transaction_the_last_counts() -> None:
    history = good()
    asked = history.transactions[0]._replace(ended=0.0)
    history.transactions.insert(0, asked)
    assert kinds(history) == []


def test_a_history_is_the_same_when_it_is_read_back(tmp_path: Path) -> None:
    history = good()
    history.disturbances.append(Disturbance("kill", "1", 1010.0, 1015.0))
    path = tmp_path / "history.jsonl"
    dump(path, history.events())
    assert load([path, tmp_path / "absent"]) == history


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    dump(path, [Writer("tx", True)])
    with path.open("a") as out:
        out.write('["writer", "pla')
    assert load([path]).writers == [Writer("tx", True)]


def test_a_record_carries_its_name() -> None:
    assert record_of(value_of("tx#2", 17, "ab|cd")) == ("tx#2", 17)
    for value in (None, b"", b"x", b"a|b|c", b"a|-1|c"):
        assert record_of(value) == (UNREADABLE, -1)
