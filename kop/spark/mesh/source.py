"""The data source of components as PySpark sees it: a batch is planned, and its tasks work.

Owns: the numbers of batches, which partitions each task has, when there is something to do.
Must not know: how tasks work, what a mesh is.

An offset of Spark is the number of a batch and says nothing about records: where each partition is read on is what the
groups of the functions have committed, and nothing else.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from kop import clock
from kop.spark.mesh.component import Share, Work
from kop.spark.mesh.planning import Planner

NAME: Final = "kop-mesh"
WORK: Final = "kop.mesh.secret.work"
"""The option that has the work; Spark shows no value of an option whose name has `secret` in it."""
COLUMNS: Final = "component string, function string, received long, processed long, exceptions long"


def encode(work: Work) -> str:
    """Return the work of a component as text, for the option of `format("kop-mesh")` that has it."""
    return base64.b64encode(pickle.dumps(work)).decode()


class SharePartition(InputPartition):
    """A task in Spark's terms: the share of a batch that one task has."""

    def __init__(self, share: Share) -> None:
        self.value = share


class MeshReader(DataSourceStreamReader):
    """The reader of one component's query."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._planner: Planner | None = None
        self._last = 0

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._work)
        return self._planner

    def initialOffset(self) -> dict[str, int]:
        """Return the offset of Spark before the first batch, the batch number 0."""
        return {"n": 0}

    def latestOffset(self, *_limit: Any) -> dict[str, int]:
        """Return the number of a new batch (the wall clock, in ms) if there are records to process, which Spark then
        plans; else that of the last batch, so that Spark plans none. Waits up to 0.5 s for records.
        """
        if self._plan().has_work():
            self._last = clock.wall_ms()
        return {"n": self._last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, each with its input partitions. `end` has the number of the batch, which counts
        as the last one from then on; `start` is not needed.
        """
        self._last = max(self._last, end["n"])
        return [SharePartition(share) for share in self._plan().shares()]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Run a task: call the functions with records until the batch ends, then yield a row for each function with
        what the task has counted: component, function, received, processed, exceptions.
        """
        from kop.spark.mesh.task import run_task  # noqa: PLC0415 (the driver plans without it)

        for row in run_task(self._work, partition.value):
            exceptions = row["user_exceptions"] + row["system_exceptions"]
            yield self._work.component.name, row["function"], row["received"], row["processed"], exceptions

    def stop(self) -> None:
        """Close the connections by which batches were planned."""
        if self._planner is not None:
            self._planner.close()


class MeshSource(DataSource):
    """`format("kop-mesh")`: a component as a stream of counts."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns of counts."""
        return COLUMNS

    def streamReader(self, schema: Any) -> MeshReader:
        """Return the reader of the component whose work is in the options; `schema` is not needed."""
        options = {name.lower(): value for name, value in self.options.items()}
        work: Work = pickle.loads(base64.b64decode(options[WORK]))
        return MeshReader(work)
