"""A thread with an event loop, for brokers in the process of a test; start and stop by a block.

Owns: the thread and its loop.
Must not know: what runs on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from kop import event_loop

T = TypeVar("T")

_SECONDS = 30.0


class Startable(ABC):
    """An object that is started by a `with` or `async with` block and stopped at its end."""

    @abstractmethod
    def start(self) -> Self:
        """Start the object; return it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the object."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)


class LoopThread:
    """A running event loop on a thread of its own. `stop` ends it."""

    def __init__(self) -> None:
        began: Future[asyncio.AbstractEventLoop] = Future()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(began,), name="kop-broker", daemon=True)
        self._thread.start()
        self._loop = began.result(_SECONDS)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. TimeoutError after 30 s."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)

    def stop(self) -> None:
        """End the loop and the thread. RuntimeError if they have not ended within 30 s."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError(f"the broker did not stop within {_SECONDS:.0f} s")

    def _run(self, began: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=event_loop.new) as runner:
            runner.run(self._wait(began))

    async def _wait(self, began: Future[asyncio.AbstractEventLoop]) -> None:
        began.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
