"""The states without sockets: what is pending, where a reader stands, waits, addresses, errors."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.pulsar_client.address import PulsarAddress, parse
from kop.pulsar_client.backoff import Backoff
from kop.pulsar_client.errors import NOT_THERE, Ignoring, PulsarError, server_error
from kop.pulsar_client.pending import PendingEntries, PendingEntry
from kop.pulsar_client.reader import ReaderPosition
from kop.pulsar_client.types import EARLIEST, LATEST, Position


def pending(sequence: int, deadline: float = 100.0, messages: int = 1) -> PendingEntry:
    entry = PendingEntry(b"frame", 15, 7, sequence, sequence + messages - 1)
    entry.deadline = deadline
    return entry


def wire_order(entries: PendingEntries) -> list[int]:
    order = []
    while (item := entries.next_unsent()) is not None:
        order.append(item.sequence_id)
    return order


@given(st.lists(st.tuples(st.sampled_from(["add", "send", "answer", "lose"]), st.integers(0, 9)), max_size=60))
def test_what_is_put_on_a_wire_is_always_all_that_is_pending_in_order(steps: list[tuple[str, int]]) -> None:
    entries = PendingEntries()
    waiting: list[int] = []  # what has no answer, in the order of send
    wire: list[int] = []  # what was put on the present connection and has no answer
    number = 0
    for step, choice in steps:
        if step == "add":
            at_once = entries.all_sent and choice % 2 == 0
            entries.add(pending(number), sent=at_once)
            if at_once:
                wire.append(number)
            waiting.append(number)
            number += 1
        elif step == "send":
            item = entries.next_unsent()
            if item is not None:
                wire.append(item.sequence_id)
        elif step == "answer" and wire:
            sequence = wire.pop(choice % len(wire))
            waiting.remove(sequence)
            assert entries.take(sequence) is not None
        elif step == "lose":
            entries.rewind()
            wire.clear()
        assert wire == waiting[: len(wire)]
        assert len(entries) == len(waiting)
        assert entries.all_sent == (len(wire) == len(waiting))
    assert wire + wire_order(entries) == waiting


def test_an_answer_that_nothing_waits_for_is_ignored() -> None:
    entries = PendingEntries()
    entries.add(pending(4), sent=True)
    assert entries.take(5) is None
    assert entries.take(4) is not None
    assert entries.take(4) is None
    assert len(entries) == 0


def test_a_refusal_names_a_batch_by_either_end() -> None:
    entries = PendingEntries()
    for first in (0, 10, 20):
        entries.add(pending(first, messages=10), sent=True)
    for named, first in ((0, 0), (9, 0), (10, 10), (29, 20)):
        item = entries.refused(named)
        assert item is not None
        assert item.sequence_id == first
    assert entries.refused(5) is None


@pytest.mark.parametrize(
    ("deadlines", "now", "expired"),
    [
        ([], 5, []),
        ([10, 11], 9.9, []),
        ([10, 11], 10, [0, 1]),  # what stands behind the expired one must not be stored without it
        ([10, 99], 50, [0, 1]),
    ],
)
def test_expiry_takes_all(deadlines: list[float], now: float, expired: list[int]) -> None:
    entries = PendingEntries()
    for number, deadline in enumerate(deadlines):
        entries.add(pending(number, deadline), sent=False)
    assert [item.sequence_id for item in entries.expire(now)] == expired
    assert len(entries) == len(deadlines) - len(expired)
    assert wire_order(entries) == ([] if expired else list(range(len(deadlines))))


@pytest.mark.parametrize(
    ("start", "inclusive", "begins"),
    [
        (EARLIEST, True, EARLIEST),
        (EARLIEST, False, EARLIEST),
        (LATEST, True, LATEST),
        (LATEST, False, LATEST),
        (Position(3, 4), True, Position(3, 4)),
        (Position(3, 4), False, Position(3, 5)),
        (Position(3, -1), False, Position(3, -1)),
    ],
)
def test_where_a_reader_begins(start: Position, inclusive: bool, begins: Position) -> None:
    cursor = ReaderPosition(start, inclusive, 0)
    assert cursor.start() == begins
    cursor.take(Position(7, 8), 1)
    assert cursor.start() == Position(7, 9)


def test_a_reader_takes_each_entry_once_and_none_before_its_start() -> None:
    cursor = ReaderPosition(Position(3, 4), True, 100)
    assert [
        cursor.take(Position(*at), 1) for at in [(3, 3), (3, 4), (3, 4), (3, 5), (2, 9), (4, 0), (3, 6), (4, 1)]
    ] == [False, True, False, True, False, True, False, True]
    assert cursor.permits == 92


def test_a_reader_from_the_end_is_pinned_to_where_that_was() -> None:
    cursor = ReaderPosition(LATEST, True, 10)
    cursor.pin(Position(9, -1))
    assert cursor.start() == Position(9, 0)
    cursor.pin(Position(9, 6))
    assert cursor.start() == Position(9, 7)
    assert cursor.take(Position(9, 7), 1)
    cursor.pin(Position(20, 0))
    assert cursor.start() == Position(9, 8)


@pytest.mark.parametrize(
    ("granted", "taken", "left", "restored"),
    [([], [], 10, 10), ([5], [3], 12, 12), ([], [5, 5], 0, 0), ([], [5, 5, 5], -5, 0), ([20], [5, 5, 5], 15, 15)],
)
def test_permits(granted: list[int], taken: list[int], left: int, restored: int) -> None:
    cursor = ReaderPosition(EARLIEST, True, 10)
    for count in granted:
        cursor.permits += count
    for number, count in enumerate(taken):
        cursor.take(Position(1, number), count)
    assert cursor.permits == left
    assert cursor.restored() == restored
    assert cursor.permits == restored


def test_waits_double_with_jitter_up_to_the_most() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(5))
    waits = [backoff.next() for _ in range(6)]
    for wait, whole in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=True):
        assert whole / 2 <= wait <= whole
    assert len({round(wait, 6) for wait in waits}) == 6
    backoff.reset()
    assert backoff.next() <= 0.1


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("pulsar://h", [PulsarAddress("h", 6650, False)]),
        ("pulsar+ssl://h", [PulsarAddress("h", 6651, True)]),
        ("pulsar://h:1,other:2", [PulsarAddress("h", 1, False), PulsarAddress("other", 2, False)]),
        ("pulsar://[::1]:7/", [PulsarAddress("::1", 7, False)]),
    ],
)
def test_addresses(url: str, addresses: list[PulsarAddress]) -> None:
    assert parse(url) == addresses


def test_an_address_of_ipv6_is_written_with_brackets() -> None:
    assert str(PulsarAddress("::1", 7, False)) == "[::1]:7"
    assert str(PulsarAddress("h", 7, True)) == "h:7"


@pytest.mark.parametrize(
    "url", ["", "h:6650", "http://h:8080", "pulsar://", "pulsar://h:x", "pulsar://a@h:1", "pulsar://h:99999"]
)
def test_a_wrong_address_is_named(url: str) -> None:
    with pytest.raises(PulsarError) as caught:
        parse(url)
    assert caught.value.code == "InvalidAddress"
    assert not caught.value.retriable


def test_errors_have_the_brokers_names() -> None:
    assert server_error(16, "x").code == "ProducerBusy"
    assert server_error(16, "x").retriable
    assert not server_error(25, "x").retriable
    assert server_error(8, "x").code == server_error(7, "x").code == "ProducerBlockedQuotaExceededError"
    assert server_error(0, "java.lang.Exception: Attempted to use a fenced managed ledger").code == "ServiceNotReady"
    assert server_error(0, "something else").code == "UnknownError"
    assert server_error(999, "new").code == "ServerError999"
    assert str(PulsarError("Timeout", "too late")) == "Timeout: too late"


@pytest.mark.parametrize("code", NOT_THERE)
def test_errors_of_the_codes_that_are_named_end_a_block_and_nothing_else(code: str) -> None:
    with Ignoring(*NOT_THERE):
        raise PulsarError(code)
    for other in (PulsarError("Timeout"), ValueError(code)):
        with pytest.raises(type(other)), Ignoring(*NOT_THERE):
            raise other
