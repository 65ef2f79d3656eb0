"""Who wants to know when a log moves.

Owns: the callbacks, and that many moves of one turn of the loop are one call.
Must not know: what moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Listeners:
    """Callbacks of one log."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: list[Callable[[], None]] = []
        self._due = False

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call it at each move; returns the undo."""
        self._callbacks.append(callback)

        def undo() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return undo

    def tell_soon(self) -> None:
        """Call them in the loop's next turn, once."""
        if self._callbacks and not self._due:
            self._due = True
            self._loop.call_soon(self.tell)

    def tell(self) -> None:
        """Call them now."""
        self._due = False
        for callback in tuple(self._callbacks):
            try:
                callback()
            except Exception:
                log.exception("a listener failed")
