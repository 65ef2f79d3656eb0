"""The calls of a function with windows: messages in, `process(list, context)` for each window that is due.

Owns: the call of a window, what waits while one is tried again, late messages, the timestamp extractor.
Must not know: which message is in which window (`kop.functions.windows`), when outputs, marks and offsets are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, get_args, get_origin

from kop import clock
from kop.client.errors import ClientError
from kop.client.offsets import TopicPartition
from kop.functions.acks import wait_seconds
from kop.functions.call_base import NackedError, ends_instance
from kop.functions.calling import CallResult, Calls, error_of
from kop.functions.changelog import FunctionState, topic_of
from kop.functions.context import InputRecord, Nacked
from kop.functions.exception_text import text_of
from kop.functions.function import FunctionCode, FunctionLoadError
from kop.functions.reading import Taken
from kop.functions.serdes import SerdeError
from kop.functions.spec import FunctionSpec
from kop.functions.state import PartitionState, StateLostError
from kop.functions.watch import NOT_CALLING, OFFSET, PARTITION
from kop.functions.windows import Element, Fate, Windows

MARK: Final = b"\xffwindows"
"""The key of the changelog under which the mark of windows is."""
WINDOW_BYTES: Final = 512 << 20
"""The most bytes that open windows may have in memory."""
ELEMENT_BYTES: Final = 500
"""The bytes that a message takes beside those of its key and its value."""
TELL_SECONDS: Final = 60.0
"""The seconds at least between two warnings that late messages are dropped."""

Extractor: TypeAlias = Callable[[Any], Any]


def of_elements(code: FunctionCode) -> FunctionCode:
    """Return the code with an input annotation for one message in place of that for a window: int for `list[int]`, Any
    if there is no such one.
    """
    annotation = code.input_annotation
    is_list = get_origin(annotation) is not None and len(get_args(annotation)) == 1
    return dataclasses.replace(code, input_annotation=get_args(annotation)[0] if is_list else Any)


def extractor_of(spec: FunctionSpec, code: FunctionCode) -> Extractor | None:
    """Return the function that takes a message and returns its time in milliseconds, or the `extract_timestamp` of a
    class; None if the function has no windows by event time.

    ClientError if the extractor that the definition names cannot be imported or made.
    """
    name = spec.window.timestamp_extractor if spec.window else ""
    if not name:
        return None
    try:
        made = code.find(name)
        if isinstance(made, type):
            made = made()
            made = getattr(made, "extract_timestamp", None) or made.extractTimestamp
    except FunctionLoadError as error:
        raise ClientError(f"write the timestamp extractor {name}: it cannot be had: {error}") from None
    except Exception as error:
        raise ClientError(
            f"mend the timestamp extractor {name}: it has to be a function, or a class without arguments that has "
            f"extract_timestamp(value) ({text_of(error)})"
        ) from None
    if not callable(made):
        raise ClientError(f"mend the timestamp extractor {name}: it has to be a function or a class")
    extractor: Extractor = made
    return extractor


@dataclasses.dataclass(slots=True)
class _Unit:
    """Windows that have messages in common: those of the function, or of a partition of its input."""

    windows: Windows
    state: PartitionState
    failures: int = 0
    """The number of times that the next call has failed."""
    due: float = 0.0
    """The time at which the failed call is made again, in seconds of the monotonic clock."""
    refused: tuple[TopicPartition, InputRecord] | None = None
    """A message that failed before it came into a window; all others wait for it."""


class WindowCalls(Calls):
    """The calls of one instance with windows. `starts` are the offsets from which on there are messages, `fresh` those
    of them that no instance has committed before.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        *arguments: Any,
        starts: Mapping[TopicPartition, int],
        fresh: Collection[TopicPartition],
        state: FunctionState,
        extractor: Extractor | None,
        **options: Any,
    ) -> None:
        super().__init__(spec, *arguments, **options)
        self._extractor = extractor
        self._max_retries = spec.max_message_retries
        self._late_topic = spec.window.late_data_topic if spec.window else ""
        self._late = 0
        """The number of late messages that were dropped since the last warning."""
        self._told = -TELL_SECONDS
        self._kept_bytes = 0
        """The bytes that open windows have in memory."""
        self._state = state
        self._units: dict[TopicPartition, _Unit] = {}
        self._all: list[_Unit] = []
        """The units, each once."""
        by_state: dict[int, list[TopicPartition]] = {}
        for partition in starts:
            by_state.setdefault(id(state.of(partition)), []).append(partition)
        for together in by_state.values():
            self._add({partition: starts[partition] for partition in together}, fresh)

    def _add(self, starts: Mapping[TopicPartition, int], fresh: Collection[TopicPartition]) -> _Unit:
        """Make the windows that these partitions share, keep them, and return them. `starts` are the offsets at which
        they begin, `fresh` the partitions that were never read.
        """
        state = self._state.of(next(iter(starts)))
        unit = _Unit(_windows(self._spec, starts, state, fresh), state)
        self._units |= dict.fromkeys(starts, unit)
        self._all.append(unit)
        return unit

    def _unit_of(self, partition: TopicPartition, offset: int) -> _Unit:
        """Return the windows of a partition. One that came later shares those of its state, if there are any; else it
        gets new ones, which begin at `offset`.
        """
        unit = self._units.get(partition)
        if unit is None:
            state = self._state.of(partition)
            unit = next((other for other in self._all if other.state is state), None)
            if unit is None:
                return self._add({partition: offset}, [partition])
            self._units[partition] = unit
        return unit

    # -- for the loop of the instance

    def waiting(self) -> Collection[TopicPartition]:
        """Return the partitions of which no further message is to be taken now: a call of their windows is to be tried
        again, or messages of an earlier instance are to be read again from others first.
        """
        return {partition for partition, unit in self._units.items() if self._has_to_wait(unit, partition)}

    @staticmethod
    def _has_to_wait(unit: _Unit, partition: TopicPartition) -> bool:
        return bool(unit.failures) or unit.windows.waits(partition)

    def take(self, taken: Taken, deadline: float) -> int:
        """Put messages into windows, and call the function with those that are due, until the deadline (seconds of the
        monotonic clock), a stop, or until the partition waits; returns how many messages were taken, 0 if the partition
        waits already.
        """
        partition, records, behind = taken
        unit = self._unit_of(partition, records[0][0] if records else behind)
        number = 0
        if self._has_to_wait(unit, partition):
            return number
        windows, taken_one = unit.windows, self._acks.taken
        now = clock.wall_ms()
        self._begin(partition)
        for record in records:
            taken_one(partition, record[0])
            self._admit(unit, partition, record, now)
            number += 1
            if windows.is_full:
                self._fire(unit)
                self._begin(partition)
            if clock.monotonic() >= deadline or self._stopping() or self._has_to_wait(unit, partition):
                break
        self._calling[PARTITION] = NOT_CALLING
        self._stats.took(number)
        if number == len(records):
            self._acks.passed(partition, behind)
            if unit.refused is None:
                windows.passed(partition, behind)
        self._fire(unit)
        return number

    def retry(self) -> bool:
        """Try a message again that failed before it came into a window, and call the function with the windows that are
        due, for the first time or again; returns True if there was anything to do.
        """
        now = clock.monotonic()
        called = False
        for unit in self._all:
            if self._stopping():
                break
            if unit.failures and now < unit.due:
                continue
            if unit.refused is not None:
                (partition, record), unit.refused = unit.refused, None
                self._begin(partition)
                self._admit(unit, partition, record, clock.wall_ms())
                self._calling[PARTITION] = NOT_CALLING
                called = True
            called = self._fire(unit, again=True) or called
        return called

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, at which a window is due, or something is to be tried
        again; None if nothing is.
        """
        now, now_ms = clock.monotonic(), clock.wall_ms()
        times: list[float] = []
        for unit in self._all:
            if unit.failures:
                times.append(unit.due)
            elif (due := unit.windows.next_due(now_ms)) is not None:
                times.append(now + max(0, due - now_ms) / 1000)
        return min(times, default=None)

    def committable(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offsets before which all is done, if they have moved since the last call, and put
        the marks of windows into the state, to be written with them.
        """
        for unit in self._all:
            mark = unit.windows.mark()
            if mark is not None:
                unit.state.set_mark(MARK, mark)
        return super().committable()

    # -- messages

    def _admit(self, unit: _Unit, partition: TopicPartition, record: InputRecord, now: int) -> None:
        """Put a message into its windows. It is done instead if no window needs it any more, and goes to the topic of
        late data if it is late. If its value or time cannot be had, it is tried again, or given up. ClientError if
        windows hold more than 512 MiB.
        """
        self._calling[OFFSET] = record[0]
        try:
            value = self._inputs[partition[0]].deserialize(record[3])
            time = now if self._extractor is None else _milliseconds(self._extractor(value))
        except BaseException as error:
            if ends_instance(error):
                raise
            if unit.windows.was_taken(partition, record[0]):
                self._acks.done(partition, record[0])  # an earlier instance has given it up
                unit.windows.passed(partition, record[0] + 1)
            elif not self._tried_again(unit, f"{partition[0]}-{partition[1]} offset {record[0]}", [record], error):
                where = f"{partition[0]}-{partition[1]} offset {record[0]}"
                self._give_up(partition, [record], f"the message at {where}", error)
                self._acks.done(partition, record[0])
                unit.windows.leave_out(partition, record[0])
            else:
                unit.refused = partition, record
            return
        unit.failures = 0
        fate = unit.windows.add(Element(time, partition, record[0], value, record), now)
        if fate is Fate.KEPT:
            self._kept_bytes += _size(record)
            if self._kept_bytes > WINDOW_BYTES:
                raise ClientError(
                    f"let windows of {self._spec.fqfn} be shorter, or parallelism higher: those that are open have "
                    f"{WINDOW_BYTES >> 20} MiB in memory, at {partition[0]}-{partition[1]} offset {record[0]}"
                )
            return
        if fate is Fate.LATE:
            self._put_aside(partition, record)
        self._acks.done(partition, record[0])
        self._answer([record], None)

    def _put_aside(self, partition: TopicPartition, record: InputRecord) -> None:
        """Count a late message, and write it to the topic of late data; without one, drop it, and log at most once a
        minute how many were.
        """
        self._stats.metric("late_messages", 1)
        if self._late_topic:
            as_it_was = record[2], record[3], record[4], record[1]
            self._write_whole(self._late_topic, partition, record, [as_it_was], "dropped_late_messages")
            return
        self._late += 1
        if clock.monotonic() >= self._told + TELL_SECONDS:
            self._told = clock.monotonic()
            self._logger.warning(
                "%d late messages were dropped, the last one of %s-%d offset %d: raise maxLagMs, or set lateDataTopic",
                self._late, *partition, record[0],
            )  # fmt: skip
            self._late = 0

    # -- windows

    def _fire(self, unit: _Unit, *, again: bool = False) -> bool:
        """Call the function with the windows that are due; returns True if there were any. While a failed one waits, do
        nothing unless `again`.
        """
        called = False
        while not self._stopping() and unit.refused is None and (again or not unit.failures):
            window = unit.windows.due(clock.wall_ms())
            if not window:
                break
            again = False
            called = True
            if self._call_window(unit, window):
                self._let_go(unit.windows.fired())
        self._let_go(unit.windows.dropped())
        return called

    def _let_go(self, elements: Iterable[Element]) -> None:
        """Note that no window needs these messages any more: they are done, and count no more in memory."""
        for element in elements:
            self._kept_bytes -= _size(element.record)
            self._acks.done(element.partition, element.offset)

    def _call_window(self, unit: _Unit, window: Sequence[Element]) -> bool:
        """Call the function with a window; returns True if the window is over, False if it is to be tried again. It is
        over, too, if it was tried often enough: then all its messages are given up.
        """
        last = window[-1]
        where = f"{last.partition[0]}-{last.partition[1]} offset {last.offset}, the end of a window of {len(window)}"
        self._begin(last.partition)
        self._calling[OFFSET] = last.offset
        try:
            given = self._result([element.value for element in window], last)
        except BaseException as error:
            if ends_instance(error):
                raise
            if self._tried_again(unit, where, [element.record for element in window], error):
                return False
            for element in window:
                place = f"{element.partition[0]}-{element.partition[1]} offset {element.offset}"
                self._give_up(element.partition, [element.record], f"the message at {place}", error)
            return True
        finally:
            self._calling[PARTITION] = NOT_CALLING
        unit.failures = 0
        for effect in given.effects:
            self._act(last.partition[1], effect)
        if given.output is not None:
            self._outputs.add_results(self._spec.output, last.partition, [given.output], [last.offset])
        self._answer([element.record for element in window], given.output)
        self._stats.called(1, given.seconds)
        return True

    def _result(self, values: Sequence[Any], last: Element) -> CallResult:
        effects = self._effects
        effects.clear()
        self._context.begin(last.partition, last.record)
        began = clock.monotonic()
        try:
            result = self._code.call(values, self._context)
            if self._loop is not None:
                (task,) = self._completed([result])
                if (error := error_of(task)) is not None:
                    raise error
                result = task.result()
            given = self._given(result, effects, began)
        finally:
            self._context.end()
        if any(isinstance(effect, Nacked) for effect in effects):
            raise NackedError("the function called context.nack")
        return given

    # -- failures

    def _tried_again(self, unit: _Unit, where: str, records: Iterable[InputRecord], error: BaseException) -> bool:
        """Count and log a failure, and return True if there is another attempt, whose time is noted; False if the
        window, or the message before it came into one, has to be given up. `records` are all messages of the call.
        """
        if isinstance(error, StateLostError):
            unit.failures, unit.due = unit.failures + 1, clock.monotonic() + TELL_SECONDS
            return True
        self._note_failure(records, where, error)
        if not self._tries or (self._max_retries is not None and unit.failures >= self._max_retries):
            unit.failures = 0
            return False
        unit.failures += 1
        wait = wait_seconds(unit.failures)
        unit.due = clock.monotonic() + wait
        self._tell_next_attempt(where, wait, error)
        return True


def _size(record: InputRecord) -> int:
    return ELEMENT_BYTES + len(record[2] or b"") + len(record[3] or b"")


def _windows(
    spec: FunctionSpec,
    starts: Mapping[TopicPartition, int],
    state: PartitionState,
    fresh: Collection[TopicPartition],
) -> Windows:
    assert spec.window is not None
    try:
        return Windows(spec.window, starts, state.marks.get(MARK), fresh)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ClientError(
            f"delete the topic {topic_of(spec)}, or what another one has written to it: what it says of the windows of "
            f"{spec.fqfn} cannot be read ({type(error).__name__}: {error})"
        ) from None


def _milliseconds(time: Any) -> int:
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise SerdeError(f"the timestamp extractor gave a {type(time).__name__}, which must be milliseconds")
    return int(time)
