"""One input partition of a component: its records go through the component's functions, and are committed together.

Owns: the way of a record from function to function without a topic between them; what is done once more if a call
fails; what lies in one transaction.
Must not know: Spark, when a batch ends, where records come from.

A lane fences its predecessors by InitProducerId for an id that names component, topic and partition, and only then
reads the committed offsets: what they say is the only truth. Its functions, calls, outputs, state and ends of batches
are those of `kop.functions`.

What is not written is forgotten as a whole: records go through all functions of the component before any of them is
committed. If a call fails, the lane forgets what it has not written and goes on one record at a time, so that the
records before the failed one are committed, and that one holds up its partition and nothing else.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from kop import clock
from kop.client.batches import NewRecord
from kop.client.errors import ClientError, NoTransactionsError
from kop.client.offsets import EARLIEST, TopicPartition
from kop.client.read_client import ReadClient
from kop.client.record_columns import RecordColumns, made_once
from kop.client.write_client import Identity, WriteClient
from kop.errors import without_frames
from kop.functions import origins
from kop.functions.batch_calls import BatchCalls, batch_of, rows_of
from kop.functions.calling import Calls
from kop.functions.changelog import FunctionState, KeptState, topic_of
from kop.functions.committing import InOneTransaction, batch_end
from kop.functions.context import Effect, FunctionContext, InputRecord
from kop.functions.function import FunctionCode
from kop.functions.input_topics import input_of
from kop.functions.instance import TRANSACTION_TIMEOUT_MS, check_batches, logger_of, read_secrets
from kop.functions.reading import READ_COMMITTED, Taken
from kop.functions.serdes import input_serde, of_class_name, output_serde
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.stats import Stats
from kop.functions.triggers import Triggers
from kop.functions.writing import Outputs
from kop.records.batch import Codec
from kop.records.partitioning import partition_of
from kop.spark.mesh.calls_file import CallsFile
from kop.spark.mesh.component import Step, TaskComponent
from kop.spark.mesh.write_behind import WriteBehind

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

AnyCalls: TypeAlias = Calls | BatchCalls
ID_PREFIX: Final = "kop.mesh"
PIECE_SECONDS: Final = 0.01
"""The seconds, about, that the calls take for the records that go through the functions together."""
MOST_RECORDS: Final = 2_000
KEPT_STATES: Final = 64
"""The number of copies of states that a process keeps from one batch to the next."""

_kept: OrderedDict[TopicPartition, KeptState] = OrderedDict()
"""The copies of states that this process has, by their place in the changelog."""


class _Places(dict[TopicPartition, int]):
    """The numbers by which `kop.functions.watch` knows partitions; each gets one when it is first called with."""

    def __init__(self, told: Callable[[Sequence[TopicPartition]], None]) -> None:
        super().__init__()
        self.known: list[TopicPartition] = []
        self._told = told

    def __missing__(self, place: TopicPartition) -> int:
        self.known.append(place)
        self._told(self.known)
        self[place] = len(self.known) - 1
        return self[place]


class ReadyStep:
    """A function of a component in this process, for all lanes of a task: its code, serdes, secrets, counts.

    Raises SerdeError and ClientError for a serde or a secret that cannot be had.
    """

    def __init__(self, step: Step, code: FunctionCode, calls_file: CallsFile, number: int) -> None:
        """`number` is the index of the function among those of `calls_file`."""
        self.step = step
        self.spec: FunctionSpec = step.spec
        self.code = code
        if code.is_batch:
            check_batches(step.spec)
        else:
            self.inputs = {name: input_serde(step.spec, name, code) for name in step.spec.inputs}
            self.output = output_serde(step.spec, code)
        self.secrets = read_secrets(step.spec)
        self.logger = logger_of(step.spec, 0)
        self.calling: MutableSequence[int] = calls_file.calling(number)
        self.places = _Places(partial(calls_file.known, number))
        self.stats = Stats(self.places.known, self.calling)
        self.handed: Counter[str] = Counter()
        """The records that other functions have handed to it and that are committed, by topic."""

    def calls(self, outputs: Outputs, state: FunctionState, place: TopicPartition) -> AnyCalls:
        """Return a new object that calls the function for the records of one lane, and gives results to `outputs`. The
        function gets the part of `state` that belongs to `place`, the lane's input partition.
        """
        spec, code = self.spec, self.code

        def context(effects: list[Effect]) -> FunctionContext:
            return FunctionContext(
                spec,
                0,
                effects,
                logger=self.logger,
                serde=lambda name: of_class_name(name, code),
                secrets=self.secrets,
                record_metric=self.stats.metric,
                state=lambda _: state.changes(place),
            )

        common: dict[str, Any] = {
            "context": context,
            "stopping": lambda: False,  # records that were begun with go through all functions
            "calling": self.calling,
            "partitions": self.places,
            "logger": self.logger,
            "stats": self.stats,
            "triggers": Triggers(),
        }
        if code.is_batch:
            return BatchCalls(spec, code, outputs, **common)
        return Calls(spec, code, outputs, inputs=_Serdes(spec, self.inputs), output=self.output, **common)


class _Serdes(dict[str, Any]):
    """The serdes of inputs by topics; that of a topic which a pattern matches is found when it is asked for."""

    def __init__(self, spec: FunctionSpec, by_input: Mapping[str, Any]) -> None:
        super().__init__(by_input)
        self._spec = spec

    def __missing__(self, topic: str) -> Any:
        self[topic] = self[input_of(self._spec, topic)]
        return self[topic]


class OriginHeaders(Sequence[tuple[str, bytes | None]]):
    """The headers of a result that say from which record it was made; they are made if somebody looks at them."""

    __slots__ = ("_made", "_offset", "_source")

    def __init__(self, source: TopicPartition, offset: int) -> None:
        self._source = source
        self._offset = offset
        self._made: list[tuple[str, bytes | None]] | None = None

    def _headers(self) -> list[tuple[str, bytes | None]]:
        if self._made is None:
            self._made = [*origins.headers(*self._source, self._offset)]
        return self._made

    @overload
    def __getitem__(self, index: int) -> tuple[str, bytes | None]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, bytes | None]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._headers()[index]

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        return iter(self._headers())


class ChainOutputs(Outputs):
    """The outputs of the functions of a component: those for a topic within it go on to the functions that read that,
    and to the topic unless it is private.

    Such a record has no offset yet. The number it has instead ascends within its partition, and is that of the input
    record it was made from if each record gives one.
    """

    def __init__(
        self,
        client: WriteClient,
        identity: Identity,
        codec: int,
        component: TaskComponent,
        free_client: Callable[[], None],
    ) -> None:
        """`free_client` waits until no other thread uses `client`."""
        super().__init__(client, identity, codec)
        self._free_client = free_client
        self._readers = {
            topic: [number for number, step in enumerate(component.steps) if topic in step.inner_inputs]
            for topic in component.inner
        }
        self._private = component.private
        self._records_for: list[dict[TopicPartition, list[RecordColumns | list[InputRecord]]]] = [
            {} for _ in component.steps
        ]
        """The lots of records that each function is to be called with, by the function's number."""
        self._last: dict[TopicPartition, int] = {}
        self.floor = 0
        """The offset of the input record that goes through the functions."""

    def taken(self, number: int) -> list[Taken]:
        """Return the records that other functions have given to a function, by topic and partition, and forget them
        here: each is returned once. `number` is the function's place in the order of calls.
        """
        lots_of, self._records_for[number] = self._records_for[number], {}
        taken = []
        for place, lots in lots_of.items():
            records = RecordColumns.of(lots[0] if len(lots) == 1 else [*chain.from_iterable(lots)])
            taken.append(Taken(place, records, records.offsets[-1] + 1))
        return taken

    def discard(self) -> None:
        """Forget the outputs that were added and not written, and the records that were not handed on yet."""
        super().discard()
        for lots_of in self._records_for:
            lots_of.clear()

    def add_first_that_fits(self, topic: str, source: int, records: Sequence[NewRecord]) -> bool:
        """Add the first of some records that the topic takes; a private topic takes any."""
        if topic in self._private:
            self.add(topic, source, records[0])
            return True
        return super().add_first_that_fits(topic, source, records)

    def ask_limit(self, topic: str) -> int:
        """Ask the servers for what `most_bytes` returns, once no other thread asks them."""
        self._free_client()
        return super().ask_limit(topic)

    def add(self, topic: str, source: int, record: NewRecord, *, alone: int | None = None) -> None:
        """Add a record for a topic: hand it to the functions that read it, and keep it to be written unless the topic
        is private. `source` is the partition that its input came from; `alone` is as of `Outputs`.
        """
        if topic not in self._private:
            super().add(topic, source, record, alone=alone)
        if topic in self._readers:
            key, value, headers, timestamp = record
            place = topic, self._partition(topic, source, key)
            self._pass(place, clock.wall_ms() if timestamp is None else timestamp, key, value, headers)

    def add_results(self, topic: str, source: TopicPartition, values: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Add results of messages of a partition, as `add` does; `offsets` are those of the messages, ascending."""
        if topic not in self._private:
            super().add_results(topic, source, values, offsets)
        if topic in self._readers and values:
            place = topic, self._partition(topic, source[1], None)
            first = max(self._last.get(place, -1) + 1, self.floor)
            numbers = range(first, first + len(values))
            self._last[place] = numbers[-1]
            now = clock.wall_ms()

            def rows() -> list[InputRecord]:
                headers = map(OriginHeaders, repeat(source), offsets)
                return list(zip(numbers, repeat(now), repeat(None), values, headers, strict=False))

            records = RecordColumns(numbers, values, made_once(rows))
            for reader in self._readers[topic]:
                self._records_for[reader].setdefault(place, []).append(records)

    def add_batch(self, place: TopicPartition, source: int, batch: pa.RecordBatch) -> None:
        """Add a batch of rows for the topic and partition `place`, as `add` does; `source` is the partition that their
        input came from.
        """
        topic, number = place
        if topic not in self._private:
            super().add_batch(place, source, batch)
        if topic in self._readers:
            inner = topic, source if topic in self._private else number
            now = clock.wall_ms()
            for key, value, headers, timestamp in rows_of(batch):
                self._pass(inner, now if timestamp is None else timestamp, key, value, headers)

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic. It is 1 for a private topic: its records stay in the partition
        that their input came from.
        """
        return 1 if topic in self._private else super().count(topic)

    def _ask_count(self, topic: str) -> int:
        known = self._client.known_leaders(topic)
        if known is None:
            self._free_client()
            known = self._client.leaders(topic)
        return len(known)

    def _partition(self, topic: str, source: int, key: bytes | None) -> int:
        if topic in self._private:
            return source
        count = self.count(topic)
        return source % count if key is None else partition_of(key, count)

    def _pass(
        self, place: TopicPartition, now: int, key: bytes | None, value: bytes | None, headers: Sequence[Any]
    ) -> None:
        number = max(self._last.get(place, -1) + 1, self.floor)
        self._last[place] = number
        record = number, now, key, value, headers
        for reader in self._readers[place[0]]:
            lots = self._records_for[reader].setdefault(place, [])
            last = lots[-1] if lots else None
            if not isinstance(last, list):
                last = []
                lots.append(last)
            last.append(record)


class _States:
    """The states of all functions of a lane, as the end of a batch sees them."""

    def __init__(self, states: Sequence[FunctionState]) -> None:
        self.all = states

    @property
    def is_open(self) -> bool:
        """True once a function has state, so that its changes are written with each batch."""
        return any(state.is_open for state in self.all)

    def serve(self) -> None:
        """Answer the questions of other threads about states. Those that have put a value get their answer from
        `written`.
        """
        for state in self.all:
            state.serve()

    def flush(self, outputs: Outputs) -> None:
        """Add the changes of all states to the outputs."""
        for state in self.all:
            state.flush(outputs)

    def written(self) -> None:
        """Note that what `flush` added is committed, and answer the threads that have put values."""
        for state in self.all:
            state.written()


class Lane:
    """The records of one input partition on their way. All of it is for one thread.

    `steps` are the component's functions in the order of their calls. `patience` is how long what fails for a time is
    tried again at the moment.
    """

    def __init__(
        self,
        component: TaskComponent,
        steps: Sequence[ReadyStep],
        place: TopicPartition,
        writer: WriteClient,
        new_writer: Callable[[], WriteClient],
        new_reader: Callable[[], ReadClient],
        patience: Callable[[], float],
        calls_file: CallsFile,
        behind: WriteBehind,
        suspect: int = -1,
        *,
        may_lag: bool = False,
    ) -> None:
        """`behind` has the writes of all lanes of `writer`. `suspect`: the offset up to which a record may have ended
        an earlier process; -1 for none. `may_lag`: True if records may be processed while those before them are
        written, so that more of them are done again if one fails.
        """
        self.place = place
        self.position = 0
        """The offset up to which all is committed."""
        self.fed = 0
        """The offset up to which `feed` has brought records."""
        self.is_held = False
        """True while a record is tried again: no other one of this partition is begun with."""
        self._component = component
        self._steps = steps
        self._writer = writer
        self._new_writer = new_writer
        self._new_reader = new_reader
        self._patience = patience
        self._calls_file = calls_file
        self._behind = behind
        self._may_lag = may_lag
        self._process = os.getpid()
        self._failure: BaseException | None = None
        self._pending: deque[Taken] = deque()
        self._unwritten: list[Taken] = []
        self._handed: list[Counter[str]] = [Counter() for _ in steps]
        """The records of `_unwritten` that functions were handed by others, by topic, of each function."""
        self._size = 1
        self._single_until = suspect + 1
        """Records before this offset go through the functions one at a time."""
        self._begin()

    # -- its beginning

    @property
    def transactional_id(self) -> str:
        """The transactional id of the lane, made of component, topic and partition: by it a new task fences an earlier
        one of the same lane.
        """
        return f"{ID_PREFIX}/{self._component.full_name}/{self.place[0]}/{self.place[1]}"

    def _begin(self) -> None:
        component = self._component
        readers = [step for step in self._steps if self._reads(step)]
        groups = list(dict.fromkeys(step.spec.group for step in readers))
        identity = self._fence()
        offsets = self._committed(groups, identity)
        self._starts = {step.spec.name: offsets[step.spec.group] for step in readers}
        self.position = self.fed = min(offsets.values())
        once = component.guarantee is Guarantee.EFFECTIVELY_ONCE
        producer = identity if once and identity is not None else self._writer.init_producer(None, -1)
        codecs = [step.spec.compression_type for step in self._steps if step.spec.compression_type != "none"]
        self._outputs = ChainOutputs(
            self._writer, producer, Codec[(codecs or ["none"])[0].upper()], component, self._free_client
        )
        no_state = None if identity is not None else "switch transactions on, or use no state: the server has none"
        self._states = [self._state(step, no_state) for step in self._steps]
        for state in self._states:
            state.find()
        self._calls = self._new_calls()
        may_have_state = any(step.step.no_state is None for step in self._steps)
        self._together: InOneTransaction | None = None
        """The end of batches that another thread may write; None if they are written before records go on."""
        if self._may_lag and once and identity is not None and not may_have_state:
            self._together = InOneTransaction(
                self._writer, identity, groups, self._outputs, {self.place: self.position}
            )
        self._end = self._together or batch_end(
            component.guarantee,
            self._writer,
            identity,
            groups,
            self._outputs,
            {self.place: self.position},
            _States(self._states),
            new_writer=self._new_writer,
            failed=self._fail,
        )

    def _reads(self, step: ReadyStep) -> bool:
        return self.place[0] in step.step.inputs

    def _fence(self) -> Identity | None:
        try:
            return self._writer.init_producer(self.transactional_id, TRANSACTION_TIMEOUT_MS)
        except NoTransactionsError as error:
            guarantee = self._component.guarantee
            if guarantee is not Guarantee.ATLEAST_ONCE:
                raise ClientError(
                    f"set processingGuarantees of the functions of {self._component.full_name} to ATLEAST_ONCE, or "
                    f"switch transactions on: {guarantee.value} needs them ({error})"
                ) from None
            log.warning("offsets are committed without a fence: a second task is not noticed (%s)", error)
            return None

    def _committed(self, groups: Sequence[str], identity: Identity | None) -> dict[str, int]:
        """Return the offset at which each group reads on in the lane's partition: the committed one, which is waited
        for if an open transaction holds it; the first offset of the partition for a group that has committed none.
        """
        offsets: dict[str, int] = {}
        for group in groups:
            known = self._writer.committed(group, [self.place])
            if self.place in known:
                offsets[group] = known[self.place][0]
        if len(offsets) < len(groups):
            reader = self._new_reader()
            try:
                first = reader.list_offsets({self.place: EARLIEST}, READ_COMMITTED)[self.place]
            finally:
                reader.close()
            offsets |= {group: first for group in groups if group not in offsets}
        return offsets

    def _state(self, step: ReadyStep, no_state: str | None) -> FunctionState:
        return FunctionState(
            step.spec,
            [self.place],
            self._writer,
            self._new_reader,
            refused=no_state or step.step.no_state,
            failed=self._fail,
            wake=lambda: None,
            patience=self._patience,
            kept=_kept.pop(self._state_place(step.spec), None),
        )

    def _state_place(self, spec: FunctionSpec) -> TopicPartition:
        return topic_of(spec), self.place[1] if spec.state_scope == "partition" else 0

    def _new_calls(self) -> list[AnyCalls]:
        return [
            step.calls(self._outputs, state, self.place) for step, state in zip(self._steps, self._states, strict=True)
        ]

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _check(self) -> None:
        """Raise the error of the thread that commits, if it has failed. End this process if it is a copy that a
        function has made by forking: its work is not the lane's.
        """
        if os.getpid() != self._process:
            os._exit(0)
        if self._failure is not None:
            raise self._failure

    # -- its work

    @property
    def has_work(self) -> bool:
        """True if there are records that can be processed now."""
        return bool(self._pending) and not self.is_held

    @property
    def gives_up_later(self) -> bool:
        """True while a record waits for one of a limited number of attempts: if the batch ended now, the next one would
        count anew.
        """
        return self.is_held and all(
            step.spec.max_message_retries is not None
            for step, calls in zip(self._steps, self._calls, strict=True)
            if calls.next_due() is not None
        )

    def next_due(self) -> float | None:
        """Return the earliest time at which a record is to be tried again, in seconds of the monotonic clock; None if
        no record waits for that.
        """
        times = [due for calls in self._calls if (due := calls.next_due()) is not None]
        return min(times, default=None)

    def feed(self, taken: Taken) -> None:
        """Add records (RecordColumns) to process, without processing them yet; they follow those that were added
        before.
        """
        self._end.begin([taken])
        self._pending.append(taken)
        self.fed = taken.next_offset

    def run(self, deadline: float, stopping: Callable[[], bool]) -> None:
        """Process the records that were fed until none is left, the deadline (seconds of the monotonic clock) is over
        or `stopping` returns True, and write the outputs. Raises the error of a write that has failed.

        If a record fails, what was not written is forgotten and done again record by record. Once the failed record is
        met alone, this returns with `is_held` True, and `retry` goes on with it.
        """
        while self.has_work and not stopping():
            taken = self._pending.popleft()
            is_single = taken.next_offset <= self._single_until or (
                len(taken.records) > 0 and taken.records.offsets[0] < self._single_until
            )
            piece = self._cut(taken, 1 if is_single else self._size)
            self._unwritten.append(piece)
            began = clock.monotonic()
            self._through(piece)
            self._check()
            if self._is_open():
                if sum(len(some.records) for some in self._unwritten) > 1:
                    self._forget()
                    continue
                self.is_held = True
                return
            if is_single:
                self._write()
                self._behind.settle()
            now = clock.monotonic()
            self._size = min(self._size * 2, MOST_RECORDS) if now - began < PIECE_SECONDS else max(self._size // 2, 1)
            if now >= deadline:
                break
        self._write()

    def retry(self, now: float) -> None:
        """Call the functions again with the failed records that are due at `now`, in seconds of the monotonic clock; do
        nothing if none is. Once no record waits any more, write the outputs, and end `is_held`.
        """
        due = self.next_due()
        if due is None or due > now:
            return
        for calls in self._calls:
            calls.retry()
            self._pump()
        self._check()
        if not self._is_open():
            self.is_held = False
            self._write()

    def close(self, *, whole: bool) -> None:
        """End the lane, and forget what is not written. Raises the error of an earlier write that has failed. `whole`
        is True if nothing has failed: then, if nothing is unwritten, what is under way is finished, and this process
        keeps the copies of states for the next batch.
        """
        is_clean = whole and not self._unwritten and self._failure is None
        try:
            if is_clean:
                self._end.finish()
        finally:
            self._end.close()
            for step, state, calls in zip(self._steps, self._states, self._calls, strict=True):
                calls.close()
                kept = state.detach() if is_clean else None
                if kept is not None:
                    _kept[self._state_place(step.spec)] = kept
                    while len(_kept) > KEPT_STATES:
                        _kept.popitem(last=False)[1].local.close()
                state.close()
        self._check()

    def _cut(self, taken: Taken, count: int) -> Taken:
        """Return the first `count` records of `taken`; the others are put back as the next ones to process."""
        if len(taken.records) <= count:
            return taken
        rest = taken._replace(records=taken.records[count:])
        self._pending.appendleft(rest)
        return Taken(taken.partition, taken.records[:count], rest.records.offsets[0])

    def _through(self, piece: Taken) -> None:
        """Call the functions that read this partition with the records of `piece`, each without those that its group
        has done already, and all functions with what others have made of them. Nothing is written.
        """
        self._calls_file.piece(self.place, piece.next_offset - 1)
        if piece.records:
            self._outputs.floor = piece.records.offsets[0]
        for step, calls in zip(self._steps, self._calls, strict=True):
            if self._reads(step):
                start = self._starts[step.spec.name]
                records = piece.records
                if records and records.offsets[0] < start:  # this function is ahead of another one that reads the same
                    records = records.since(start)
                _take_all(calls, piece._replace(records=records))
        self._pump()

    def _pump(self) -> None:
        """Call each function, in order, with the records that earlier functions have handed over and that it was not
        called with yet; count them.
        """
        for number, calls in enumerate(self._calls):
            for taken in self._outputs.taken(number):
                self._handed[number][taken.partition[0]] += len(taken.records)
                _take_all(calls, taken)

    def _is_open(self) -> bool:
        return any(calls.next_due() is not None for calls in self._calls)

    def _forget(self) -> None:
        """Forget all results and changes of state that were not written, and put the records they were made of back, to
        be processed one at a time.
        """
        self._single_until = self._unwritten[-1].next_offset
        self._pending.extendleft(reversed(self._unwritten))
        self._unwritten = []
        self._outputs.discard()
        for handed in self._handed:
            handed.clear()
        for state in self._states:
            state.reset()
        for calls in self._calls:
            calls.close()
        self._calls = self._new_calls()

    def _write(self) -> None:
        if not self._unwritten:
            return
        offset = self._unwritten[-1].next_offset
        if self._together is None:
            self._behind.settle()
            self._end.write({self.place: offset})
        handed, self._handed = self._handed, [Counter() for _ in self._steps]
        telling = [calls.telling() for calls in self._calls]
        for calls in self._calls:
            calls.committable()

        def done() -> None:
            self.position = offset
            for tell in telling:
                tell()
            for step, topics in zip(self._steps, handed, strict=True):
                step.handed.update(topics)

        if self._together is None:
            done()
        else:
            self._behind.begin(self._together.taken({self.place: offset}), done)
        self._unwritten = []

    def _free_client(self) -> None:
        try:
            self._behind.settle()
        except Exception as error:
            self._fail(without_frames(error))


def _take_all(calls: AnyCalls, taken: Taken) -> None:
    """Call a function with all of these records; a failed one, and those that wait for it, are kept in `calls` for the
    next attempt.
    """
    records = taken.records
    if isinstance(calls, BatchCalls):
        records = batch_of(taken.partition, records)
        calls.take(taken._replace(records=records), float("inf"))
        return
    while records:
        done = calls.take(taken._replace(records=records), float("inf"))
        records = records[done:]
