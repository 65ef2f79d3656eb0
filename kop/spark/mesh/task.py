"""A task: some input partitions of one component, from the beginning of a batch to its end, in a Python worker.

Owns: the loop that reads and gives each lane its turn, the end of a batch, what is told to the driver meanwhile.
Must not know: Spark, how a lane works.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from kop import clock
from kop.allocator import keep_large_buffers, resident_bytes
from kop.client.offsets import TopicPartition
from kop.client.read_client import FetchSettings, ReadClient
from kop.client.write_client import WriteClient
from kop.errors import without_frames
from kop.functions import stand_in
from kop.functions.function import CodePlace, FunctionCode, load_place
from kop.functions.instance import BATCH_RECORDS, BATCH_SECONDS, HURRY_SECONDS, Instance
from kop.functions.logs import LogTopic
from kop.functions.packages import read_package, unpack
from kop.functions.reading import ANSWER_BYTES, PARTITION_BYTES, READ_COMMITTED, ReadAhead, Taken
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.stats import StatsSnapshot
from kop.functions.watch import CallWatch, place_of
from kop.garbage_collector import collected_seldom
from kop.spark.mesh.calls_file import CallsFile, ended_calls
from kop.spark.mesh.component import Step, TaskComponent, Work
from kop.spark.mesh.lane import Lane, ReadyStep
from kop.spark.mesh.link import DriverLink
from kop.spark.mesh.share import Share
from kop.spark.mesh.write_behind import WriteBehind

log = logging.getLogger(__name__)

C = TypeVar("C", WriteClient, ReadClient)
_Record: TypeAlias = tuple[TopicPartition, int]
"""A partition and an offset."""
FETCH_WAIT_MS: Final = 250
"""The milliseconds that a server holds a Fetch at most: the end of a batch waits for the one that is under way."""
TELL_SECONDS: Final = 1.0
DRAIN_RECORDS: Final = 50_000
"""The most records of a batch with an end that go through the functions before what they gave is written."""
DRAIN_SECONDS: Final = 0.5
"""The most seconds for that: nobody waits for these records, and each transaction takes some milliseconds."""
DRAIN_PARTITION_BYTES: Final = 4 << 20
DRAIN_ANSWER_BYTES: Final = 16 << 20
"""The bytes that such a batch asks for at a time, of a partition and in all: more than a batch without an end, which
waits for new records, while these are there. So there are fewer requests, and larger transactions. It takes more
memory, too, so a component with a function that has a limit (`ram`) does without.
"""
LOOK_SECONDS: Final = 0.1
"""The seconds between two looks of a task at the news of other threads while it waits for records."""

_codes: dict[tuple[str, str, str, str], FunctionCode] = {}
"""The functions that this process has loaded, by full name, package and class."""


def run_task(work: Work, share: Share) -> list[dict[str, Any]]:
    """Call the functions of a component with the records of a task's partitions, commit what is done, and return the
    counts of each function once the batch ends. NoDriverError if the driver does not let the task begin; else raises
    the first error of the task.
    """
    if all(step.spec.ram is None for step in work.component.steps):
        keep_large_buffers()
    with collected_seldom():
        task = _WholeTask(work, share) if work.component.is_whole else _Task(work, share)
        return task.run()


def cache_folder() -> Path:
    """Return the folder for unpacked code on this machine, in the user's cache (XDG_CACHE_HOME); it is not made."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kop" / "functions"


def _load(step: Step) -> FunctionCode:
    """Return the code of a function; a process loads it once, and keeps it for later tasks.

    If the file that the definition names is on this machine, with the same content, it is loaded from there, so that it
    can import the modules beside it; else it is unpacked into `cache_folder` and loaded from that.
    """
    key = step.spec.fqfn, step.code.digest, step.code.name, step.spec.class_name
    if key not in _codes:
        path = Path(step.spec.py)
        if path.suffix == ".py" and path.is_file() and read_package(path).digest == step.code.digest:
            place = CodePlace(str(path))
        else:
            place = unpack(step.code, cache_folder())
        _codes[key] = load_place(place, step.spec.class_name)
    return _codes[key]


def counts(spec: FunctionSpec, stats: StatsSnapshot) -> dict[str, Any]:
    """Return a function's full name, as `function`, and its counts, in the form that is sent to the driver."""
    return {"function": spec.fqfn, **asdict(stats)}


