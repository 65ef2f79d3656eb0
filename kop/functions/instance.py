"""One instance of a function: it fences its predecessors, then reads, calls, writes and commits, side by side.

Owns: the order of these steps, and what a guarantee means for it. At its beginning:

1. InitProducerId for `kop.functions/TENANT/NAMESPACE/NAME/INSTANCE`. Every earlier instance of the same name can
   commit nothing from here on, and what it left open is aborted.
2. Only then the committed offsets, with require_stable. Read before the fence, an earlier instance could still commit
   behind the answer.
3. Where there are none yet, start offsets, which are committed before anything is read.

Then one thread reads ahead (`reading`), the one of `run` calls and writes (`writing`), and one commits (`committing`),
but for EFFECTIVELY_ONCE: there outputs and offsets of a batch are one transaction of the thread of `run`. Offsets are
committed in transactions of the id alone, whatever the guarantee, and partitions are assigned, not dealt by a group: so
an instance that was paused and replaced meets the fence and ends.

Must not know: where partitions come from, who starts it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, MutableSequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from kop import clock
from kop.client.batches import build
from kop.client.errors import ClientError, FencedError, NoTransactionsError
from kop.client.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kop.client.read_client import FetchSettings, ReadClient
from kop.client.write_client import Identity, WriteClient
from kop.errors import without_frames
from kop.functions import triggers
from kop.functions.batch_calls import BatchCalls
from kop.functions.calling import Calls
from kop.functions.changelog import FunctionState
from kop.functions.committing import BatchEnd, batch_end, commit
from kop.functions.context import Effect, FunctionContext
from kop.functions.function import FunctionCode
from kop.functions.input_topics import PartitionDiscovery, input_of
from kop.functions.poison_record import PoisonRecord, divided
from kop.functions.reading import ANSWER_BYTES, PARTITION_BYTES, READ_COMMITTED, ReadAhead, Taken
from kop.functions.serdes import input_serde, of_class_name, output_serde
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.state import StateError, StateValue
from kop.functions.stats import Stats
from kop.functions.triggers import TriggerAnswer, Triggers
from kop.functions.watch import NOT_CALLING
from kop.functions.windowing import WindowCalls, extractor_of, of_elements
from kop.functions.writing import Outputs
from kop.records.batch import Codec

log = logging.getLogger(__name__)

C = TypeVar("C", WriteClient, ReadClient)
ID_PREFIX: Final = "kop.functions"
PATIENCE_SECONDS: Final = 120.0
"""The seconds for which requests are tried again that fail for a time."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Transactions are open while a batch is written, not while the function is called."""
BATCH_RECORDS: Final = 10_000
"""The most messages that are called before what they gave is written."""
BATCH_SECONDS: Final = 0.05
"""The most seconds for which messages are called before what they gave is written."""
HURRY_SECONDS: Final = 8.0
"""The seconds for which requests are tried again once the instance is to end: less than a worker waits for that."""
END_SECONDS: Final = 2.0
"""The seconds that an end waits for the thread that reads, which may be in the middle of a Fetch."""


_NO_STATE: Final = (
    "switch transactions on (over Pulsar: transactionCoordinatorEnabled=true), or use no state in {}: it is written in "
    "transactions, and the server has none"
)


class ReplacedError(ClientError):
    """Another instance of the function has begun, and this one can commit nothing any more."""


