"""The batches of a component that drains its input once (`run --once`), each of them a job of Spark.

Owns: the thread on which one batch follows another, and how their job is broken off.
Must not know: how batches are planned, what their tasks do, when the input is drained.

A streaming query of a Python source has a process that plans, which Spark starts for it alone. That takes a second,
which matters if all else takes two, and there is no stream: the driver knows when all is done. A job is of the same
source, whose `read()` is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from kop.errors import without_frames
from kop.spark.mesh.share import Share

IN_BATCH: Final = "Processing new data"
"""The message in the status of a query while a batch runs: Spark's, for streaming queries."""
_BETWEEN: Final = "Waiting for records"
LOOK_SECONDS: Final = 0.05
"""The seconds between two looks for records."""
END_SECONDS: Final = 5.0
"""The seconds that a stop waits for the job that it has broken off."""


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


class DrainQuery:
    """The batches of a component, until `stop` or the first that fails. It has what the driver of a mesh uses of
    Spark's StreamingQuery, whose names are therefore its own. For any thread.
    """

    def __init__(
        self,
        context: Any,
        name: str,
        new_planner: Callable[[], DrainPlanner],
        run: Callable[[Sequence[Share]], None],
        may_plan: Callable[[], bool],
    ) -> None:
        """Begin. `context` is the SparkContext; `name` names the jobs, for people and to break them off. `run` runs a
        batch of these shares, and returns at its end; `may_plan` says if another one may begin.
        """
        self._context = context
        self._name = name
        self._new_planner = new_planner
        self._run_batch = run
        self._may_plan = may_plan
        self._over = threading.Event()
        self._changing = threading.Lock()
        self._is_in_batch = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="kop-mesh-drain", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:
        """True until `stop`, or until a batch has failed."""
        return self._thread.is_alive()

    @property
    def status(self) -> Mapping[str, Any]:
        """The state, of which there is the message alone."""
        return {"message": IN_BATCH if self._is_in_batch else _BETWEEN}

    def exception(self) -> Exception | None:
        """Return the error with which a batch has failed; None if none has."""
        return self._failure

    def stop(self) -> None:
        """Begin no further batch, break the present one off, and wait for that, for 5 s at most."""
        with self._changing:
            self._over.set()
            is_in_batch = self._is_in_batch
        if is_in_batch:
            self._context.cancelJobGroup(self._name)
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        planner: DrainPlanner | None = None
        try:
            self._context.setJobGroup(self._name, self._name, True)
            planner = self._new_planner()
            while not self._over.is_set():
                if not (self._may_plan() and planner.has_work(0)):
                    self._over.wait(LOOK_SECONDS)
                elif self._may_begin():
                    self._run_batch(planner.shares())
                    self._is_in_batch = False
        except Exception as error:
            self._failure = without_frames(error)
        finally:
            self._is_in_batch = False
            if planner is not None:
                with suppress(Exception):
                    planner.close()

    def _may_begin(self) -> bool:
        """Note that a batch begins; return False if there was a stop."""
        with self._changing:
            self._is_in_batch = not self._over.is_set()
            return self._is_in_batch