class _Base:
    """The parts that both kinds of tasks have: the line to the driver, the end of a batch, clients."""

    def __init__(self, work: Work, share: Share) -> None:
        self._work = work
        self._share = share
        self._stopped = threading.Event()
        self._clients: list[WriteClient | ReadClient] = []
        seconds = work.batch_seconds
        self._end = float("inf") if share.ends is not None or seconds is None else clock.monotonic() + seconds
        self._told_at = 0.0
        self._link = DriverLink(work.hub, work.token, work.component.name, self._stop)

    @property
    def _component(self) -> TaskComponent:
        return self._work.component

    def _stop(self) -> None:
        self._stopped.set()
        for client in list(self._clients):
            client.hurry(HURRY_SECONDS)

    def _hurried(self, client: C) -> C:
        self._clients.append(client)
        if self._stopped.is_set():
            client.hurry(HURRY_SECONDS)
        return client

    def _new_writer(self) -> WriteClient:
        return self._hurried(WriteClient(self._work.settings, self._work.patience))

    def _new_reader(self) -> ReadClient:
        return self._hurried(ReadClient(self._work.settings, int(self._work.patience * 1000)))

    def _patience(self) -> float:
        return HURRY_SECONDS if self._stopped.is_set() else self._work.patience

    def _tell(self, functions: list[dict[str, Any]], *, last: bool = False) -> None:
        now = clock.monotonic()
        if last or now >= self._told_at + TELL_SECONDS:
            self._told_at = now
            self._link.tell(functions=functions, last=last, task=self._share.number)

    def _tell_ended(
        self, function: str, what: str, at: _Record | None, suspect: _Record | None, reason: str = ""
    ) -> str:
        """Tell the driver of a call that has ended a process, or has to be ended with its process; returns the line
        that says so to people, in which `what` stands behind the function. `at` is the record of the call, `suspect`
        the last input record that may have caused it; None if not known.
        """
        where = "" if at is None else f" at {at[0][0]}-{at[0][1]} offset {at[1]}"
        text = f"{function} {what}{where}{reason and ': '}{reason}"
        self._link.tell(
            killed=function,
            text=text,
            at=None if at is None else [*at[0], at[1]],
            suspect=None if suspect is None else [*suspect[0], suspect[1]],
        )
        return text

    def _kill(self, function: str, at: _Record | None, suspect: _Record | None, reason: str) -> None:
        """Tell the driver of a call that takes too much time or memory, write that and the stacks of all threads to
        standard error, and end this process with code 70: the call cannot be ended otherwise.
        """
        text = self._tell_ended(function, "has to be ended", at, suspect, reason)
        sys.stderr.write(f"{text}\n")
        faulthandler.dump_traceback(all_threads=True)  # the call is in another thread than this one, which looks
        os._exit(70)


