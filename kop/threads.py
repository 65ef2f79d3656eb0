"""Threads that begin before anybody needs them, and of which one that ends by an exception is never left unnoticed.

Owns: a pool of threads, the start of a thread, who is told that one has ended.
Must not know: what runs on the threads, what the end of one means.

Whoever waits for a thread that has ended waits for ever. And a thread that is begun while memory is short may end
before its first step: Python's `Thread.start`, which waits for that step, never returns then. So the threads of a pool
all begin with the pool, and `Ended` is called for a thread that ends before it is told to.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from kop.errors import BackendError

P = ParamSpec("P")
R = TypeVar("R")
Ended: TypeAlias = Callable[[str, BaseException], None]
"""The type of a callback for a thread that has to end: it gets the thread's name and the exception, which it must not
keep.
"""

_log: Final = logging.getLogger(__name__)


def tell(name: str, error: BaseException) -> None:
    """Log that a thread has ended."""
    _log.critical("the thread %s has ended: %r", name, error, exc_info=error)


def begin(name: str, work: Callable[[], None], ended: Ended) -> threading.Thread:
    """Run `work` on a new daemon thread, which is returned. `ended` is called on it, with the thread's name, if an
    exception ends `work`.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            ended(name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Job(NamedTuple):
    """A call that waits for a thread of the pool, with the future of its result."""

    future: Future[Any]
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def do(job: Job) -> None:
    """Run the call on this thread, and set its result or exception on its future."""
    future, call, args, kwargs = job
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
        del future, job  # the exception, which the future keeps, holds this frame
    else:
        future.set_result(result)


class Threads(Executor):
    """An executor whose threads have all begun. Once one has ended by an exception no more jobs are taken."""

    def __init__(self, count: int, name: str, ended: Ended) -> None:
        self._ended = ended
        self._closed = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [begin(f"{name}_{number}", self._work, self._one_ended) for number in range(count)]

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue `fn` for a thread of the pool; returns the future of its result, which has BackendError if a thread
        ends before. RuntimeError if no more jobs are accepted.
        """
        if self._closed:
            raise RuntimeError("the threads have ended")
        future: Future[R] = Future()
        self._jobs.put(Job(future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs, end the threads when all jobs are done, and with `wait` wait for that. Unlike other
        pools, this one cancels no jobs.
        """
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            do(job)
            del job  # it holds what the call was given, and the queue may be empty for long

    def _one_ended(self, name: str, error: BaseException) -> None:
        self._closed = True
        try:
            self._ended(name, error)
        finally:
            self._refuse_all(f"the thread {name} has ended")

    def _refuse_all(self, text: str) -> None:
        """Fail all calls that wait with BackendError, since a thread of the pool has ended and nobody may take them.
        The ends that `shutdown` has queued for the other threads stay.
        """
        ends = 0
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                ends += 1
            elif job.future.set_running_or_notify_cancel():
                job.future.set_exception(BackendError(text))
        for _ in range(ends):
            self._jobs.put(None)
