"""Writes that go on while functions are called with the records after them: one at a time, in a thread of its own.

Owns: that thread, the order of writes, and who has to wait for them. Must not know: what is written.

A client of the server serves one thread. So whoever needs the client that writes calls `settle` before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Final

from kop import clock
from kop.errors import InternalError

MOST: Final = 2
"""The most writes under way: while one is done, another waits for it, so that a large one does not wait for a small."""


class WriteBehind:
    """The writes under way. All methods are for one thread, which gets the errors of writes, too.

    Once a write has failed, none behind it is done: this object is of no use any more but for `close`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "kop-mesh-write")
        self._writes: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._has_failed = False

    @property
    def is_busy(self) -> bool:
        """True until the last write has ended and is settled."""
        return bool(self._writes)

    def begin(self, write: Callable[[], None], done: Callable[[], None]) -> None:
        """Begin a write on the other thread, behind those that are under way. If there are two, settle the first one
        before: wait for its end, and raise its error. `done` is called on the thread of whoever settles the write, if
        it succeeds.
        """
        if len(self._writes) >= MOST:
            self._settle_first(None)
        self._writes.append((self._thread.submit(self._do, write), done))

    def settle(self, seconds: float | None = None) -> None:
        """Wait until the writes under way have ended, for so many seconds at most (None: without a limit). Call `done`
        of each that has ended in time, in order, or raise the error of the first that has failed: none behind it was
        done, and none is under way any more. Those that have not ended stay under way.
        """
        end = None if seconds is None else clock.monotonic() + seconds
        while self._writes and self._settle_first(None if end is None else max(0.0, end - clock.monotonic())):
            pass

    def close(self) -> None:
        """Wait until the writes under way have ended, and end the thread. They are not settled: no `done`, no error."""
        self._thread.shutdown()

    def _settle_first(self, seconds: float | None) -> bool:
        write, done = self._writes[0]
        if not wait_for([write], seconds).done:
            return False
        self._writes.popleft()
        try:
            write.result()
        except BaseException:
            self._writes.clear()
            raise
        done()
        return True

    def _do(self, write: Callable[[], None]) -> None:
        if self._has_failed:
            raise InternalError("a write behind one that has failed")
        try:
            write()
        except BaseException:
            self._has_failed = True
            raise