class _Task(_Base):
    """A task that calls the functions of a component in turn."""

    def run(self) -> list[dict[str, Any]]:
        """Process records of all partitions until the batch ends, the driver says so, or an error stops it; what is
        done is committed meanwhile. Then end the lanes, and tell the driver the last counts. Returns the counts of each
        function; raises the first error instead if there is one.
        """
        stand_in.install()
        drains = self._share.ends is not None
        asks_for_more = drains and all(step.spec.ram is None for step in self._component.steps)
        with ExitStack() as stack:
            stack.callback(self._link.close)
            for part in self._component.steps:
                stack.enter_context(LogTopic(part.spec, self._work.settings))
            calls_file = self._calls_file(stack)
            self._steps = [
                ReadyStep(step, _load(step), calls_file, number) for number, step in enumerate(self._component.steps)
            ]
            self._watch(stack)
            self._failure: BaseException | None = None
            self._whole = False
            writer = self._new_writer()
            stack.callback(writer.close)
            self._behind = WriteBehind()
            stack.callback(self._behind.close)
            lanes: dict[TopicPartition, Lane] = {}
            stack.callback(self._close, lanes)
            for place in self._share.partitions:
                lanes[place] = Lane(
                    self._component,
                    self._steps,
                    place,
                    writer,
                    self._new_writer,
                    self._new_reader,
                    self._patience,
                    calls_file,
                    self._behind,
                    max(self._suspects.get(place, -1), self._work.suspects.get(place, -1)),
                    may_lag=drains,
                )
            positions = {place: lane.position for place, lane in lanes.items()}
            fetch = FetchSettings(
                isolation=READ_COMMITTED,
                partition_bytes=DRAIN_PARTITION_BYTES if asks_for_more else PARTITION_BYTES,
                max_bytes=DRAIN_ANSWER_BYTES if asks_for_more else ANSWER_BYTES,
                wait_ms=FETCH_WAIT_MS,
            )
            reader = ReadAhead(self._new_reader(), self._new_reader, positions, self._fail, fetch)
            # Behind the end of a batch nothing is read: the thread that waits for further records ends by itself.
            stack.callback(reader.close, 0.0 if drains else FETCH_WAIT_MS / 1000)
            for step in self._steps:
                step.stats.lag = lambda: {
                    place: max(0, end - lanes[place].position) for place, (end, _) in reader.ends().items() if end >= 0
                }
            self._work_on(reader, lanes)
            self._whole = True
        if self._failure is not None:
            raise self._failure
        return self._counts()

    def _calls_file(self, stack: ExitStack) -> CallsFile:
        """Tell the driver of the calls in which earlier processes of this component have ended on this machine, and
        keep up to which offset such a record may lie in each partition. Then make and return the file for the calls of
        this task, which `stack` removes at the end.
        """
        folder, name = cache_folder().parent / "calls", self._component.full_name
        self._suspects: dict[TopicPartition, int] = {}
        for call in ended_calls(folder, name):
            place, offset = call.suspect
            self._suspects[place] = max(offset, self._suspects.get(place, -1))
            self._tell_ended(call.function, "has ended its worker", call.at, call.suspect)
        self._file = CallsFile(folder, name, [step.spec.fqfn for step in self._component.steps], self._share.partitions)
        stack.callback(self._file.close)
        return self._file

    def _counts(self) -> list[dict[str, Any]]:
        return [{**counts(step.spec, step.stats.snapshot()), "handed": {**step.handed}} for step in self._steps]

    def _close(self, lanes: Mapping[TopicPartition, Lane]) -> None:
        try:
            self._behind.settle()
        except Exception as error:
            self._fail(error)
            self._whole = False
        for lane in lanes.values():
            try:
                lane.close(whole=self._whole)
            except Exception as error:
                self._fail(error)
        self._tell(self._counts(), last=True)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = without_frames(error)

    def _work_on(self, reader: ReadAhead, lanes: Mapping[TopicPartition, Lane]) -> None:
        ends = self._share.ends
        most, seconds = (BATCH_RECORDS, BATCH_SECONDS) if ends is None else (DRAIN_RECORDS, DRAIN_SECONDS)
        while not self._is_over(lanes):
            now = clock.monotonic()
            for lane in lanes.values():
                lane.retry(now)
            busy = {place for place, lane in lanes.items() if lane.is_held or lane.has_work}
            if ends is not None:
                busy |= {place for place, lane in lanes.items() if lane.fed >= ends[place]}
            has_work = any(lane.has_work for lane in lanes.values())
            waits = 0.0 if has_work or self._behind.is_busy else self._idle_seconds(lanes, now)
            for taken in reader.take(most, busy, waits):
                has_work = True
                lanes[taken.partition].feed(taken if ends is None else _before(taken, ends[taken.partition]))
            self._behind.settle(0.0 if has_work else LOOK_SECONDS)
            for lane in lanes.values():
                if lane.has_work:
                    lane.run(clock.monotonic() + seconds, self._stopped.is_set)
            self._tell(self._counts())

    def _is_over(self, lanes: Mapping[TopicPartition, Lane]) -> bool:
        if self._failure is not None or self._stopped.is_set():
            return True
        ends = self._share.ends
        if ends is not None:
            return all(lane.position >= ends[place] for place, lane in lanes.items())
        return clock.monotonic() >= self._end and not any(lane.gives_up_later for lane in lanes.values())

    def _idle_seconds(self, lanes: Mapping[TopicPartition, Lane], now: float) -> float:
        dues = [due for lane in lanes.values() if (due := lane.next_due()) is not None]
        return max(0.0, min([self._end, now + LOOK_SECONDS, *dues]) - now)

    def _watch(self, stack: ExitStack) -> None:
        """Start a thread for each function with a limit, which ends the process if a call takes longer than its
        timeoutMs or the process has more memory than its resources.ram; `stack` ends the threads.
        """
        over = threading.Event()
        stack.callback(over.set)
        for step in self._steps:
            watch = CallWatch(step.spec.timeout_ms, step.spec.ram)
            if watch.seconds is not None:
                threading.Thread(target=self._look, args=(step, watch, over), daemon=True).start()

    def _look(self, step: ReadyStep, watch: CallWatch, over: threading.Event) -> None:
        while not over.wait(watch.seconds):
            calling = list(step.calling)
            reason = watch.look(calling, resident_bytes(), clock.monotonic())
            if reason is not None:
                at, suspect = place_of(calling, step.places.known), self._file.suspect()
                self._file.close()  # this is told here
                self._kill(step.spec.fqfn, at, suspect if at else None, reason)


