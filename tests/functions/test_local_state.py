"""The state of a function in its process: what calls change, the copy in memory and file, entries of the changelog."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kop.functions.state import ForeignEntryError, LocalState, StateChanges, StateError, Value

COUNTER = [("kop.state", b"counter")]


def changes(local: LocalState, partition: int = 0) -> StateChanges:
    return StateChanges(local.partition(partition))


def flushed(local: LocalState) -> dict[tuple[int, bytes], bytes | None]:
    """What a flush writes; each key may be there once."""
    entries = [(number, entry) for number, entry in local.flush()]
    written = {(number, key): value for number, (key, value, _) in entries}
    assert len(written) == len(entries)
    return written


def restored(local: LocalState, other: LocalState) -> None:
    """Write what has changed in one into another."""
    for offset, (number, (key, value, headers)) in enumerate(list(local.flush())):
        other.restore(number, [(offset, 0, key, value, headers)])


def test_counters_and_values() -> None:
    local = LocalState()
    call = changes(local)
    assert (call.get_amount("n"), call.get_value("v")) == (None, None)
    call.incr("n", 2)
    call.incr("n", -5)
    call.put("v", "ä")
    call.put("w", b"\xff")
    call.put("gone", b"x")
    call.delete_key("gone")
    assert (call.get_amount("n"), call.get_value("v"), call.get_value("w")) == (-3, "ä".encode(), b"\xff")
    call.apply()
    assert flushed(local) == {
        (0, b"n"): (-3).to_bytes(8, "big", signed=True),
        (0, b"v"): "ä".encode(),
        (0, b"w"): b"\xff",
        (0, b"gone"): None,
    }
    assert flushed(local) == {}
    later = changes(local)
    assert (later.get_amount("n"), later.get_value("n")) == (-3, b"\xff" * 7 + b"\xfd")
    assert (later.get_value("v"), later.get_value("gone")) == ("ä".encode(), None)


def test_nothing_of_a_call_counts_until_it_is_applied() -> None:
    local = LocalState()
    changes(local).incr("n", 1)
    failed = changes(local)
    failed.incr("n", 1)
    failed.put("v", "x")
    assert flushed(local) == {}
    assert changes(local).get_amount("n") is None


def test_calls_at_the_same_time_lose_no_amounts() -> None:
    local = LocalState()
    calls = [changes(local) for _ in range(10)]
    for call in calls:
        call.incr("n", 1)
    for call in calls[:-1]:
        call.apply()
    assert changes(local).get_amount("n") == 9


def test_changes_that_no_longer_fit_are_told_before_they_are_applied() -> None:
    local = LocalState()
    call, other = changes(local), changes(local)
    call.incr("n", 2**62)
    call.check()
    other.incr("n", 2**62)
    other.apply()
    with pytest.raises(StateError, match="has no room in 8 bytes"):
        call.check()
    other = changes(local)
    other.put("n", "x")
    other.apply()
    with pytest.raises(StateError, match="'n' is a value of put_state"):
        call.check()


def test_a_counter_that_is_deleted_begins_anew() -> None:
    local = LocalState()
    call = changes(local)
    call.incr("n", 5)
    call.apply()
    call = changes(local)
    call.incr("n", 1)
    call.delete_key("n")
    assert call.get_amount("n") is None
    call.incr("n", 7)
    assert call.get_amount("n") == 7
    call.apply()
    assert flushed(local) == {(0, b"n"): bytes(7) + b"\x07"}


@pytest.mark.parametrize(
    ("use", "error", "told"),
    [
        (lambda call: call.incr("v", 1), StateError, "'v' is a value of put_state"),
        (lambda call: call.get_amount("v"), StateError, "'v' is a value of put_state"),
        (lambda call: call.incr("n", 2**63 - 1), StateError, "has no room in 8 bytes"),
        (lambda call: call.incr("new", -(2**63) - 1), StateError, "has no room in 8 bytes"),
        (lambda call: call.put("v", 5), TypeError, "takes a str or bytes, not a int"),
        (lambda call: call.incr("n", 1.5), TypeError, "float"),
        (lambda call: call.put("v", bytes(900_000)), StateError, "880000 are the most"),
        (lambda call: call.put("\udc80", b""), UnicodeEncodeError, "surrogates"),
        (lambda call: call.incr("\udc80", 1), UnicodeEncodeError, "surrogates"),
    ],
)
def test_what_is_refused(use: Any, error: type[Exception], told: str) -> None:
    local = LocalState()
    call = changes(local)
    call.put("v", "x")
    call.incr("n", 1)
    call.apply()
    with pytest.raises(error, match=told):
        use(changes(local))


def test_partitions_have_nothing_in_common() -> None:
    local = LocalState()
    for number in (3, 1):
        call = changes(local, number)
        call.incr("n", number)
        call.apply()
    assert flushed(local) == {(3, b"n"): bytes(7) + b"\x03", (1, b"n"): bytes(7) + b"\x01"}
    assert changes(local, 0).get_amount("n") is None


@pytest.mark.parametrize("limits", [(50, 1 << 20), (100_000, 10_000)])
def test_a_copy_that_has_no_room_in_memory_is_the_same(limits: tuple[int, int]) -> None:
    """The same changes as to a dict, in batches, with restores in between."""
    chance = random.Random(7)
    local, model = LocalState(*limits), dict[str, Value | None]()
    log: list[Any] = []
    for batch in range(60):
        for _ in range(30):
            call, key = changes(local), f"k{chance.randrange(300)}"
            kind = chance.choice(["incr", "put", "delete", "failed"])
            if kind == "incr" and not isinstance(model.get(key), bytes):
                call.incr(key, batch)
                call.apply()
                model[key] = (model.get(key) or 0) + batch  # type: ignore[operator]
            elif kind == "put":
                call.put(key, value := chance.randbytes(chance.randrange(50)))
                call.apply()
                model[key] = value
            elif kind == "delete":
                call.delete_key(key)
                call.apply()
                model[key] = None
            elif kind == "failed":
                call.put(key, b"never")
        log += local.flush()
        state = local.partition(0)
        assert len(state.values) <= limits[0]
        assert state.bytes_in_memory() <= limits[1]
        if batch % 20 == 10:
            local.close()
            local = LocalState(*limits)
            for number, (entry_key, value, headers) in log:
                local.restore(number, [(0, 0, entry_key, value, headers)])
    for key, expected in model.items():
        assert changes(local).get(key) == expected
    local.close()


def test_marks_of_windows_are_no_entries_of_users() -> None:
    local, other = LocalState(), LocalState()
    local.partition(0).set_mark(b"\xffw", b"{}")
    restored(local, other)
    assert other.partition(0).marks == {b"\xffw": b"{}"}
    assert other.partition(0).values == {}
    other.partition(0).set_mark(b"\xffw", b"{}")
    assert flushed(other) == {}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ((7, 0, b"k", b"5", []), "offset 7 has no key, or no header kop.state"),
        ((7, 0, None, b"5", COUNTER), "offset 7 has no key"),
        ((7, 0, b"k", b"5", [("kop.state", b"other")]), "with a kind that is known"),
        ((7, 0, b"k", b"5", [("kop.state", None)]), "with a kind that is known"),
        ((7, 0, b"k", b"5", COUNTER), "offset 7 has 1 bytes, and a counter has 8"),
        ((7, 0, b"k\xff", bytes(8), COUNTER), "the key of offset 7 is no UTF-8"),
        ((7, 0, b"\xffk", bytes(8), COUNTER), "a key that no counter has"),
        ((7, 0, b"k", b"", [("kop.state", b"mark")]), "a key that no mark has"),
    ],
)
def test_records_of_others_are_refused(record: Any, told: str) -> None:
    with pytest.raises(ForeignEntryError, match=told):
        LocalState().restore(0, [record])
