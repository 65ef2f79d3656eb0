"""The data source of components as PySpark sees it: a batch is planned, and its tasks work.

Owns: the numbers of batches, and what a query of Spark knows of a component: how to reach its driver.
Must not know: how tasks work, how batches are planned, what a mesh is.

An offset of Spark is the number of a batch and says nothing about records: where each partition is read on is what the
groups of the functions have committed, and nothing else.

For a stream, Spark starts a Python process for each query, which only plans: it asks the driver, so it needs no client
of the server, whose import takes a quarter of a second. For a batch, the driver has planned before.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from kop import clock
from kop.spark.mesh.link import PlanLink
from kop.spark.mesh.share import Share

if TYPE_CHECKING:
    from kop.spark.mesh.component import Work

NAME: Final = "kop-mesh"
WORK: Final = "kop.mesh.secret.work"
"""The option that has the work; Spark shows no value of an option whose name has `secret` in it."""
COLUMNS: Final = "component string, function string, received long, processed long, exceptions long"


@dataclass(frozen=True)
class _ComponentQuery:
    """A component as its query knows it."""

    component: str
    """The name of the component within its mesh."""
    hub: tuple[str, int]
    """The host and port of the driver."""
    token: str
    work: bytes
    """The pickled work of the component. Only tasks load it, and with it the modules of its classes."""
    shares: tuple[Share, ...]
    """What the tasks of its one batch have; empty for a stream, whose batches are planned one by one."""


def encode(work: Work, shares: Sequence[Share] = ()) -> str:
    """Return the work of a component as text, for the option of `format("kop-mesh")` that has it; for a batch with the
    `shares` of its tasks.
    """
    query = _ComponentQuery(work.component.name, work.hub, work.token, pickle.dumps(work), tuple(shares))
    return base64.b64encode(pickle.dumps(query)).decode()


class SharePartition(InputPartition):
    """A task in Spark's terms: the share of a batch that one task has."""

    def __init__(self, share: Share) -> None:
        self.value = share


def _rows(query: _ComponentQuery, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
    """Run a task: call the functions with records until the batch ends, then yield a row for each function with what
    the task has counted: component, function, received, processed, exceptions.
    """
    from kop.spark.mesh.task import run_task  # noqa: PLC0415 (the process that plans does without it)

    work: Work = pickle.loads(query.work)
    for row in run_task(work, partition.value):
        exceptions = row["user_exceptions"] + row["system_exceptions"]
        yield query.component, row["function"], row["received"], row["processed"], exceptions


class MeshReader(DataSourceStreamReader):
    """The reader of one component's stream."""

    def __init__(self, query: _ComponentQuery) -> None:
        self._query = query
        self._driver: PlanLink | None = None
        self._last = 0

    def _plan(self) -> PlanLink:
        if self._driver is None:
            self._driver = PlanLink(self._query.hub, self._query.token, self._query.component)
        return self._driver

    def initialOffset(self) -> dict[str, int]:
        """Return the offset of Spark before the first batch, the batch number 0."""
        return {"n": 0}

    def latestOffset(self, *_limit: Any) -> dict[str, int]:
        """Return the number of a new batch (the wall clock, in ms) if there are records to process, which Spark then
        plans; else that of the last batch, so that Spark plans none. The driver waits up to 0.5 s for records.
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
        """Run a task, and yield its counts."""
        return _rows(self._query, partition)

    def stop(self) -> None:
        """Close the connection to the driver by which batches were planned."""
        if self._driver is not None:
            self._driver.close()


class MeshBatchReader(DataSourceReader):
    """The reader of one batch of a component, which the driver has planned."""

    def __init__(self, query: _ComponentQuery) -> None:
        self._query = query

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the batch, each with its input partitions."""
        return [SharePartition(share) for share in self._query.shares]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Run a task, and yield its counts."""
        return _rows(self._query, partition)


class MeshSource(DataSource):
    """`format("kop-mesh")`: a component as a stream of counts, or as those of one batch."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns of counts."""
        return COLUMNS

    def streamReader(self, schema: Any) -> MeshReader:
        """Return the reader of the component that is in the options; `schema` is not needed."""
        return MeshReader(self._query())

    def reader(self, schema: Any) -> MeshBatchReader:
        """Return the reader of the batch that is in the options; `schema` is not needed."""
        return MeshBatchReader(self._query())

    def _query(self) -> _ComponentQuery:
        options = {name.lower(): value for name, value in self.options.items()}
        query: _ComponentQuery = pickle.loads(base64.b64decode(options[WORK]))
        return query
