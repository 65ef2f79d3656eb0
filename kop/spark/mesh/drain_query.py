"""The batches of a component that drains its input once (`run --once`), each of them a job of Spark.

Owns: the thread on which one batch follows another, and how their job is broken off.
Must not know: how batches are planned, what their tasks do, when the input is drained.

A streaming query of a Python source has a process that plans, which Spark starts for it alone. That takes a second, and
nothing is a stream here: the driver knows when all is done. A job reads the same source, by the same `read()`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from kop import clock
from kop.client.errors import ClientError
from kop.errors import without_frames
from kop.spark.mesh.share import Share

log = logging.getLogger(__name__)

IN_BATCH: Final = "Processing new data"
"""The message in the status of a query while a batch runs: Spark's, for streaming queries."""
_BETWEEN: Final = "Waiting for records"
"""The message at all other times."""
LOOK_SECONDS: Final = 0.05
"""The seconds until the second look for records; each further one takes twice as long, until a batch runs."""
MOST_LOOK_SECONDS: Final = 0.5
"""The most seconds between two looks: with `once`, components wait for each other."""
END_SECONDS: Final = 5.0
"""The seconds that a stop waits for the job that it breaks off."""
IDLE_END_SECONDS: Final = 0.5
"""The seconds that a stop waits if there is no job: nothing can begin any more."""
_CANCEL_SECONDS: Final = 0.1
"""The seconds between two tries to break a job off: it may be on its way to Spark still."""


class DrainPlanner(Protocol):
    """Plans batches; see `kop.spark.mesh.planning.Planner`."""

    def has_work(self, wait_ms: int = ...) -> bool:
        """Return if a batch is to be planned."""
        raise NotImplementedError

    def shares(self) -> list[Share]:
        """Return what the tasks of a batch have."""
        raise NotImplementedError

    def close(self) -> None:
        """Close its connections."""
        raise NotImplementedError


def threads_are_pinned() -> bool:
    """Return True if each thread of Python has one of the JVM, as PySpark has it by default (PYSPARK_PIN_THREAD). If
    not, a job group may be that of anybody's jobs.
    """
    return os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


class DrainQuery:
    """The batches of a component, until `stop` or the first that fails. It has what the driver of a mesh uses of
    Spark's StreamingQuery, whose names are therefore its own. For any thread.
    """

    def __init__(
        self,
        context: Any,
        name: str,
        new_planner: Callable[[], DrainPlanner],
        job_of: Callable[[Sequence[Share]], Callable[[], None]],
        may_begin: Callable[[], bool],
    ) -> None:
        """Begin. `context` is the SparkContext; `name` names the jobs, for people and to break them off. `job_of` makes
        the job of a batch with these shares: called, it runs the batch, and returns at its end. `may_begin` says if
        another batch may begin.
        """
        self._context = context
        self._name = name
        self._new_planner = new_planner
        self._job_of = job_of
        self._may_begin = may_begin
        self._has_group = threads_are_pinned()
        self._over = threading.Event()
        self._changing = threading.Lock()
        self._is_in_batch = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kop-mesh-drain", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:
        """True if the thread of batches still runs. ClientError if it has failed, and Spark itself is gone: no further
        attempt would be of use.
        """
        if not self._thread.is_alive() and self._failure is not None:
            try:
                self._context.defaultParallelism  # noqa: B018 - asks the JVM
            except Exception as error:
                told = f"run the mesh again: Spark has ended, and what it printed last may say why ({error!r})"
                raise ClientError(told) from None
        return self._thread.is_alive()

    @property
    def status(self) -> Mapping[str, Any]:
        """The state of the query; only its message is given."""
        return {"message": IN_BATCH if self._is_in_batch else _BETWEEN}

    def exception(self) -> BaseException | None:
        """Return the error with which a batch, or its planning, has failed; None if none has."""
        return self._failure

    def stop(self) -> None:
        """Begin no further batch, break the present one off, and wait for that, for 5 s at most."""
        with self._changing:
            self._over.set()
            is_in_batch = self._is_in_batch
        end = clock.monotonic() + (END_SECONDS if is_in_batch else IDLE_END_SECONDS)
        while self._thread.is_alive() and clock.monotonic() < end:
            if self._has_group and self._is_in_batch:
                self._context.cancelJobGroup(self._name)
            self._thread.join(_CANCEL_SECONDS)
        if is_in_batch and self._thread.is_alive():
            log.warning(
                "a job of %s goes on in Spark, though it was broken off: its tasks end by themselves", self._name
            )

    def _run(self) -> None:
        planner: DrainPlanner | None = None
        try:
            if self._has_group:
                self._context.setJobGroup(self._name, self._name, True)
            planner = self._new_planner()
            seconds = LOOK_SECONDS
            while not self._over.is_set():
                if self._may_begin() and planner.has_work(0):
                    job = self._job_of(planner.shares())
                    if self._begins():
                        job()
                        self._is_in_batch = False
                    seconds = LOOK_SECONDS
                else:
                    self._over.wait(seconds)
                    seconds = min(2 * seconds, MOST_LOOK_SECONDS)
        except BaseException as error:
            log.info("a batch of %s has failed", self._name, exc_info=True)
            self._failure = without_frames(error)
        finally:
            self._is_in_batch = False
            if planner is not None:
                with suppress(Exception):
                    planner.close()

    def _begins(self) -> bool:
        """Note that a batch begins; return False if there was a stop, or none may begin any more."""
        with self._changing:
            self._is_in_batch = not self._over.is_set() and self._may_begin()
            return self._is_in_batch
