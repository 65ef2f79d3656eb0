"""The table of fetch sessions by itself: how much memory it may take, and who goes for whom, in simulated time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import pytest

from kop.errors import ErrorCode, PeerError
from kop.handlers import fetch_sessions
from kop.handlers.fetch_sessions import EVICT_AFTER_MS, FetchSession, FetchSessions
from kop.metrics import Metrics
from kop.wire.fetch import FetchCall, FetchPartition

NAME = "t" * 31
SIZE = 320 + 2 * (49 + len(NAME))
"""The bytes that a partition of the topic counts."""


def call(
    partitions: Iterable[int], session_id: int = 0, epoch: int = 0, *, name: str = NAME, forgotten: Iterable[int] = ()
) -> FetchCall:
    wanted = [FetchPartition(name, partition, 0, 1000) for partition in partitions]
    return FetchCall(-1, 0, 1, 1000, 0, session_id, epoch, wanted, [(name, partition) for partition in forgotten])


class Table:
    """A table of sessions and its clock."""

    def __init__(self, slots: int = 100) -> None:
        self.metrics = Metrics()
        self.sessions = FetchSessions(slots, self.metrics)
        self.now = 1_000_000

    def ask(self, asked: FetchCall) -> FetchSession | None:
        return self.sessions.resolve(asked, by_id=False, now_ms=self.now, owner="User:a")

    def begin(self, partitions: int, name: str = NAME) -> int:
        """Begin a session; return its id, 0 if there is none."""
        session = self.ask(call(range(partitions), name=name))
        return 0 if session is None else session.session_id

    def go_on(self, session_id: int, epoch: int, partitions: Iterable[int] = (), forgotten: Iterable[int] = ()) -> int:
        """Ask by a session; return its id, or 0 if it has ended by that."""
        session = self.ask(call(partitions, session_id, epoch, forgotten=forgotten))
        return 0 if session is None else session.session_id

    def is_there(self, session_id: int) -> bool:
        with pytest.raises(PeerError) as raised:
            self.go_on(session_id, 1000)
        return raised.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    @property
    def evicted(self) -> float | None:
        return self.metrics.registry.get_sample_value("kop_fetch_sessions_evicted_total")


@pytest.fixture(autouse=True)
def room_for_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_BYTES", 10 * SIZE)


def test_a_session_without_room_is_none_and_leaves_nothing() -> None:
    table = Table()
    assert table.begin(11) == 0
    first = table.begin(6)
    assert first
    assert table.begin(5) == 0
    second = table.begin(4)
    assert second
    assert table.begin(1) == 0
    assert len(table.sessions) == 2
    table.go_on(first, -1)
    assert table.begin(6), "an end makes room"
    assert table.evicted == 0


def test_unused_sessions_go_for_a_new_one_as_many_as_it_takes() -> None:
    table = Table()
    ids = [table.begin(3) for _ in range(3)]
    table.now += EVICT_AFTER_MS - 1
    assert table.begin(2) == 0
    assert table.go_on(ids[0], 1) == ids[0], "it was used"
    table.now += 1
    assert table.begin(11) == 0
    assert [table.is_there(each) for each in ids] == [True] * 3, "nobody goes for what has no room at all"
    assert table.begin(7)
    assert [table.is_there(each) for each in ids] == [True, False, False]
    assert table.evicted == 2
    assert table.begin(1) == 0


def test_a_session_that_grows_ends_if_there_is_no_room() -> None:
    table = Table()
    grows, other = table.begin(4), table.begin(4)
    assert table.go_on(grows, 1, range(6)) == grows
    assert table.go_on(grows, 2, range(6)) == grows, "partitions that it has are no more"
    assert table.go_on(grows, 3, [6], forgotten=[0]) == grows
    assert table.go_on(grows, 4, [7]) == 0
    assert [table.is_there(each) for each in (grows, other)] == [False, True]
    assert table.begin(6), "its partitions count no more"
    table.now += EVICT_AFTER_MS
    last = table.begin(4)
    assert table.go_on(last, 1, range(10)) == last, "unused ones go for it"
    assert len(table.sessions) == 1


def test_a_session_that_forgets_makes_room() -> None:
    table = Table()
    first = table.begin(10)
    assert table.go_on(first, 1, forgotten=[*range(4), 99]) == first
    assert table.begin(5) == 0
    assert table.begin(4)
    assert table.go_on(first, 2, forgotten=range(4, 10)) == 0
    assert table.begin(6)


def test_long_names_count() -> None:
    table = Table()
    assert table.begin(1, name="t" * 10 * SIZE) == 0
    assert table.begin(1, name="t" * 2 * SIZE)
    assert table.begin(6) == 0


def test_slots_count_too() -> None:
    table = Table(slots=1)
    assert table.begin(1)
    assert table.begin(1) == 0
    table.now += EVICT_AFTER_MS
    assert table.begin(1)
    assert len(table.sessions) == 1
    assert Table(slots=0).begin(1) == 0


def test_partitions_take_what_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_BYTES", 1 << 30)
    table = Table()
    tracemalloc.start()
    try:
        first = table.ask(call(range(1000, 21_000)))
        assert first is not None
        table.go_on(first.session_id, 1, range(1000, 21_000))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.3 * first.size < taken < first.size
