"""The changelog of a function's state, and the state that comes from it: opened, restored, asked by other threads.

Owns: the name of the changelog and how the topic is made, which of its partitions belongs to a message, when state is
refused, questions of other threads.
Must not know: what a value is (`kop.functions.state`), how the transaction of a batch ends
(`kop.functions.committing`).

State is opened when a call uses it first, or at the start if its changelog is there. It is read after the fence, so
that nothing of an earlier instance comes behind the end that is read.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kop import clock
from kop.client.batches import StoredRecords
from kop.client.errors import ClientError
from kop.client.offsets import EARLIEST, LATEST, TopicPartition
from kop.client.read_client import OUT_OF_RANGE, FetchSettings, ReadClient
from kop.client.write_client import WriteClient
from kop.errors import without_frames
from kop.functions.reading import READ_COMMITTED
from kop.functions.spec import FunctionSpec
from kop.functions.state import (
    ForeignEntryError,
    LocalState,
    PartitionState,
    StateChanges,
    StateError,
    StateLostError,
    StateValue,
)
from kop.functions.writing import Outputs

PREFIX: Final = "__kop_functions_state."
CONFIGS: Final = {"cleanup.policy": "compact"}
ANSWER_SECONDS: Final = 30.0
"""The seconds that another thread waits for an answer."""
_NAME_BYTES: Final = 249
"""The most bytes of the name of a topic."""
_ESCAPES: Final = {".": "..d", "=": "..e", ":": "..c"}


def topic_of(spec: FunctionSpec) -> str:
    """Return the topic of a function's changelog: `__kop_functions_state.TENANT.NAMESPACE.NAME`, with `.partition`
    behind it if state belongs to partitions.

    In the three names a dot is `..d`, `=` is `..e` and `:` is `..c`, so no two functions have one changelog.
    """
    parts = (re.sub("[.=:]", lambda match: _ESCAPES[match[0]], part) for part in spec.fqfn.split("/"))
    return PREFIX + ".".join(parts) + (".partition" if spec.state_scope == "partition" else "")


@dataclass(slots=True)
class KeptState:
    """A copy of the state that outlives who used it: the next one reads on in the changelog."""

    local: LocalState
    positions: dict[int, int]
    """The offset up to which each partition of the changelog was read."""


class FunctionState:
    """The state of one instance. `query` and `put` are for any thread, the rest for the one that calls.

    `refused` says why there can be none, None if there can. `failed` is told of what ends the instance: a call that
    uses state which cannot be had must not be tried for ever. `patience` is how long at the moment an open transaction
    of another one is waited for. `wake` lets the thread that calls look for questions.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        partitions: Collection[TopicPartition],
        writer: WriteClient,
        new_reader: Callable[[], ReadClient],
        *,
        refused: str | None,
        failed: Callable[[BaseException], None],
        wake: Callable[[], None],
        patience: Callable[[], float],
        kept: KeptState | None = None,
    ) -> None:
        """`kept`: the copy of the state of these partitions that an earlier user of it has left (`detach`); everything
        of it must be in the changelog.
        """
        self._spec = spec
        self._by_partition = spec.state_scope == "partition"
        self._numbers = sorted({partition for _, partition in partitions}) if self._by_partition else [0]
        self._writer = writer
        self._new_reader = new_reader
        self._refused = refused or _refused(spec)
        self._failed = failed
        self._wake = wake
        self._patience = patience
        self._topic = topic_of(spec)
        self._local: LocalState | None = None
        self._kept = kept
        self._positions: dict[int, int] = {}
        self._questions: deque[_Question] = deque()
        self._unwritten: list[_Question] = []
        self._lock = threading.Lock()
        self._over = False

    @property
    def is_open(self) -> bool:
        """True once there is state: from then on it is written with each batch."""
        return self._local is not None

    def find(self) -> None:
        """Open the state, as `open` does, if its changelog is there."""
        if self._writer.sees(self._topic):
            self.open()

    def open(self) -> None:
        """Make the changelog if it is not there, and read it; do nothing if the state is open. ClientError if there can
        be no state, with the reason.
        """
        if self._local is not None:
            return
        if self._refused:
            raise ClientError(self._refused)
        self._writer.partitions_at_least(self._topic, max(self._numbers) + 1, CONFIGS)
        kept, self._kept = self._kept, None
        if kept is not None:
            self._positions = dict(kept.positions)
        local = LocalState() if kept is None else kept.local
        self._restore(local, self._numbers)
        self._local = local

    def reset(self) -> None:
        """Forget what was changed since the last batch was written: the copy is dropped, and read anew at once if the
        changelog is there.
        """
        if self._local is not None:
            self._local.close()
        self._local = None
        self._positions.clear()
        self.find()

    def detach(self) -> KeptState | None:
        """Give up the copy, and return it for the next one that uses it; None if there is none. All changes have to be
        written, and this object has no state from then on.
        """
        local, self._local = self._local, None
        return None if local is None else KeptState(local, dict(self._positions))

    def _restore(self, local: LocalState, numbers: Iterable[int]) -> None:
        with closing(self._new_reader()) as reader:
            self._check_configs(reader)
            for number in numbers:
                self._read(reader, local, number)

    def close(self) -> None:
        """Forget the copy; who waits for an answer, or asks from now on, gets a StateError."""
        with self._lock:
            self._over = True
            left = [*self._questions, *self._unwritten]
        for question in left:
            question.answer.set_exception(StateError("the instance has ended"))
        if self._local is not None:
            self._local.close()

    def _check_configs(self, reader: ReadClient) -> None:
        """Raise ClientError if `cleanup.policy` of the changelog is not compact, so that its records would be deleted
        after a time.
        """
        policy = reader.topic_configs(self._topic, ["cleanup.policy"]).get("cleanup.policy", "compact")
        if policy != "compact":
            raise ClientError(
                f"set cleanup.policy of the topic {self._topic} to compact: it is the state of {self._spec.fqfn}, and "
                f"with {policy} the server deletes it after a time"
            )

    def _read(self, reader: ReadClient, local: LocalState, number: int) -> None:
        """Read a partition of the changelog into `local`, from where it was read to up to its end. ClientError if it
        has a record that is no entry, or if an open transaction holds up the reading for longer than `patience` says.
        """
        place = self._topic, number
        end = reader.list_offsets({place: LATEST}, 0)[place]
        position = self._positions.get(number, -1)
        if position < 0:
            position = reader.list_offsets({place: EARLIEST}, 0)[place]
        fetch = FetchSettings(isolation=READ_COMMITTED, wait_ms=100)
        moved = clock.monotonic()
        while position < end:
            try:
                stored = StoredRecords(reader.fetch(place, None, position, fetch), place, position)
            except OUT_OF_RANGE:  # what was there is compacted away
                position = reader.list_offsets({place: EARLIEST}, 0)[place]
                continue
            for records in stored:
                try:
                    local.restore(number, records)
                except ForeignEntryError as error:
                    raise ClientError(
                        f"delete the topic {place[0]}, or what another one has written to it: {place[0]}-{number} is "
                        f"the changelog of {self._spec.fqfn}, and a record of it is no entry of one: {error}"
                    ) from None
            if stored.next_offset > position:
                position, moved = stored.next_offset, clock.monotonic()
            elif stored.cut_off > fetch.partition_bytes:
                fetch = replace(fetch, partition_bytes=stored.cut_off, max_bytes=stored.cut_off)
            elif clock.monotonic() - moved > self._patience():
                raise ClientError(
                    f"end the transaction that is open in {place[0]}-{number} at offset {position}: the state of "
                    f"{self._spec.fqfn} cannot be read beyond it, and no instance of the function has one open"
                )
        self._positions[number] = position

    # -- for the calls

    def changes(self, partition: TopicPartition) -> StateChanges:
        """Return the object that collects the changes of one call for a message of a partition; opens the state if it
        is not open. StateLostError if there can be none; then the instance is told to end.
        """
        try:
            return StateChanges(self.of(partition))
        except Exception as error:
            raise StateLostError(f"the instance ends: {error}") from None

    def of(self, partition: TopicPartition) -> PartitionState:
        """Return the state that belongs to an input partition; opens the state, and reads the partition's, if that was
        not done yet. An error of that is raised, and ends the instance.
        """
        number = partition[1] if self._by_partition else 0
        if self._local is None or number not in self._numbers:
            try:
                self.open()
                self._include(number)
            except Exception as error:
                self._failed(error)
                raise
        assert self._local is not None
        return self._local.partition(number)

    def _include(self, number: int) -> None:
        """Make the state of a partition that came after the state was opened part of it: read it from the changelog."""
        assert self._local is not None
        if number not in self._numbers:
            self._writer.partitions_at_least(self._topic, number + 1, CONFIGS)
            self._restore(self._local, [number])
            self._numbers.append(number)

    def flush(self, outputs: Outputs) -> None:
        """Add the entries that have changed to the outputs, and count them as written."""
        if self._local is not None:
            for number, (key, value, headers) in self._local.flush():
                outputs.add_to((self._topic, number), (key, value, headers, None))

    # -- for other threads

    def query(self, key: str, partition: int | None = None) -> StateValue | None:
        """Return an entry as the calls have left it, committed or not; None if there is none. Waits for the thread that
        calls, for 30 s at most. StateError if it does not answer, or if the state of that partition is not here.
        """

        def look() -> StateValue | None:
            if self._local is None:
                return None
            value = self._local.partition(self._number(partition)).get(key)
            if value is None:
                return None
            return StateValue(key, value, None) if isinstance(value, int) else StateValue(key, None, value)

        entry: StateValue | None = self._ask(look)
        return entry

    def put(self, key: str, value: int | bytes | str, partition: int | None = None) -> None:
        """Set a counter (an int) or a value; returns when it is in the changelog. Waits, and fails, as `query` does."""

        def change() -> None:
            self.open()
            assert self._local is not None
            changes = StateChanges(self._local.partition(self._number(partition)))
            if isinstance(value, int):
                changes.set(key, value)
            else:
                changes.put(key, value)
            changes.apply()

        self._ask(change, changes=True)

    def _number(self, partition: int | None) -> int:
        if partition is None:
            if len(self._numbers) == 1:
                return self._numbers[0]
            raise StateError(f"name one of the partitions {self._numbers}: each has a state of its own")
        if partition not in self._numbers:
            raise StateError(f"the state of partition {partition} is not here, but that of {self._numbers}")
        return partition

    def _ask(self, what: Callable[[], Any], *, changes: bool = False) -> Any:
        question = _Question(what, changes)
        with self._lock:
            if self._over:
                raise StateError("the instance has ended")
            self._questions.append(question)
        self._wake()
        try:
            return question.answer.result(ANSWER_SECONDS)
        except TimeoutError:
            raise StateError(f"the instance has not answered within {ANSWER_SECONDS:g} s: a call takes long") from None

    def serve(self) -> None:
        """Answer what other threads have asked. Those that have put a value are answered by `written`."""
        while self._questions:
            question = self._questions.popleft()
            try:
                answer = question.what()
            except Exception as error:
                question.answer.set_exception(without_frames(error))
                continue
            if question.changes:
                self._unwritten.append(question)
            else:
                question.answer.set_result(answer)

    def written(self) -> None:
        """Tell other threads that the values which they have put are in the changelog."""
        unwritten, self._unwritten = self._unwritten, []
        for question in unwritten:
            question.answer.set_result(None)


@dataclass(slots=True)
class _Question:
    what: Callable[[], Any]
    changes: bool
    """True if it is answered once the changelog has it."""
    answer: Future[Any] = field(default_factory=Future)


def _refused(spec: FunctionSpec) -> str | None:
    """Return why a function can have no state: several instances would share it, or the changelog's name would be too
    long. None if it can.
    """
    if spec.parallelism > 1 and spec.state_scope != "partition":
        return (
            f"set stateScope of {spec.fqfn} to partition, or parallelism to 1: with {spec.parallelism} instances there "
            "is no state of the whole function, only one of each partition of its input"
        )
    if len(name := topic_of(spec)) > _NAME_BYTES:
        return f"give {spec.fqfn} a shorter name: its changelog would be {name}, and {_NAME_BYTES} bytes are the most"
    return None
