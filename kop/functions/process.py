"""Instances as processes: one each, started, watched, ended, and started again when they have ended by themselves.

Owns: which processes there are, when one is started again, and what is told of each.
Must not know: why an instance is wanted here, what an instance does (`child`).

One thread reads what the processes write and tell, and learns of their ends. Nothing that a process does holds it up.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from kop import clock
from kop.allocator import resident_bytes
from kop.client.offsets import TopicPartition
from kop.functions import forking
from kop.functions.child import GRACE_SECONDS, Start, run
from kop.functions.definitions import InstanceName
from kop.functions.function import CodePlace
from kop.functions.instance import PATIENCE_SECONDS
from kop.functions.logs import log_end
from kop.functions.poison_record import PoisonRecord
from kop.functions.spec import FunctionSpec
from kop.functions.triggers import ABSENT, LATE
from kop.functions.watch import NOT_CALLING, CallWatch, place_of

log = logging.getLogger(__name__)

LONGEST_DELAY: Final = 60.0
"""Seconds until an instance is started again that ends again and again."""
REPLACED_SECONDS: Final = 10.0
"""Seconds until an instance is started again that another one has replaced: its assignment is about to change, or was
not changed after all."""
WELL_SECONDS: Final = 180.0
"""An instance that has run for so long ran well."""
STATS_SECONDS: Final = 1.0
"""The seconds that a status waits for the statistics of processes."""
BEGIN_SECONDS: Final = 10.0
"""The seconds that a question waits for an instance that is being started."""
MARGIN_SECONDS: Final = 1.0
"""The seconds that the way to an instance's answer may take beyond the time that the instance has."""
_SEND_SECONDS: Final = 5.0
_LINE_BYTES: Final = 4 << 20
"""The most bytes of a line that a process tells."""
_CHUNK: Final = 1 << 16


@dataclass(frozen=True)
class WantedInstance:
    """An instance that has to run. One that differs in anything is another one, for which the earlier one ends."""

    spec: FunctionSpec
    place: CodePlace
    partitions: tuple[TopicPartition, ...]
    revision: int
    number: int


@dataclass(frozen=True)
class InstanceStatus:
    """The known state of an instance."""

    running: bool
    error: str
    """The reason why the instance ended by itself; empty again once it has run well."""
    at: tuple[str, int, int] | None
    """Topic, partition and offset of the record that was being called then; without an error, that is called now."""
    since_ms: int
    """The time since which the instance runs, or fails, in milliseconds since the epoch."""
    restarts: int
    stderr: list[str]
    """The last lines that it wrote."""
    stats: Mapping[str, Any] | None
    """A StatsSnapshot, the last one, without its lag, if it does not answer."""
    next_start_ms: int | None = None
    """The time at which the instance is started again, in milliseconds since the epoch, if it waits for that."""


@dataclass(frozen=True)
class Attempts:
    """The number of times in a row that an instance has ended by itself, soon after its start."""

    failures: int = 0

    def after(self, ran: float) -> Attempts:
        """Return the attempts after another end of the process, which ran for `ran` seconds."""
        return Attempts(1 if ran >= WELL_SECONDS else self.failures + 1)

    @property
    def delay(self) -> float:
        """Seconds until the next start: 1, 2, 4, ... 60."""
        return min(LONGEST_DELAY, 2.0 ** min(self.failures - 1, 10)) if self.failures else 0.0


@dataclass(eq=False)
class _Child:
    """A process, from its start to its end."""

    wanted: WantedInstance
    process: BaseProcess
    output: Connection
    control: socket.socket
    calling: Any
    watch: CallWatch
    began: float
    tail: forking.LastLines = field(default_factory=forking.LastLines)
    buffer: bytes = b""
    has_begun: bool = False
    has_ended: bool = False
    told: str = ""
    """The text that the process has told of its end."""
    is_replaced: bool = False
    reason: str = ""
    """The reason for which the process is killed."""
    kill_at: float | None = None
    """The time at which the process is killed if it does not end, in seconds of the monotonic clock."""
    look_at: float | None = None
    questions: dict[int, Future[dict[str, Any]]] = field(default_factory=dict)
    sending: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False)
class _Slot:
    """An instance that is wanted, or whose process has not ended yet."""

    wanted: WantedInstance | None
    child: _Child | None = None
    attempts: Attempts = Attempts()
    due: float = 0.0
    """The time at which the instance is started, in seconds of the monotonic clock."""
    error: str = ""
    at: tuple[str, int, int] | None = None
    since_ms: int = 0
    restarts: int = 0
    stderr: list[str] = field(default_factory=list)
    stats: Mapping[str, Any] | None = None