class Instance:
    """One instance of a function on the partitions that it is given. `run` blocks; the rest is for any thread.

    `settings` are kafka-python's. Raises SerdeError and ClientError for a serde or a secret that cannot be had.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        code: FunctionCode,
        settings: Mapping[str, Any],
        partitions: Collection[TopicPartition],
        *,
        instance_id: int = 0,
        patience: float = PATIENCE_SECONDS,
        fetch_wait_ms: int = 500,
        end_seconds: float = END_SECONDS,
        calling: MutableSequence[int] | None = None,
        look_seconds: float | None = None,
        version: str = "0",
        poison: PoisonRecord | None = None,
    ) -> None:
        """`patience`: the seconds for which requests are tried again that fail for a time. `end_seconds`: for how long
        the end waits for the threads that read. `calling`: memory in which the place in the work is noted. `version`:
        the revision of the definition, for the context. `look_seconds`: how often partitions are looked for that came
        later; None for never. `poison`: the record at which the process before this one has ended.
        """
        self.started = threading.Event()
        """Set once start offsets are committed: no record that is produced from then on is missed."""
        self._spec = spec
        self._code = code
        self._settings = dict(settings)
        self.partitions = sorted(partitions)
        self.calling: MutableSequence[int] = [0, NOT_CALLING, 0] if calling is None else calling
        """The place in its work, see `kop.functions.watch`, in memory that others may share."""
        self.stats = Stats(self.partitions, self.calling)
        self._triggers = Triggers()
        self._logger = logger_of(spec, instance_id)
        self._indexes = {partition: index for index, partition in enumerate(self.partitions)}
        self._look_seconds = look_seconds
        self._process = os.getpid()
        self._instance_id = instance_id
        self._version = version
        self._poison = None if code.is_batch else poison
        self._id = f"{ID_PREFIX}/{spec.fqfn}/{instance_id}"
        self._patience = patience
        self._end_seconds = end_seconds
        self._fetch = FetchSettings(
            isolation=READ_COMMITTED, partition_bytes=PARTITION_BYTES, max_bytes=ANSWER_BYTES, wait_ms=fetch_wait_ms
        )
        self._extractor = extractor_of(spec, code)
        if code.is_batch:
            check_batches(spec)
        else:
            of_messages = of_elements(code) if spec.window else code
            self._serdes = {name: input_serde(spec, name, of_messages) for name in spec.inputs}
            self._inputs = {topic: self._serdes[input_of(spec, topic)] for topic, _ in partitions}
            self._output = output_serde(spec, code)
        self._secrets = read_secrets(spec)
        self._stopping = False
        self._failure: BaseException | None = None
        self._reader: ReadAhead | None = None
        self._state: FunctionState | None = None
        self._clients: list[WriteClient | ReadClient] = []
        """Those that what is done is written with, and state is read."""
        self._fresh: Collection[TopicPartition] = ()
        """The partitions that had no committed offset."""
        self._reached: Callable[[], Offsets] = dict
        self._done: Callable[[], Offsets] = dict

    @property
    def is_stopping(self) -> bool:
        """True once no further message is called."""
        return self._stopping

    def reached(self) -> Offsets:
        """Return, by partition, the offset before which all records were taken, done or not, and none waits for a call;
        empty before the instance has begun. A failed record waits until a call with it has not failed.
        """
        return self._reached()

    def done(self) -> Offsets:
        """Return, by partition, the offset before which all records are done, so that they are not called again; empty
        before the instance has begun.
        """
        return self._done()

    def query_state(self, key: str, partition: int | None = None) -> StateValue | None:
        """Return an entry of the state, None if there is none. `partition` is needed if each has a state of its own.
        Waits for the thread of `run`, for 30 s at most; StateError then, before the instance has begun, or if the state
        is not here.
        """
        return self._open_state().query(key, partition)

    def put_state(self, key: str, value: int | bytes | str, partition: int | None = None) -> None:
        """Set a counter (an int) or a value of the state; returns once it is committed. `partition` and errors are as
        of `query_state`.
        """
        self._open_state().put(key, value, partition)

    def _open_state(self) -> FunctionState:
        if self._state is None:
            raise StateError("the instance has not begun yet")
        return self._state

    def stop(self) -> None:
        """Let `run` return after the message that is being called, with all that is done written and committed. Returns
        at once; from here on requests are tried again for 8 s at most.
        """
        self._stopping = True
        for client in list(self._clients):
            client.hurry(HURRY_SECONDS)
        if self._reader is not None:
            self._reader.wake()

    def run(self) -> None:
        """Process records until `stop`. Raises ReplacedError if another instance has taken the place of this one,
        ClientError if it cannot work, and kafka-python's errors.
        """
        try:
            self._run()
        except FencedError as error:
            raise ReplacedError(
                f"start one instance of {self._spec.fqfn} only: another one has begun with the transactional "
                f"id {self._id}, or this one was paused for too long, and it ends ({error.args[0]}). What it had not "
                "committed the other one does again."
            ) from None

    def _run(self) -> None:
        spec = self._spec
        with ExitStack() as stack:
            writer = self._new_writer()
            stack.callback(writer.close)
            identity = self._fence(writer)
            reading = self._hurried(self._new_reader())
            try:
                positions = self._positions(writer, reading, identity)
                once = spec.processing_guarantees is Guarantee.EFFECTIVELY_ONCE
                producer = identity if once and identity is not None else writer.init_producer(None, -1)
                outputs = Outputs(writer, producer, Codec[spec.compression_type.upper()])
                state = self._new_state(writer, identity)
                stack.callback(state.close)
                state.find()
                starts = self._starts(reading, positions) if spec.window else positions
            except BaseException:
                reading.close()
                raise
            self._reader = ReadAhead(
                reading, self._new_reader, positions, self._fail, self._fetch, batches=self._code.is_batch
            )
            stack.callback(self._reader.close, self._end_seconds)
            calls = self._calls(outputs, state, starts)
            stack.callback(calls.close)
            self._reached = lambda: {**positions, **calls.reached()}
            self._done = lambda: {**positions, **calls.positions()}
            self.stats.lag = self._lag
            end = batch_end(
                spec.processing_guarantees,
                writer,
                identity,
                [spec.group],
                outputs,
                positions,
                state,
                new_writer=self._new_writer,
                failed=self._fail,
            )
            stack.callback(end.close)
            if self._look_seconds is not None:
                discovery = PartitionDiscovery(spec, self._settings, self.add, self._look_seconds)
                stack.callback(discovery.close)
            self.started.set()
            self._work(calls, self._reader, end)
            if self._failure is None:
                end.finish()
        if self._failure is not None:
            raise self._failure

    def _lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets of each partition are not done, but for partitions whose end is not known yet."""
        assert self._reader is not None
        done = self._done()
        return {
            partition: max(0, end - done.get(partition, position))
            for partition, (end, position) in self._reader.ends().items()
            if end >= 0  # it is not known before the first answer
        }

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Read further partitions, once the instance has begun: from their committed offsets, else from their
        beginning. Those that it reads already are left out. For any thread, one at a time.
        """
        assert self._reader is not None
        new = sorted(set(partitions) - set(self.partitions))
        if not new:
            return
        with ExitStack() as stack:
            writer = WriteClient(self._settings, self._patience)
            stack.callback(writer.close)
            known = writer.committed(self._spec.group, new)
            positions = {partition: offset for partition, (offset, _) in known.items()}
            if missing := [partition for partition in new if partition not in positions]:
                reader = self._new_reader()
                stack.callback(reader.close)
                positions |= reader.list_offsets(dict.fromkeys(missing, EARLIEST), READ_COMMITTED)
        for partition in new:
            if not self._code.is_batch:
                self._inputs[partition[0]] = self._serdes[input_of(self._spec, partition[0])]
            self.partitions.append(partition)
            self._indexes[partition] = len(self.partitions) - 1
        self._reader.add(positions)
        log.info("%s takes %s, too", self._spec.fqfn, ", ".join(f"{topic}-{number}" for topic, number in new))

    def trigger(self, value: bytes, key: bytes | None, place: TopicPartition, seconds: float) -> TriggerAnswer:
        """Write a message to a partition of an input, wait `seconds` at most until its call is done, and return its
        output, or an error with its status: the call has failed, was not done in time, or the message could not be
        written. For any thread.
        """
        topic, partition = place
        if place not in self.partitions:
            why = f"partition {partition} of {topic} is no longer this instance's, or not yet: try again"
            return TriggerAnswer(error=why, status=triggers.ABSENT)
        number = self._triggers.expect()
        try:
            writer = WriteClient(self._settings, min(seconds, self._patience))
            try:
                producer = writer.init_producer(None, -1)
                record = key, value, [(triggers.HEADER, number)], None
                for batch, _ in build([record], producer, 0, now=clock.wall_ms()):
                    writer.produce(producer, {place: batch})
            finally:
                writer.close()
        except Exception as error:
            self._triggers.wait(number, 0)
            return TriggerAnswer(error=f"the message cannot be written to {topic}: {error}", status=triggers.ABSENT)
        answer = self._triggers.wait(number, seconds)
        if answer is None:
            why = f"not done in {seconds:g} s; the message stays in {topic}, and is called in its turn"
            return TriggerAnswer(error=why, status=triggers.LATE)
        if answer.error is None:
            return answer
        return answer._replace(error=f"{answer.error}; {triggers.fate(self._spec, topic)}")

    def _fail(self, error: BaseException) -> None:
        """Note the error that ended a thread, the first one if there are several, and stop the instance: `run` raises
        it.
        """
        if self._failure is None:
            self._failure = without_frames(error)
        self.stop()

    # -- its beginning

    def _fence(self, client: WriteClient) -> Identity | None:
        """Make earlier instances unable to commit, and return the identity with which this one commits. If the server
        has no transactions, log a warning and return None for ATLEAST_ONCE, and raise ClientError for any other
        guarantee.
        """
        try:
            return client.init_producer(self._id, TRANSACTION_TIMEOUT_MS)
        except NoTransactionsError as error:
            guarantee = self._spec.processing_guarantees
            if guarantee is not Guarantee.ATLEAST_ONCE:
                raise ClientError(
                    f"set processingGuarantees of {self._spec.fqfn} to ATLEAST_ONCE, or switch transactions on: "
                    f"{guarantee.value} needs them ({error})"
                ) from None
            log.warning("offsets are committed without a fence: a second instance is not noticed (%s)", error)
            return None

    def _positions(self, writer: WriteClient, reader: ReadClient, identity: Identity | None) -> Offsets:
        """Return the offset from which each partition is read: the committed one, else (or for all, with
        `skip_to_latest`) the one that `_start_of` chooses, which is committed before anything is read. Notes the latter
        partitions as fresh.
        """
        known = writer.committed(self._spec.group, self.partitions)
        positions = {partition: offset for partition, (offset, _) in known.items()}
        if self._spec.skip_to_latest:
            positions.clear()
        new = {
            partition: self._start_of(partition, positions)
            for partition in self.partitions
            if partition not in positions
        }
        self._fresh = new.keys()
        if new:
            starts = reader.list_offsets(new, READ_COMMITTED)
            commit(writer, identity, [self._spec.group], starts)
            positions |= starts
        return positions

    def _start_of(self, partition: TopicPartition, committed: Offsets) -> int:
        """Return EARLIEST or LATEST for a partition without a committed offset. EARLIEST if the group has committed
        another partition of its topic, or, if its input is a pattern, any partition: then this one came later. Else as
        the definition says.
        """
        spec = self._spec
        is_regex = spec.inputs[input_of(spec, partition[0])].is_regex
        if any(is_regex or topic == partition[0] for topic, _ in committed):
            return EARLIEST
        return EARLIEST if spec.subscription_position == "Earliest" and not spec.skip_to_latest else LATEST

    def _new_reader(self) -> ReadClient:
        return ReadClient(self._settings, int(self._patience * 1000))

    def _new_writer(self) -> WriteClient:
        return self._hurried(WriteClient(self._settings, self._patience))

    def _hurried(self, client: C) -> C:
        """Return the client, which is kept for `stop`: from then on it tries requests again for 8 s at most."""
        self._clients.append(client)
        if self._stopping:
            client.hurry(HURRY_SECONDS)
        return client

    def _new_state(self, writer: WriteClient, identity: Identity | None) -> FunctionState:
        self._state = FunctionState(
            self._spec,
            self.partitions,
            writer,
            lambda: self._hurried(self._new_reader()),
            refused=_NO_STATE.format(self._spec.fqfn) if identity is None else None,
            failed=self._fail,
            wake=self._wake,
            patience=lambda: HURRY_SECONDS if self._stopping else self._patience,
        )
        return self._state

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.wake()

    def _starts(self, reader: ReadClient, positions: Offsets) -> Offsets:
        """Return these positions, each moved up to the first record of its partition that is still there. They are for
        a function with windows: after a restart these wait until records that were read before are read again, and
        would wait in vain for those that retention has removed.
        """
        first = reader.list_offsets(dict.fromkeys(positions, EARLIEST), READ_COMMITTED)
        return {partition: max(offset, first[partition]) for partition, offset in positions.items()}

    def _calls(self, outputs: Outputs, state: FunctionState, starts: Offsets) -> Calls | BatchCalls:
        spec, code = self._spec, self._code

        def context(effects: list[Effect]) -> FunctionContext:
            return FunctionContext(
                spec,
                self._instance_id,
                effects,
                logger=self._logger,
                serde=lambda name: of_class_name(name, code),
                secrets=self._secrets,
                record_metric=self.stats.metric,
                state=state.changes,
                version=self._version,
            )

        common: dict[str, Any] = {
            "context": context,
            "stopping": lambda: self._stopping,
            "calling": self.calling,
            "partitions": self._indexes,
            "logger": self._logger,
            "stats": self.stats,
            "triggers": self._triggers,
        }
        if code.is_batch:
            return BatchCalls(spec, code, outputs, **common)
        common |= {"inputs": self._inputs, "output": self._output}
        if spec.window is not None:
            common |= {"starts": starts, "fresh": self._fresh, "state": state, "extractor": self._extractor}
            return WindowCalls(spec, code, outputs, **common)
        return Calls(spec, code, outputs, **common)

    # -- its work

    def _work(self, calls: Calls | BatchCalls, reader: ReadAhead, end: BatchEnd) -> None:
        pending: deque[Taken] = deque()
        later: list[Taken] = []
        is_settled = False
        while not self._stopping:
            settles = False
            seconds = 0.0 if calls.retry() else self._idle_seconds(calls, end)
            waiting = calls.waiting()
            pending.extendleft(taken for taken in reversed(later) if taken.partition not in waiting)
            later = [taken for taken in later if taken.partition in waiting]
            if not pending:
                pending.extend(reader.take(BATCH_RECORDS, waiting, seconds))
                end.begin(pending)
            deadline = clock.monotonic() + BATCH_SECONDS
            while pending and not self._stopping:
                taken = pending.popleft()
                if taken.partition in calls.waiting():
                    later.append(taken)
                    continue
                if self._poison is not None and (before := self._poison.place_in(taken)) is not None:
                    settles = before == 0 and not is_settled
                    if settles:
                        pending.appendleft(taken)
                        break
                    taken, others = divided(taken, before or 1)
                    if others is not None:
                        pending.appendleft(others)
                    if before == 0:
                        deadline = 0.0
                done = calls.take(taken, deadline)
                if deadline == 0.0:
                    self._poison = None
                if done < len(taken.records):
                    pending.appendleft(taken._replace(records=taken.records[done:]))
                    if clock.monotonic() >= deadline:
                        break
            if os.getpid() != self._process:
                os._exit(0)  # the function has forked itself, and what this copy did is not the instance's
            if self._failure is None:
                end.write(calls.committable())
                calls.written()
                if settles:
                    end.settle()
                    is_settled = True

    @staticmethod
    def _idle_seconds(calls: Calls | BatchCalls, end: BatchEnd) -> float | None:
        """Return the seconds after which the loop has something to do even if no record comes: a message to be tried
        again, or offsets to be committed again; None for never.
        """
        times = [due for due in (calls.next_due(), end.next_due()) if due is not None]
        return max(0.0, min(times) - clock.monotonic()) if times else None


def logger_of(spec: FunctionSpec, instance_id: int) -> logging.Logger:
    """Return the logger of an instance, which its context gives to the function, and which is told of failed calls."""
    return logging.getLogger(f"{__name__}.{spec.fqfn.replace('.', '_').replace('/', '.')}.{instance_id}")


def check_batches(spec: FunctionSpec) -> None:
    """Raise ClientError if a function cannot take record batches of Arrow: pyarrow is missing, its guarantee is MANUAL,
    or it names a serde or a schema.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ClientError(f"install pyarrow: process_batch of {spec.fqfn} needs it")
    if spec.processing_guarantees is Guarantee.MANUAL:
        raise ClientError(f"set processingGuarantees of {spec.fqfn} to another one: a batch is done as a whole")
    named = [given for given in spec.inputs.values() if given.serde_class_name or given.schema_type]
    if named or spec.output_serde_class_name or spec.output_schema_type:
        raise ClientError(f"leave serdes and schemas of {spec.fqfn} out: process_batch takes and gives bytes")


def read_secrets(spec: FunctionSpec) -> dict[str, str]:
    """Return the secrets of a function by their names, read from variables of this process and from files; ClientError
    if one is missing.
    """
    secrets: dict[str, str] = {}
    for name, place in spec.secrets.items():
        try:
            text = os.environ[place.env] if place.env else Path(place.file).read_text(encoding="utf-8").rstrip("\r\n")
            secrets[name] = text
        except KeyError:
            raise ClientError(f"set the variable {place.env}: it has the secret {name}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ClientError(f"write the secret {name} to {place.file}: {error}") from None
    return secrets
