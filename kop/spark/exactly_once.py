"""The steps by which a task writes its records exactly once: one Kafka transaction, with the task's progress inside.

Owns: the order of the steps, the marker of a task, the digest by which a repeated task knows its own rows again.
Must not know: pyspark, how requests are sent (`TaskTransactions` says what is asked for), where rows come from.

A sink is named by `sink_id`. Task t of it has the transactional id `<sink_id>-<t>` and keeps its marker as the offset
that the consumer group `__kop.spark.<sink_id>` committed for partition t of the marker topic. The offset is the number
of the next batch; its metadata says what the task wrote last: how many tasks there were, how many rows it had and
their digest. The steps (KIP-98, KIP-447):

1. InitProducerId. It fences every earlier attempt of the task and aborts what that left open.
2. Only then OffsetFetch of the marker with require_stable. Read before the fence, an earlier attempt could still
   commit behind the answer.
3. A marker behind this batch: an earlier attempt has committed. The records are read once more without being written,
   and have to be the ones of the marker: if they are not, the batch does not give the same records each time, and
   neither writing nor skipping it would be right.
4. Else the records are produced, the marker is committed in the same transaction, and the transaction ends.

Spark's own commit of the batch does nothing, so a driver that dies loses nothing: each task of a repeated batch finds
out by its marker what is left to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kop.records.arrow import digest

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_PREFIX = "__kop.spark."
"""The prefix of the consumer groups that hold the markers of sinks; the gateway does not let their offsets expire."""
MARKER_TOPIC = "__kop_spark_markers"
"""The topic whose partitions the markers are committed for. It never holds a record."""
_DIGEST_BITS = 128


class SinkError(Exception):
    """An error for a write that cannot be done; the text says what to do about it. Trying again does not help."""


class Digest:
    """A digest of the rows of a task, whatever their order: a shuffle does not give them in the same order twice.

    It is the sum of a hash of each row, so a row that comes twice counts twice.
    """

    __slots__ = ("_sum", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, in the form of `kop.spark.sink_columns`, to the digest."""
        self._sum = (self._sum + digest(batch)) % (1 << _DIGEST_BITS)
        self.rows += batch.num_rows

    def counted(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of rows unchanged, and add each to the digest."""
        for batch in rows:
            self.add(batch)
            yield batch

    def text(self) -> str:
        """Return the digest of the rows so far as 32 hexadecimal digits."""
        return f"{self._sum:0{_DIGEST_BITS // 4}x}"


@dataclass(frozen=True, slots=True)
class Marker:
    """The progress of one task, kept as a committed offset with metadata: the next batch, and the rows that the task
    wrote last.
    """

    next_batch: int
    """The number of the batch after the one that was written: the committed offset."""
    tasks: int
    rows: int
    digest: str

    def metadata(self) -> str:
        """Return the metadata of the committed offset: about 80 bytes of JSON."""
        return json.dumps({"v": 1, "tasks": self.tasks, "rows": self.rows, "digest": self.digest})

    @classmethod
    def read(cls, offset: int, metadata: str) -> Marker:
        """Return the marker in a committed offset and its metadata. SinkError if the metadata are not in the form of
        this version: another program, or another version, committed them.
        """
        try:
            fields = json.loads(metadata)
            if fields["v"] != 1:
                raise ValueError(fields["v"])
            return cls(offset, int(fields["tasks"]), int(fields["rows"]), str(fields["digest"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"the marker of an exactly-once sink has metadata that this version does not read: {metadata!r}. "
                "Only the sink may commit to its group: give the sink another exactlyOnceId, or use the version that "
                "wrote the marker."
            ) from error


@dataclass(frozen=True, slots=True)
class SinkTask:
    """A task of a batch of an exactly-once sink."""

    sink_id: str
    batch: int
    task: int
    tasks: int
    """The number of tasks that write each batch; fixed for the life of the sink."""
    first_batch: int = 0
    """The number of the batch with which the sink began: in it markers are missing, in no later one."""

    @property
    def group(self) -> str:
        """The consumer group whose committed offsets are the markers of the sink."""
        return GROUP_PREFIX + self.sink_id

    @property
    def transactional_id(self) -> str:
        """The transactional id of the task, by which the transaction coordinator fences earlier attempts of it."""
        return f"{self.sink_id}-{self.task}"

    @property
    def name(self) -> str:
        """The text by which errors name the task."""
        return f"task {self.task} of {self.tasks} in batch {self.batch} of the exactly-once sink {self.sink_id!r}"


class TaskTransactions(Protocol):
    """The transactions of one task, as its client sends them. Every method returns when it is done, or raises."""

    def fence(self) -> None:
        """Send FindCoordinator and InitProducerId: fence earlier attempts of the task, and abort what they left
        open.
        """

    def read_markers(self) -> Mapping[int, tuple[int, str]]:
        """Return the committed markers of the sink by the number of the task: offset and metadata, as they were
        committed.

        The marker of this task is stable: no transaction holds another one. Those of other tasks may be missing.
        """

    def produce(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Write rows in the transaction; they are durable when this returns, but no reader of committed records sees
        them before `end`.
        """

    def commit_marker(self, offset: int, metadata: str) -> None:
        """Send AddOffsetsToTxn and TxnOffsetCommit: put the task's marker, the number of the next batch as `offset` and
        its metadata, into the transaction. It is committed by `end`, together with the rows.
        """

    def end(self) -> None:
        """Send EndTxn: commit the transaction, with the rows and the marker."""


class TaskOutcome(NamedTuple):
    """The outcome of a task that has ended well."""

    rows: int
    repeated: bool
    """True if an earlier attempt had committed the batch, so that nothing was written."""


def write_task(task: SinkTask, rows: Iterable[pa.RecordBatch], transactions: TaskTransactions) -> TaskOutcome:
    """Write the rows of a task exactly once, in one transaction with the task's marker, and return how many there were.
    If an earlier attempt has committed the batch (`repeated`), the rows are read and compared with what that wrote, and
    nothing is written.

    Raises SinkError if exactly once is impossible: other rows than before, another number of tasks, a lost marker. Any
    other exception leaves a transaction open that the next attempt aborts.
    """
    if not 0 <= task.task < task.tasks:
        raise SinkError(
            f"{task.name}: exactlyOnceTasks says that {task.tasks} tasks write each batch, and there are more. Write "
            f"df.repartition({task.tasks}, ...), or give a new sink (exactlyOnceId) a larger exactlyOnceTasks."
        )
    transactions.fence()
    markers = {number: Marker.read(*marker) for number, marker in transactions.read_markers().items()}
    _check(task, markers)
    marker = markers.get(task.task)
    seen = Digest()
    if marker is not None and marker.next_batch > task.batch:
        for batch in rows:
            seen.add(batch)
        if (seen.rows, seen.text()) != (marker.rows, marker.digest):
            raise SinkError(
                f"batch {task.batch} is not deterministic and was partly committed: {task.name} has {seen.rows} rows "
                f"now, and other rows, {marker.rows} of them, were committed before. Make the query give the same rows "
                "for the same input: no rand(), uuid() or limit without an order, and df.repartition(N, column) with "
                "a column whose values do not change. To give up the guarantee for this batch alone, give the sink "
                f"another exactlyOnceId and exactlyOnceFrom={task.batch}: the whole batch is then written again."
            )
        return TaskOutcome(seen.rows, repeated=True)
    transactions.produce(seen.counted(rows))
    written = Marker(task.batch + 1, task.tasks, seen.rows, seen.text())
    transactions.commit_marker(written.next_batch, written.metadata())
    transactions.end()
    return TaskOutcome(seen.rows, repeated=False)


def _check(task: SinkTask, markers: Mapping[int, Marker]) -> None:
    """Raise SinkError if the markers of the sink's tasks show that the sink was written otherwise: by another number of
    tasks, or up to a later batch than this one; or if the marker of this task is missing in a later batch than the
    first. Nothing is written yet.
    """
    for marker in markers.values():
        if marker.tasks != task.tasks:
            raise SinkError(
                f"{task.name}: the sink was written by {marker.tasks} tasks so far. A batch repeated by another "
                f"number of tasks would be written twice: go back to {marker.tasks} tasks. To change the number, stop "
                "the query after a whole batch, and give the sink another exactlyOnceId together with "
                "exactlyOnceFrom=<the next batch>."
            )
    own = markers.get(task.task)
    if own is None and task.batch > task.first_batch:
        raise SinkError(
            f"{task.name} has no marker of the batches before. Either they were written without exactly-once, or by "
            "fewer tasks, or the marker has expired (offsets.retention.minutes of the cluster; kop keeps markers), or "
            f"the topic {MARKER_TOPIC} was deleted. If no part of batch {task.batch} was written yet, begin here with "
            f"exactlyOnceFrom={task.batch}."
        )
    if own is not None and own.next_batch > task.batch + 1:
        raise SinkError(
            f"{task.name}: batches up to {own.next_batch - 1} were committed under this name already. Another query "
            "has the same exactlyOnceId, or the checkpoint is an older one: give each query and checkpoint an "
            "exactlyOnceId of its own."
        )
