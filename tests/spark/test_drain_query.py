"""The batches of a component that drains its input: one behind the other, until a stop or a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.waiting import wait_until

from kop.client.errors import ClientError
from kop.spark.mesh.drain_query import IN_BATCH, DrainQuery
from kop.spark.mesh.share import Share


class ContextOfTest:
    """Notes what is asked of a SparkContext."""

    def __init__(self) -> None:
        self.is_gone = False
        self.groups: list[tuple[str, str, bool]] = []
        self.cancelled: list[str] = []
        self.on_cancel: Callable[[], None] = lambda: None

    @property
    def defaultParallelism(self) -> int:
        """The number of cores, for which the JVM is asked."""
        if self.is_gone:
            raise ConnectionRefusedError("there is no JVM")
        return 2

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        """Note the group of the jobs of this thread."""
        self.groups.append((group, description, interruptOnCancel))

    def cancelJobGroup(self, group: str) -> None:
        """Note that the jobs of a group are broken off."""
        self.cancelled.append(group)
        self.on_cancel()


class PlannerOfTest:
    """Plans as many batches as it is told."""

    def __init__(self) -> None:
        self.left = 0
        self.on_shares: Callable[[], None] = lambda: None
        self.waited: set[int] = set()
        self.is_closed = False

    def has_work(self, wait_ms: int = 500) -> bool:
        """Return if a batch is left."""
        self.waited.add(wait_ms)
        return self.left > 0

    def shares(self) -> list[Share]:
        """Take a batch."""
        self.on_shares()
        self.left -= 1
        return [Share(self.left, (("in", 0),), {("in", 0): 5})]

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


class Drained:
    """A query, and what it does."""

    def __init__(self) -> None:
        self.context = ContextOfTest()
        self.planner = PlannerOfTest()
        self.may_begin = True
        self.asked = 0
        self.batches: list[int] = []
        self.work: Callable[[], None] = lambda: None
        self._made: list[DrainQuery] = []

    def begin(self, new_planner: Callable[[], Any] | None = None) -> DrainQuery:
        """Begin the query."""
        planner = new_planner or (lambda: self.planner)
        self._made.append(DrainQuery(self.context, "tenant/mesh/part", planner, self._job_of, self._may_begin))
        return self._made[-1]

    def _may_begin(self) -> bool:
        self.asked += 1
        return self.may_begin

    def _job_of(self, shares: Sequence[Share]) -> Callable[[], None]:
        def job() -> None:
            self.batches.append(shares[0].number)
            self.work()

        return job

    def end(self) -> None:
        """Stop what was begun."""
        for query in self._made:
            query.stop()


@pytest.fixture
def drained() -> Iterator[Drained]:
    made = Drained()
    yield made
    made.end()


def test_one_batch_follows_another_until_a_stop(drained: Drained) -> None:
    drained.planner.left = 3
    query = drained.begin()
    wait_until(lambda: drained.batches == [2, 1, 0], "three batches")
    wait_until(lambda: query.status["message"] != IN_BATCH, "the end of the last one")
    assert query.isActive
    drained.planner.left = 1
    wait_until(lambda: len(drained.batches) == 4, "a batch that came later")
    assert drained.context.groups == [("tenant/mesh/part", "tenant/mesh/part", True)]
    assert drained.planner.waited == {0}, "no server holds a request while the driver may end the mesh"
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert drained.planner.is_closed


def test_no_batch_is_planned_while_none_may_be(drained: Drained) -> None:
    drained.planner.left, drained.may_begin = 1, False
    query = drained.begin()
    wait_until(lambda: drained.asked > 2, "some looks")
    query.stop()
    assert not drained.planner.waited
    assert not drained.batches


def test_a_batch_that_fails_ends_the_query_with_its_error_and_without_frames(drained: Drained) -> None:
    def fail() -> None:
        raise ValueError("the job failed")

    drained.planner.left, drained.work = 2, fail
    query = drained.begin()
    wait_until(lambda: not query.isActive, "the end")
    error = query.exception()
    assert str(error) == "the job failed"
    assert error is not None
    assert error.__traceback__ is None
    assert drained.batches == [1]
    assert query.status["message"] != IN_BATCH
    assert drained.planner.is_closed


def test_a_planner_that_cannot_be_made_ends_the_query(drained: Drained) -> None:
    def none() -> Any:
        raise OSError("no server")

    query = drained.begin(none)
    wait_until(lambda: not query.isActive, "the end")
    assert str(query.exception()) == "no server"


def test_a_stop_breaks_off_the_batch_that_runs_and_begins_no_other(drained: Drained) -> None:
    cancelled = threading.Event()

    def work() -> None:
        cancelled.wait(10.0)

    drained.context.on_cancel = cancelled.set
    drained.planner.left, drained.work = 9, work
    query = drained.begin()
    wait_until(lambda: drained.batches, "the batch")
    assert query.status["message"] == IN_BATCH
    query.stop()
    assert {*drained.context.cancelled} == {"tenant/mesh/part"}
    assert not query.isActive
    assert len(drained.batches) == 1


def test_a_stop_between_batches_breaks_nothing_off(drained: Drained) -> None:
    query = drained.begin()
    wait_until(lambda: drained.planner.waited, "a look")
    query.stop()
    query.stop()
    assert not drained.context.cancelled


def test_a_job_that_is_on_its_way_to_spark_is_broken_off_once_it_is_there(drained: Drained) -> None:
    cancelled = threading.Event()

    def on_cancel() -> None:
        if len(drained.context.cancelled) > 2:
            cancelled.set()

    def work() -> None:
        cancelled.wait(10.0)

    drained.context.on_cancel = on_cancel
    drained.planner.left, drained.work = 1, work
    query = drained.begin()
    wait_until(lambda: drained.batches, "the batch")
    query.stop()
    assert not query.isActive


@pytest.mark.parametrize("what", ["stop", "end"])
def test_a_batch_that_is_planned_while_no_further_one_may_begin_is_left(drained: Drained, what: str) -> None:
    planning, go_on = threading.Event(), threading.Event()

    def on_shares() -> None:
        planning.set()
        go_on.wait(10.0)

    drained.planner.left, drained.planner.on_shares = 1, on_shares
    query = drained.begin()
    assert planning.wait(10.0)
    if what == "stop":
        query.stop()
        assert query.isActive, "nobody waits for a server that is away"
    else:
        drained.may_begin = False
    go_on.set()
    wait_until(lambda: drained.planner.left == 0, "the plan")
    query.stop()
    assert not drained.batches
    assert not drained.context.cancelled


def test_a_failure_for_want_of_spark_is_no_failure_of_a_batch(drained: Drained) -> None:
    def fail() -> None:
        drained.context.is_gone = True
        raise ConnectionResetError("the JVM has ended")

    drained.planner.left, drained.work = 1, fail
    query = drained.begin()
    wait_until(lambda: query.exception() is not None, "the failure")

    def is_told() -> bool:
        try:
            return not query.isActive
        except ClientError:
            return True

    wait_until(is_told, "the end of the thread")
    with pytest.raises(ClientError, match=r"Spark has ended.*there is no JVM"):
        _ = query.isActive


def test_threads_that_are_not_pinned_have_no_group_of_jobs(drained: Drained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    go_on = threading.Event()

    def work() -> None:
        go_on.wait(10.0)

    drained.planner.left, drained.work = 1, work
    query = drained.begin()
    wait_until(lambda: drained.batches, "the batch")
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    go_on.set()
    stopper.join(10.0)
    assert not query.isActive
    assert not drained.context.groups
    assert not drained.context.cancelled, "it could be that of another one"
