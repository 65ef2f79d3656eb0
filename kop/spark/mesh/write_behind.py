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
        """Begin a write, once the one before it is settled. `done` is called when it is settled, by this thread."""
        self.settle()
        self._write, self._done = self._thread.submit(write), done

    def settle(self, seconds: float | None = None) -> None:
        """Wait until the write under way has ended, for so many seconds at most, and raise its error if it has one."""
        if self._write is None or not wait_for([self._write], seconds).done:
            return
        write, done = self._write, self._done
        self._write = self._done = None
        write.result()
        assert done is not None
        done()

    def close(self) -> None:
        """End the thread. The write under way goes on to its end."""
        self._thread.shutdown()
