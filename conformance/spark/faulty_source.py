"""kop's own sink, which stops at points where the crash test is to kill something.

Owns: the points, and how a process waits at one. FOLDER/plan/BATCH holds `POINT VICTIM`; who comes to that point in
task 0 of that batch moves the file to FOLDER/at/VICTIM and waits until it is gone: then the victim was killed and is
back, or the victim was this process. A worker kills itself: nobody else knows which process it is.

| point | reached by | when |
|---|---|---|
| produced | task 0 | its rows are written, its transaction is open |
| marked | task 0 | its marker is in the transaction, too |
| ended | task 0 | its transaction has ended, Spark does not know it |
| batch | the driver | all tasks have ended, Spark has not written down that the batch is done |

With `faults.ignoreMarkers` tasks are blind to their markers: the crash test has to find duplicates then.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource

from kop.client.write_client import WriteClient
from kop.spark import writer
from kop.spark.exactly_once import Marker, SinkTask
from kop.spark.producing import ClientTransactions, ProduceSettings


class Faults:
    """Where a process stops; it is pickled."""

    def __init__(self, folder: str, ignore_markers: bool) -> None:
        self.folder, self.ignore_markers = folder, ignore_markers

    def reach(self, point: str, batch: int) -> None:
        """Wait here where the plan says so."""
        planned = Path(self.folder, "plan", str(batch))
        try:
            there, victim = planned.read_text().split()
        except FileNotFoundError:
            return
        if there != point:
            return
        at = Path(self.folder, "at", victim)
        planned.rename(at)
        if victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        while at.exists():
            time.sleep(0.02)  # a file does not say that it is gone


class FaultyTransactions(ClientTransactions):
    """Transactions of a task that stop at the points of task 0."""

    def __init__(self, client: WriteClient, task: SinkTask, settings: ProduceSettings, *, faults: Faults) -> None:
        super().__init__(client, task, settings)
        self.task = task
        self.faults = faults

    def _reach(self, point: str) -> None:
        if self.task.task == 0:
            self.faults.reach(point, self.task.batch)

    def read_markers(self) -> Mapping[int, tuple[int, str]]:
        markers = super().read_markers()
        if self.faults.ignore_markers:
            batch = self.task.batch
            return {self.task.task: (batch, Marker(batch, self.task.tasks, 0, "").metadata())}
        return markers

    def produce(self, rows: Iterable[Any]) -> None:
        super().produce(rows)
        self._reach("produced")

    def commit_marker(self, offset: int, metadata: str) -> None:
        super().commit_marker(offset, metadata)
        self._reach("marked")

    def end(self) -> None:
        super().end()
        self._reach("ended")


Base: Any = writer.ArrowStreamWriter if writer.HAS_ARROW_STREAMS else writer.RowStreamWriter


class FaultyWriter(Base):
    """kop's writer with these transactions."""

    def __init__(self, write: writer.Write, faults: Faults) -> None:
        super().__init__(dataclasses.replace(write, transactions=functools.partial(FaultyTransactions, faults=faults)))
        self.faults = faults

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.faults.reach("batch", batchId)
        super().commit(messages, batchId)


class FaultySource(DataSource):
    """`format("kop-with-faults")`: writes streams, nothing else."""

    @classmethod
    def name(cls) -> str:
        return "kop-with-faults"

    def streamWriter(self, schema: Any, overwrite: bool) -> FaultyWriter:
        options = {name.lower(): value for name, value in self.options.items()}
        faults = Faults(options.pop("faults.folder"), options.pop("faults.ignoremarkers") == "true")
        return FaultyWriter(writer.make_write(options, schema, streaming=True), faults)