class Processes:
    """The instances of one machine. `settings` are kafka-python's. All methods are for any thread."""

    def __init__(self, settings: Mapping[str, Any], *, patience: float = PATIENCE_SECONDS) -> None:
        self._settings = dict(settings)
        self._patience = patience
        self._slots: dict[InstanceName, _Slot] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._selector = selectors.DefaultSelector()
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waking, False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)
        self._numbers = itertools.count()
        self._over = False
        forking.warm_up()
        atexit.register(self.close)
        self._thread = threading.Thread(target=self._run, name="kop-function-processes", daemon=True)
        self._thread.start()

    # -- for others

    def want(self, wanted: Mapping[InstanceName, WantedInstance]) -> None:
        """Set the wanted instances, and return at once: processes are started, ended and restarted in the background
        until exactly those run.
        """
        now = clock.monotonic()
        with self._lock:
            for name, slot in self._slots.items():
                if slot.wanted is not None and slot.wanted != wanted.get(name):
                    slot.wanted = None
            for name, new in wanted.items():
                slot = self._slots.setdefault(name, _Slot(None))
                if slot.wanted is None:
                    is_running = slot.child
                    self._slots[name] = _Slot(new, is_running, due=now, since_ms=clock.wall_ms())
        self._wake()

    def status(self) -> dict[InstanceName, InstanceStatus]:
        """Return the status of each instance that is wanted; waits up to a second for their statistics."""
        with self._lock:
            children = {name: slot.child for name, slot in self._slots.items() if slot.child is not None}
        asked = {name: self._question(child, {"ask": "stats"}) for name, child in children.items()}
        end = clock.monotonic() + STATS_SECONDS
        answers = {name: _answer(future, end - clock.monotonic()) for name, future in asked.items()}
        now = clock.monotonic()
        with self._lock:
            for name, slot in self._slots.items():
                answer = answers.get(name, {"error": "it does not run"})
                if "error" not in answer:
                    slot.stats = answer
                elif slot.stats is not None:
                    slot.stats = {**slot.stats, "lag": {}, "at": None}
            return {name: _told(slot, now) for name, slot in self._slots.items() if slot.wanted is not None}

    def ask(self, name: InstanceName, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer of an instance; a field `error` says why there is none, `status` of which kind that is.

        One that is being started, or replaced by another one of its name, is waited for, up to 10 s, or `seconds` if
        they are less. It has `seconds` to answer then.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_coming(name), min(seconds, BEGIN_SECONDS))
            slot = self._slots.get(name)
            child = None if slot is None else slot.child
        if child is None:
            why = f": {slot.error}" if slot is not None and slot.error else ""
            return {"error": f"instance {name[1]} of {name[0]} does not run here{why}", "status": ABSENT}
        # The instance says itself, and better, that it was too late.
        return _answer(self._question(child, {"seconds": seconds, **question}), seconds + MARGIN_SECONDS)

    def _is_coming(self, name: InstanceName) -> bool:
        """Return if an instance is wanted and is being started, and has not failed to start."""
        slot = self._slots.get(name)
        if slot is None or slot.wanted is None or slot.error:
            return False
        return slot.child is None or slot.child.wanted is not slot.wanted or not slot.child.has_begun

    def close(self) -> None:
        """End all processes, and return when they have ended, or after 20 s."""
        atexit.unregister(self.close)
        self.want({})
        with self._changed:
            self._changed.wait_for(lambda: not self._slots, GRACE_SECONDS + 5)
            self._over = True
        self._wake()
        self._thread.join(5)

    # -- questions

    def _question(self, child: _Child, question: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Send a question to a process, and return the future of its answer. If it cannot be sent, the answer is a
        field `error`.
        """
        future: Future[dict[str, Any]] = Future()
        number = next(self._numbers)
        child.questions[number] = future
        future.add_done_callback(lambda _: child.questions.pop(number, None))
        line = json.dumps({"id": number, **question}).encode() + b"\n"
        try:
            with child.sending:
                child.control.sendall(line)
        except OSError as error:
            _settle(future, {"error": f"the instance takes no question: {error}", "status": ABSENT})
        return future

    # -- the thread

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                due = self._advance(clock.monotonic())
                self._changed.notify_all()
            seconds = None if due is None else max(0.0, due - clock.monotonic())
            for key, _ in self._selector.select(seconds):
                handle: Callable[[], None] = key.data
                try:
                    with self._lock:
                        handle()
                except Exception:  # the others go on
                    log.exception("what a process told cannot be taken")
        self._selector.close()
        os.close(self._woken)
        os.close(self._waking)

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._waking, b"x")

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, _CHUNK)

    def _advance(self, now: float) -> float | None:
        """Start and end the processes that are due at the time `now` of the monotonic clock; returns the time of the
        next such step, None if there is none.
        """
        due: list[float] = []
        for name, slot in list(self._slots.items()):
            if slot.child is None:
                if slot.wanted is None:
                    del self._slots[name]
                    continue
                if now >= slot.due:
                    self._start(name, slot, slot.wanted, now)
                if slot.child is None:
                    due.append(slot.due)
                    continue
            child = slot.child
            if slot.wanted is not child.wanted and child.kill_at is None:
                child.kill_at = now + GRACE_SECONDS
                with suppress(OSError):
                    # Its main thread may not notice a signal that another one of its threads is given.
                    child.control.shutdown(socket.SHUT_WR)
                forking.kill(child.process, signal.SIGTERM)
            elif child.kill_at is not None and now >= child.kill_at:
                child.kill_at = now + GRACE_SECONDS
                forking.kill(child.process)
            if child.look_at is not None and now >= child.look_at and not child.reason:
                self._look(slot, child, now)
            due += [at for at in (child.kill_at, child.look_at) if at is not None]
        return min(due, default=None)

    def _start(self, name: InstanceName, slot: _Slot, wanted: WantedInstance, now: float) -> None:
        start = Start(
            wanted.spec,
            wanted.place,
            tuple(sorted(wanted.partitions)),
            name[1],
            str(wanted.revision),
            self._settings,
            self._patience,
            None if slot.at is None else PoisonRecord(slot.at[:2], slot.at[2]),
        )
        mine, its = socket.socketpair()
        try:
            calling = forking.context().RawArray("q", [0, NOT_CALLING, 0])
            process, output = forking.start(f"kop-function {name[0]}/{name[1]}", run, its, calling, start)
        except Exception as error:
            mine.close()
            log.exception("instance %d of %s cannot be started", name[1], name[0])
            self._failed(slot, f"it cannot be started: {error}", None, now, 0.0)
            return
        finally:
            its.close()
        mine.settimeout(_SEND_SECONDS)
        os.set_blocking(output.fileno(), False)
        watch = CallWatch(wanted.spec.timeout_ms, wanted.spec.ram)
        child = slot.child = _Child(wanted, process, output, mine, calling, watch, now)
        child.look_at = None if watch.seconds is None else now + watch.seconds
        self._selector.register(output, selectors.EVENT_READ, lambda: self._read_output(child))
        self._selector.register(mine, selectors.EVENT_READ, lambda: self._read_control(child))
        self._selector.register(process.sentinel, selectors.EVENT_READ, lambda: self._ended(name, child))

    def _look(self, slot: _Slot, child: _Child, now: float) -> None:
        """Kill a process if it hangs or takes more memory than it may, and note why; else note when it is looked at
        again.
        """
        assert child.watch.seconds is not None
        child.look_at = now + child.watch.seconds
        reason = child.watch.look(list(child.calling), resident_bytes(child.process.pid or 0), now)
        if reason is not None:
            child.reason, child.look_at = reason, None
            forking.kill(child.process)

    # -- what processes write and tell

    def _read_output(self, child: _Child) -> bool:
        """Read the output of a process into the last lines that are kept of it; returns False if there is no more of it
        now.
        """
        try:
            data = b"" if child.output.closed else os.read(child.output.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if data:
            child.tail.add(data)
        elif not child.output.closed:  # whoever could write has ended
            self._selector.unregister(child.output)
            child.output.close()
        return bool(data)

    def _read_control(self, child: _Child) -> bool:
        """Read and take the messages of a process: answers, its begin, its end; returns False if there are no more of
        them now.
        """
        try:
            data = b"" if child.control.fileno() < 0 else child.control.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            *lines, child.buffer = (child.buffer + data).split(b"\n")
            for line in lines:
                self._take_line(child, line)
            if len(child.buffer) > _LINE_BYTES:
                child.buffer = b""
                child.reason = "it tells what cannot be understood"
                forking.kill(child.process)
        elif child.control.fileno() >= 0:
            self._selector.unregister(child.control)
            child.control.close()
        return bool(data)

    def _take_line(self, child: _Child, line: bytes) -> None:
        told = json.loads(line)
        if "id" in told:
            future = child.questions.get(told["id"])
            if future is not None:
                _settle(future, told["answer"])
        elif told["told"] == "begun":
            child.has_begun = True
        else:
            child.told = told["text"]
            child.is_replaced = told["told"] == "replaced"

    def _ended(self, name: InstanceName, child: _Child) -> None:
        """Note that a process has ended, kill what it has started, answer its open questions with an error, and, if its
        instance is still wanted, log the end and note when it is started again.
        """
        if child.has_ended:
            return
        child.has_ended = True
        slot = self._slots[name]
        forking.kill(child.process)  # what it has started
        for _ in range(64):  # a process that has left its session may still write
            if not self._read_output(child):
                break
        while self._read_control(child):
            pass
        for channel in (child.output, child.control):
            with suppress(KeyError, ValueError, OSError):  # it may be closed already
                self._selector.unregister(channel)
            channel.close()
        self._selector.unregister(child.process.sentinel)
        child.process.join()
        code = child.process.exitcode
        child.process.close()
        slot.child = None
        for future in list(child.questions.values()):
            _settle(future, {"error": "the instance has ended", "status": ABSENT})
        if slot.wanted is not child.wanted:  # it was told to end
            slot.stderr = []
            return
        at = place_of(list(child.calling), sorted(child.wanted.partitions))
        told = child.reason or child.told or forking.ended(code)
        now = clock.monotonic()
        slot.stderr = child.tail.lines
        self._failed(slot, told, at, now, now - child.began)
        if child.is_replaced:
            slot.due = now + max(REPLACED_SECONDS, slot.attempts.delay)
        where = "" if at is None else f" at {at[0][0]}-{at[0][1]} offset {at[1]}"
        log.error(
            "instance %d of %s has ended%s: %s; next start in %.0f s", name[1], name[0], where, told, slot.due - now
        )
        if not child.told:  # else it has logged its end itself
            last = [] if child.reason else child.tail.lines  # a stack of Python may be among them
            text = "\n".join([f"instance {name[1]} of {name[0]} has ended{where}: {told}", *last])
            log_end(child.wanted.spec, self._settings, name[1], text)

    @staticmethod
    def _failed(slot: _Slot, told: str, at: tuple[TopicPartition, int] | None, now: float, ran: float) -> None:
        """Note why an instance does not run, and when it is started again. `told` is the reason, `at` the record at
        which the process ended, `now` the time on the monotonic clock, `ran` the seconds for which the process ran.
        """
        slot.attempts = slot.attempts.after(ran)
        if slot.attempts.failures == 1:
            slot.since_ms = clock.wall_ms()
        slot.error = told
        slot.at = None if at is None else (*at[0], at[1])
        slot.restarts += 1
        slot.due = now + slot.attempts.delay


def _told(slot: _Slot, now: float) -> InstanceStatus:
    """Return the status of an instance at the time `now` of the monotonic clock."""
    child = slot.child
    error, at, since_ms, lines = slot.error, slot.at, slot.since_ms, slot.stderr
    next_ms = None
    if child is None:
        next_ms = clock.wall_ms() + int(max(0.0, slot.due - now) * 1000)
    else:
        if error and now - child.began >= WELL_SECONDS:
            error, at, since_ms = "", None, clock.wall_ms() - int((now - child.began) * 1000)
        lines = [*(lines if error else ()), *child.tail.lines][-2 * forking.TAIL_LINES :]
        if not error:
            calls = place_of(list(child.calling), sorted(child.wanted.partitions))
            at = None if calls is None else (*calls[0], calls[1])
    is_running = child is not None and child.has_begun
    return InstanceStatus(is_running, error, at, since_ms, slot.restarts, list(lines), slot.stats, next_ms)


def _answer(future: Future[dict[str, Any]], seconds: float) -> dict[str, Any]:
    try:
        return future.result(max(0.0, seconds))
    except FutureTimeoutError:
        future.cancel()
        return {"error": f"no answer within {max(0.0, seconds):g} s", "status": LATE}


def _settle(future: Future[dict[str, Any]], answer: dict[str, Any]) -> None:
    with suppress(InvalidStateError):  # nobody waits any more
        future.set_result(answer)
