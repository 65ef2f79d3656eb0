"""The calls of a function: a message in, what it gave out, and what waits while a failed one is tried again.

Owns: which messages wait for which, and what becomes of one that the function does not take.
Must not know: where messages come from, when outputs are written and offsets committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from kop import clock
from kop.client.offsets import TopicPartition
from kop.client.record_columns import RecordColumns
from kop.compiled import compiled
from kop.functions import _pure_calls
from kop.functions.call_base import CallBase, NackedError, ends_instance
from kop.functions.context import Acked, Effect, InputRecord, Nacked, Publish
from kop.functions.output_sizes import RECORD_BYTES, too_large
from kop.functions.reading import Taken
from kop.functions.serdes import Serde, all_decoded, is_plain_text
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.state import StateChanges, StateError, StateLostError
from kop.functions.watch import GENERATION, NOT_CALLING, OFFSET, PARTITION

if TYPE_CHECKING:
    from kop import _native as twin
else:
    twin = compiled(_pure_calls)
"""The compiled twin, or the plain one; a test may set it."""

T = TypeVar("T")

_NO_OFFSET: Final = 1 << 63
"""A number behind all offsets."""
AHEAD_RECORDS: Final = 1_000
"""The most messages of a partition that are called behind one that is not done yet."""

Unit: TypeAlias = tuple[TopicPartition, bytes | None]
"""A unit that waits while a message of it is tried again: a whole partition (None), or a key of one."""
Place: TypeAlias = tuple[TopicPartition, int]


class CallResult(NamedTuple):
    """The result of a call: its output if it is not None, and the effects that it asked of its context."""

    output: bytes | None
    effects: Sequence[Effect]
    seconds: float


Left: TypeAlias = tuple[InputRecord, CallResult | BaseException]
"""A message that has asked for more than a result, with what its call gave, or that has failed, with its error."""


class Calls(CallBase):
    """The calls of one instance with messages. `inputs` has the serde of each topic, `output` that of results."""

    def __init__(self, spec: FunctionSpec, *arguments: Any, inputs: Mapping[str, Serde], output: Serde, **options: Any):
        super().__init__(spec, *arguments, **options)
        self._inputs = inputs
        self._output = output
        self._manual = spec.processing_guarantees is Guarantee.MANUAL
        self._by_partition = spec.processing_guarantees is Guarantee.EFFECTIVELY_ONCE or bool(spec.retain_ordering)
        self._by_key = not self._by_partition and bool(spec.retain_key_ordering)
        self._blocked: dict[Unit, deque[InputRecord]] = {}
        """The messages that wait, by the unit that they belong to; the failed message itself is not among them."""
        self._freed: list[Unit] = []
        """The units of which a message was acknowledged by a call with another one, if others wait in them."""
        # Only code of Python lets other threads have their turn: compiled code that calls compiled code would not.
        is_python = isinstance(self._code.plain, FunctionType | MethodType)
        self._call_each = twin.call_each if is_python else _pure_calls.call_each
        self._open: dict[Place, InputRecord] = {}
        """The messages that are tried again, and with MANUAL those that nobody has acknowledged."""
        self._loop: asyncio.AbstractEventLoop | None = asyncio.new_event_loop() if self._code.is_async else None

    def close(self) -> None:
        """End the event loop of asynchronous functions."""
        if self._loop is not None:
            self._loop.close()

    # -- for the loop of the instance

    def waiting(self) -> Collection[TopicPartition]:
        """Return the partitions of which no further message is to be taken now: those that keep their order and have a
        failed message to be tried again, and those of which 1000 messages were taken behind one that is not done.
        """
        return {partition for partition in {partition for partition, _ in self._open} if self._waits(partition)}

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, at which `retry` has something to do; None if nothing
        waits for that.
        """
        return float("-inf") if self._freed else super().next_due()

    def _waits(self, partition: TopicPartition) -> bool:
        return (partition, None) in self._blocked or self._acks.ahead(partition) >= AHEAD_RECORDS

    def take(self, taken: Taken, deadline: float) -> int:
        """Call the function with messages until the deadline (seconds of the monotonic clock), a stop, or until the
        partition waits; returns how many were taken, at least one if there are any. An asynchronous function gets as
        many at once as it may have, whatever the deadline. Failures of calls are handled here.
        """
        partition, records, behind = taken
        self._begin(partition)
        if self._loop is not None:
            number = self._take_together(partition, records)
        elif self._manual or self._blocked or self._triggers:
            number = self._take_singly(partition, records, deadline)
        else:
            number = self._take_many(partition, records, deadline)
        self._calling[PARTITION] = NOT_CALLING
        self._stats.took(number)
        if number == len(records):
            self._acks.passed(partition, behind)
        return number

    def _take_singly(self, partition: TopicPartition, records: Sequence[InputRecord], deadline: float) -> int:
        number = 0
        for record in records:
            self._one(partition, record)
            number += 1
            if clock.monotonic() >= deadline or self._stopping() or (self._open and self._waits(partition)):
                break
        return number

    def _take_many(self, partition: TopicPartition, records: Sequence[InputRecord], deadline: float) -> int:
        """Call the function with messages, none of which waits for another, until the deadline, a stop, or until one
        waits for another attempt; returns how many were taken.
        """
        if self._open:
            records = records[: max(1, AHEAD_RECORDS - self._acks.ahead(partition))]
        columns = RecordColumns.of(records)
        run: Callable[[int], tuple[int, Left | None]]
        if self._code.plain is not None and deadline == float("inf"):
            results = map(self._code.plain, self._decoded(partition[0], columns.values))
            run = partial(self._run_plain, partition, columns, iter(columns.offsets), results)
        else:
            run = partial(self._run, partition, columns, iter(columns), deadline)
        number = 0
        while number < len(columns):
            if number:
                self._begin(partition)
            count, left = run(number)
            number += count
            if left is not None:
                record, outcome = left
                self._acks.taken(partition, record[0])
                self._settle(partition, record, outcome)
                del left, outcome
                number += 1
            if self._open or self._blocked or clock.monotonic() >= deadline or self._stopping():
                break
        return number

    def _decoded(self, topic: str, values: Sequence[bytes | None]) -> Iterable[Any]:
        """Return the inputs that the serde of a topic makes of values; those of which it is asked one by one are made
        when they are taken, and then its error is raised, too.
        """
        serde = self._inputs[topic]
        decoded = all_decoded(serde, values)
        return map(serde.deserialize, values) if decoded is None else decoded

    def _run(
        self,
        partition: TopicPartition,
        records: RecordColumns,
        rest: Iterator[InputRecord],
        deadline: float,
        start: int,
    ) -> tuple[int, Left | None]:
        """Call the function with the messages of the iterator `rest`, which are those of `records` from `start` on. End
        at the first message that fails or asks for something other than state, and at the deadline or a stop; with an
        endless deadline at neither.

        Returns how many are done, and the message that it ended at with its result or error. Quick functions spend
        their time here, so what is the same for all messages is done once.
        """
        context, effects = self._context, self._effects
        calling, stopping, now, begin = self._calling, self._stopping, clock.monotonic, context.begin
        call, plain, deserialize = self._code.call, self._code.plain, self._inputs[partition[0]].deserialize
        is_endless = deadline == float("inf")
        serialize = self._output.serialize if self._spec.output else None
        values: list[bytes] = []
        offsets: list[int] = []
        effects.clear()
        number = 0
        left: Left | None = None
        changes: StateChanges | None = None
        began = now()
        try:
            for record in rest:
                calling[OFFSET] = record[0]
                if plain is not None:
                    result = plain(deserialize(record[3]))
                else:
                    begin(partition, record)
                    result = call(deserialize(record[3]), context)
                if effects:
                    if len(effects) > 1 or type(effects[0]) is not StateChanges:
                        # The time of those before it has its own in it; if there are none, all so far is its own.
                        left = record, self._given(result, effects, now() if number else began)
                        break
                    changes = effects[0]
                if result is not None and serialize is not None:
                    data = serialize(result)
                    if len(data) > RECORD_BYTES:
                        raise too_large("the result", len(data))
                    values.append(data)
                    offsets.append(record[0])
                if changes is not None:
                    changes.apply()
                    changes = None
                    effects.clear()
                number += 1
                if not is_endless and (now() >= deadline or stopping()):
                    break
        except BaseException as error:  # returned at once: in a local of this frame it would keep the frame
            if ends_instance(error):
                raise
            self._ran(partition, records.offsets[start : start + number], values, offsets, began)
            return number, (record, error)
        finally:
            context.end()
        self._ran(partition, records.offsets[start : start + number], values, offsets, began)
        return number, left

    def _run_plain(
        self,
        partition: TopicPartition,
        records: RecordColumns,
        offsets: Iterator[int],
        results: Iterator[Any],
        start: int,
    ) -> tuple[int, Left | None]:
        """Call a function that takes no context with the messages of `records` from `start` on, without a deadline, and
        end at the first that fails. `offsets` has their offsets; each call is one step of `results`.

        Returns how many are done, and the message that has failed with its error. Rows are made only if one fails.
        """
        encode = self._output.serialize if self._spec.output else None
        is_text = is_plain_text(self._output)
        values: list[bytes] = []
        silent: list[int] = []
        """The offsets of messages without a result."""
        began = clock.monotonic()
        try:
            self._call_each(offsets, results, encode, is_text, self._calling, values, silent)
        except BaseException as error:  # returned at once: in a local of this frame it would keep the frame
            if ends_instance(error):
                raise
            number = self._ran_plain(partition, records, start, values, silent, began)
            return number, (records[start + number], error)
        return self._ran_plain(partition, records, start, values, silent, began), None

    def _ran_plain(
        self,
        partition: TopicPartition,
        records: RecordColumns,
        start: int,
        values: Sequence[bytes],
        silent: Sequence[int],
        began: float,
    ) -> int:
        """Do what `_ran` does for the messages of `records` from `start` on that have been called: `values` are the
        results, `silent` the offsets of those without one. Returns their number.
        """
        number = len(values) + len(silent)
        offsets = records.offsets[start : start + number]
        without = set(silent)
        done = [offset for offset in offsets if offset not in without] if without else offsets
        self._ran(partition, offsets, values, done, began)
        return number

    def _ran(
        self,
        partition: TopicPartition,
        called: Sequence[int],
        values: Sequence[bytes],
        offsets: Sequence[int],
        began: float,
    ) -> None:
        """Add the results of messages to the outputs, and note that the messages are done, whose offsets `called` has.
        `values` and `offsets` are of the messages that have a result.
        """
        self._calling[PARTITION] = NOT_CALLING  # outputs may wait for the server
        if called:
            self._outputs.add_results(self._spec.output, partition, values, offsets)
            self._acks.all_done(partition, called[0], len(called), called[-1] + 1)
            self._stats.called(len(called), clock.monotonic() - began)

    def _begin(self, partition: TopicPartition) -> None:
        """Note for the watch, in the memory `calling`, that messages of a partition are going to be called."""
        self._calling[GENERATION] += 1
        self._calling[PARTITION] = self._partitions[partition]

    def retry(self) -> bool:
        """Call the function again with the messages whose next attempt is due, and with those that have waited for
        them; returns True if any was due.
        """
        now = clock.monotonic()
        due = sorted(self._acks.due(now))
        for partition, offset in due:
            if self._stopping():
                break
            record = self._open.get((partition, offset))
            if record is None:  # the attempt before it has acknowledged it
                continue
            unit = self._unit(partition, record)
            if unit is not None and self._first_waiting(unit) < offset:  # that is called before it
                self._acks.put_off(partition, offset, now)
                continue
            del self._open[partition, offset]
            self._begin(partition)
            if not self._call(partition, record) and unit is not None and self._first_waiting(unit) == _NO_OFFSET:
                self._release(unit)
            self._calling[PARTITION] = NOT_CALLING
        freed, self._freed = self._freed, []
        for unit in freed:
            if self._first_waiting(unit) == _NO_OFFSET:
                self._begin(unit[0])
                self._release(unit)
                self._calling[PARTITION] = NOT_CALLING
        return bool(due or freed)

    # -- one message

    def _first_waiting(self, unit: Unit) -> int:
        """Return the offset of the first message of a unit that is to be tried again; _NO_OFFSET if there is none. A
        call may have refused several (`context.nack`).
        """
        return min(
            (
                place[1]
                for place, record in self._open.items()
                if self._acks.is_waiting(*place) and self._unit(place[0], record) == unit
            ),
            default=_NO_OFFSET,
        )

    def _unit(self, partition: TopicPartition, record: InputRecord) -> Unit | None:
        if self._by_partition:
            return partition, None
        if self._by_key and record[2] is not None:
            return partition, record[2]
        return None

    def _one(self, partition: TopicPartition, record: InputRecord) -> None:
        """Take a message: call the function with it, or keep it behind an earlier message that it waits for."""
        if self._blocked and (waiting := self._waiting_before(partition, record)) is not None:
            self._keep(waiting, partition, record)
        else:
            self._acks.taken(partition, record[0])
            self._call(partition, record)

    def _keep(self, waiting: deque[InputRecord], partition: TopicPartition, record: InputRecord) -> None:
        self._acks.waits(partition, record[0])
        self._acks.taken(partition, record[0])
        waiting.append(record)

    def _waiting_before(self, partition: TopicPartition, record: InputRecord) -> deque[InputRecord] | None:
        """Return the queue of messages that wait for an earlier one of the same key or partition, which is to be tried
        again, if this message has to wait for it, too; else None.
        """
        unit = self._unit(partition, record)
        return None if unit is None else self._blocked.get(unit)

    def _release(self, unit: Unit) -> None:
        """Call the function with the messages that have waited for a failed one of the same key or partition. If one of
        them fails, the rest waits for that.
        """
        waiting = self._blocked.pop(unit, None)
        while waiting and not self._stopping():
            self._call(unit[0], waiting.popleft())
            if unit in self._blocked:  # that message has failed, or has refused an earlier one
                self._blocked[unit].extend(waiting)
                return

    def _call(self, partition: TopicPartition, record: InputRecord) -> bool:
        """Call the function with a message and handle its effects, or its failure; returns True if it is to be called
        again with it.
        """
        self._calling[OFFSET] = record[0]
        if self._loop is not None:
            (outcome,) = self._outcomes(partition, [record])
            return self._settle(partition, record, outcome)
        effects = self._effects
        effects.clear()
        context = self._context
        try:
            context.begin(partition, record)
            value = self._inputs[partition[0]].deserialize(record[3])
            began = clock.monotonic()
            given = self._given(self._code.call(value, context), effects, began)
        except BaseException as error:
            if ends_instance(error):
                raise
            return self._failed(partition, record, error)
        finally:
            context.end()
        return self._done(partition, record, given)

    def _settle(self, partition: TopicPartition, record: InputRecord, outcome: CallResult | BaseException) -> bool:
        if isinstance(outcome, BaseException):
            return self._failed(partition, record, outcome)
        return self._done(partition, record, outcome)

    def _given(self, result: Any, effects: Sequence[Effect], began: float) -> CallResult:
        """Return what a call gave as it is to be written: its result as bytes, its effects, and the seconds since it
        began at `began` (of the monotonic clock). OutputError if the result is too large; else the error of the
        output's serde.
        """
        output: bytes | None = None
        if result is not None and self._spec.output:
            output = self._output.serialize(result)
            if len(output) > RECORD_BYTES:
                raise too_large("the result", len(output))
        return CallResult(output, effects, clock.monotonic() - began)

    def _done(self, partition: TopicPartition, record: InputRecord, given: CallResult) -> bool:
        """Handle a call that went well: apply its effects, add its output, count it, and note that its message is done
        (with MANUAL only if it is acknowledged). If the function asked for another attempt by `context.nack`, or if its
        changes do not fit the state any more, handle it as a failure instead; returns True if the message waits for
        another attempt.
        """
        here = partition, record[0]
        if given.effects:
            if any(
                isinstance(effect, Nacked) and (effect.partition, effect.offset) == here for effect in given.effects
            ):
                return self._failed(partition, record, NackedError("the function called context.nack"))
            try:
                for effect in given.effects:
                    if isinstance(effect, StateChanges):
                        effect.check()
            except StateError as error:
                return self._failed(partition, record, error)
            if self._manual:
                self._open[here] = record
            for effect in given.effects:
                self._act(partition[1], effect)
        elif self._manual:
            self._open[here] = record
        if given.output is not None:
            self._outputs.add_results(self._spec.output, partition, [given.output], [record[0]])
        if self._triggers:
            self._answer([record], given.output)
        self._stats.called(1, given.seconds)
        if self._manual:
            self._acks.called(partition, record[0])
        else:
            self._acks.done(partition, record[0])
        return False

    def _act(self, source: int, effect: Effect) -> None:
        if isinstance(effect, Publish):
            self._publish(source, effect)
        elif isinstance(effect, Acked):
            if self._manual and (held := self._open.pop((effect.partition, effect.offset), None)) is not None:
                self._acks.done(effect.partition, effect.offset)
                unit = self._unit(effect.partition, held)
                if unit is not None and unit in self._blocked:
                    self._freed.append(unit)
        elif isinstance(effect, StateChanges):
            effect.apply()
        elif isinstance(effect, Nacked) and (held := self._open.get((effect.partition, effect.offset))) is not None:
            unit = self._unit(effect.partition, held)
            waits = self._failed(effect.partition, held, NackedError("the function called context.nack"))
            if not waits and unit is not None and unit in self._blocked:
                self._freed.append(unit)

    def _failed(self, partition: TopicPartition, record: InputRecord, error: BaseException) -> bool:
        """Log and count a failure, and keep the message for its next attempt, if it has one. Else give it up: it is
        done, and goes to the dead letter topic, or with ATMOST_ONCE is only logged as lost. Returns True if it waits
        for another attempt.
        """
        if isinstance(error, StateLostError):
            self._acks.waits(partition, record[0])
            self._hold(partition, record)
            return True
        where = f"{partition[0]}-{partition[1]} offset {record[0]}"
        self._note_failure([record], where, error)
        now = clock.monotonic()
        if self._tries and (due := self._acks.failed(partition, record[0], now)) is not None:
            self._tell_next_attempt(where, due - now, error)
            self._hold(partition, record)
            return True
        self._open.pop((partition, record[0]), None)
        self._give_up(partition, [record], f"the message at {where}", error)
        self._acks.done(partition, record[0])
        return False

    def _hold(self, partition: TopicPartition, record: InputRecord) -> None:
        """Keep a message for its next attempt, and let later ones of its key or partition wait for it if the order
        counts.
        """
        self._open[partition, record[0]] = record
        unit = self._unit(partition, record)
        if unit is not None:
            self._blocked.setdefault(unit, deque())

    # -- asynchronous functions

    def _take_together(self, partition: TopicPartition, records: Sequence[InputRecord]) -> int:
        """Call the function with as many messages at once as `maxPendingAsyncRequests` allows, and handle their results
        in the order of the messages; returns how many there were.
        """
        some = records[: self._spec.max_pending_async_requests]
        if some:
            self._calling[OFFSET] = some[0][0]
        for record, outcome in zip(some, self._outcomes(partition, some), strict=True):
            if (waiting := self._waiting_before(partition, record)) is not None:
                self._keep(waiting, partition, record)  # one before it failed: it is called again behind that one
            else:
                self._acks.taken(partition, record[0])
                self._settle(partition, record, outcome)
        return len(some)

    def _outcomes(self, partition: TopicPartition, records: Sequence[InputRecord]) -> list[CallResult | BaseException]:
        """Call the function with messages of a partition at once, and return what each call gave, or its error."""
        open_calls = dict.fromkeys(record[0] for record in records)
        tasks = self._completed([self._awaited(partition, record, open_calls) for record in records])
        return [task.result() if (error := error_of(task)) is None else error for task in tasks]

    def _completed(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[asyncio.Task[T]]:
        """Run coroutines to their ends, also if code of the user cancels their tasks or stops the loop."""
        loop, left = self._loop, len(coroutines)
        assert loop is not None

        def ended(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                loop.stop()

        tasks = [loop.create_task(coroutine) for coroutine in coroutines]
        for task in tasks:
            task.add_done_callback(ended)
        try:
            while left:
                loop.run_forever()
        except BaseException:  # it ends the instance, and is raised here: asyncio need not log it as never retrieved
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()
            raise
        return tasks

    async def _awaited(
        self, partition: TopicPartition, record: InputRecord, open_calls: dict[int, None]
    ) -> CallResult | BaseException:
        """Call the function with a message; `open_calls` has the offsets of the calls of its lot that have not ended.
        The watch sees each begin and end, and the offset of the first call that has not ended.
        """
        effects: list[Effect] = []
        context = self._new_context(effects)
        calling = self._calling
        calling[GENERATION] += 1
        try:
            context.begin(partition, record)
            value = self._inputs[partition[0]].deserialize(record[3])
            began = clock.monotonic()
            return self._given(await self._code.call(value, context), effects, began)
        except BaseException as error:
            if ends_instance(error):
                raise
            return error
        finally:
            context.end()
            del open_calls[record[0]]
            calling[GENERATION] += 1
            calling[OFFSET] = next(iter(open_calls), record[0])


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the error of a task that has ended, CancelledError if it was cancelled; None if it has a result."""
    return asyncio.CancelledError("the function cancelled its task") if task.cancelled() else task.exception()
