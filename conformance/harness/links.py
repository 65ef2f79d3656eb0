"""Links between clients and servers that a run can cut and slow down, in a thread of their own.

Owns: the thread and its loop.
Must not know: what is behind a link.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from conformance.faulty_link import Link

T = TypeVar("T")


class Links:
    """A context manager: `add` gives the port of a link to a port of this machine."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: list[Link] = []

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            self._run(link.stop())
        self._run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def add(self, port: int) -> int:
        link = Link(port)
        self._run(link.start())
        self._links.append(link)
        return int(link.port)

    @property
    def addresses(self) -> list[str]:
        """Of all links, in the order in which they were added."""
        return [f"127.0.0.1:{link.port}" for link in self._links]

    def change(self, number: int, how: Callable[[Link], None]) -> None:
        """Do something with a link, in its loop."""

        async def call() -> None:
            how(self._links[number])

        self._run(call())

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)


async def _cancel_others() -> None:
    """End connections that were being made."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
