"""Several worker processes behind one address: each is a Kafka broker with an id and a port of its own.

Owns: starting them, starting again one that died, stopping all.
Must not know: what a worker does.

The workers share the listening addresses (SO_REUSEPORT: the system deals connections out) for bootstrapping; clients
are told each worker's own port, the shared one plus one for the first worker, plus two for the second.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final

from kop import clock

_LIVED_SECONDS: Final = 30.0
"""The seconds after which a worker that ended is started again at once, rather than after a pause."""
_LONGEST_PAUSE: Final = 30.0
_STOP_SECONDS: Final = 30.0

log = logging.getLogger(__name__)


class _Worker:
    """One of the worker processes, and whatever process replaces it when it has died."""

    def __init__(self, index: int, target: Callable[[int], None]) -> None:
        self.index = index
        self.due = 0.0
        """The monotonic time from which on it may be started again."""
        self.process: BaseProcess | None = None
        self._target = target
        self._pause = 0.0
        self._started = 0.0

    def start(self) -> None:
        self.process = multiprocessing.get_context("spawn").Process(target=self._target, args=(self.index,))
        self.process.start()
        self._started = clock.monotonic()

    def ended(self) -> None:
        """Log that the process has ended, and set the time of the next start: at once if it lived for 30 s, else after
        a pause, which doubles from 1 s to 30 s.
        """
        now = clock.monotonic()
        assert self.process is not None
        code = self.process.exitcode
        self.process = None
        self._pause = 0.0 if now - self._started > _LIVED_SECONDS else min(max(self._pause * 2, 1.0), _LONGEST_PAUSE)
        self.due = now + self._pause
        log.error("worker %d ended with code %s; it is started again in %.0f s", self.index, code, self._pause)


def on_orphaned(callback: Callable[[], None]) -> None:
    """Call `callback` on this loop once the supervisor of this worker process has died, since nobody would stop the
    worker then. Do nothing in a process that has no parent of this kind.
    """
    parent, loop = multiprocessing.parent_process(), asyncio.get_running_loop()
    if parent is None:
        return
    sentinel = parent.sentinel

    def died() -> None:
        loop.remove_reader(sentinel)
        log.error("the process that started this worker has died: the worker stops")
        callback()

    loop.add_reader(sentinel, died)


def supervise(count: int, target: Callable[[int], None]) -> None:
    """Run `target(index)` in `count` processes until SIGINT or SIGTERM, and start one again that ends; then stop all
    with SIGTERM, and kill those that have not ended after 30 s.

    `target` has to be importable (processes are spawned), and to end by itself on SIGTERM.
    """
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    workers = [_Worker(index, target) for index in range(count)]
    while not stopping:
        for worker in workers:
            if worker.process is None and clock.monotonic() >= worker.due:
                worker.start()
        wait([worker.process.sentinel for worker in workers if worker.process is not None], timeout=0.5)
        for worker in workers:
            if worker.process is not None and not worker.process.is_alive():
                worker.ended()
    running = [worker.process for worker in workers if worker.process is not None]
    for process in running:
        process.terminate()
    end = clock.monotonic() + _STOP_SECONDS
    for process in running:
        process.join(max(end - clock.monotonic(), 0))
        if process.is_alive():
            log.error("worker process %s did not stop within %.0f s: it is killed", process.pid, _STOP_SECONDS)
            process.kill()
            process.join()