class _WholeTask(_Base):
    """A task with all partitions of one function, which runs as an instance of the function as it does elsewhere.

    What a function with MANUAL has not acknowledged holds the end of the batch, for the next one would call it again.
    """

    def run(self) -> list[dict[str, Any]]:
        """Run the instance until the batch ends, the driver says so, or it fails, and tell the driver its counts and,
        at the end, the offsets that it has reached. Returns the counts of the function; raises the instance's error
        instead if there is one. A call that takes too much time or memory ends the process.
        """
        stand_in.install()
        (step,) = self._component.steps
        with ExitStack() as stack:
            stack.callback(self._link.close)
            stack.enter_context(LogTopic(step.spec, self._work.settings))
            instance = Instance(
                step.spec,
                _load(step),
                self._work.settings,
                self._share.partitions,
                patience=self._work.patience,
                fetch_wait_ms=FETCH_WAIT_MS,
                end_seconds=FETCH_WAIT_MS / 1000,
            )
            failures: list[BaseException] = []

            def run() -> None:
                try:
                    instance.run()
                except BaseException as error:
                    failures.append(without_frames(error))

            thread = threading.Thread(target=run, name="kop-mesh-instance", daemon=True)
            thread.start()
            watch = CallWatch(step.spec.timeout_ms, step.spec.ram)
            while thread.is_alive() and not self._stopped.is_set() and not self._is_over(instance):
                calling = list(instance.calling)
                if (reason := watch.look(calling, resident_bytes(), clock.monotonic())) is not None:
                    at = place_of(calling, instance.partitions)
                    self._kill(step.spec.fqfn, at, at, reason)
                self._tell([counts(step.spec, instance.stats.snapshot())])
                self._stopped.wait(LOOK_SECONDS)
            instance.stop()
            thread.join()
            told = [counts(step.spec, instance.stats.snapshot())]
            self._link.tell(reached=[[*place, offset] for place, offset in instance.reached().items()])
            self._tell(told, last=True)
            if failures:
                raise failures[0]
        return told

    def _is_over(self, instance: Instance) -> bool:
        """Return if the batch is to end; False until the instance has begun.

        If the batch has a time, it ends with that; if it has planned ends, when all before them is done. With MANUAL no
        partition may have lag then, either: all is acknowledged. With MANUAL, ends and `once` it ends when all before
        the planned ends was called, acknowledged or not.
        """
        if not instance.started.is_set():
            return False
        ends, is_manual = self._share.ends, self._component.guarantee is Guarantee.MANUAL
        if ends is None:
            is_due = clock.monotonic() >= self._end
        else:
            offsets = instance.reached() if is_manual and self._work.once else instance.done()
            is_due = all(offsets.get(place, 0) >= end for place, end in ends.items())
        if not is_due or not is_manual or (self._work.once and ends is not None):
            return is_due
        lag = instance.stats.lag()
        return len(lag) == len(instance.partitions) and not any(lag.values())


def _before(taken: Taken, end: int) -> Taken:
    """Return `taken` with only its records before the offset `end`, as if no further ones had been read."""
    if taken.next_offset <= end:
        return taken
    return Taken(taken.partition, taken.records.before(end), end)
