"""Writes that go on while functions are called with the records after them: one at a time, in a thread of its own.

Owns: that thread, and who has to wait for it. Must not know: what is written.

A client of the server serves one thread. So whoever needs the client that writes calls `settle` before.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for


class WriteBehind:
    """The write under way, if any. All methods are for one thread, which gets the errors of writes, too."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "kop-mesh-write")
        self._write: Future[None] | None = None
        self._done: Callable[[], None] | None = None

    @property
    def is_busy(self) -> bool:
        """True until the last write has ended and is settled."""
        return self._write is not None

    def begin(self, write: Callable[[], None], done: Callable[[], None]) -> None:
        """Begin a write on the other thread. If one is under way, settle that first: wait for its end, and raise its
        error. `done` is called by `settle`, on the thread of its caller, if the write succeeds.
        """
        self.settle()
        self._write, self._done = self._thread.submit(write), done

    def settle(self, seconds: float | None = None) -> None:
        """Wait until the write under way has ended, for so many seconds at most (None: without a limit). If it has
        ended in time, call its `done`, or raise its error instead; if not, it stays under way, and nothing is said.
        Nothing happens if there is no write.
        """
        if self._write is None or not wait_for([self._write], seconds).done:
            return
        write, done = self._write, self._done
        self._write = self._done = None
        write.result()
        assert done is not None
        done()

    def close(self) -> None:
        """Wait until the write under way has ended, and end the thread. It is not settled: no `done`, no error."""
        self._thread.shutdown()
