"""The memory that all logs of an engine share.

Owns: how many bytes of batches are held, whether more are taken, the log line when they are not.
Must not know: logs, topics.
"""

from __future__ import annotations

import logging
from typing import Final

from kop import clock
from kop.errors import BackendError
from kop.repeats import Repeats

_BATCH_BYTES: Final = 230
"""What a batch takes beside its bytes: the objects that hold it, and its place in the log."""

log = logging.getLogger(__name__)


class Space:
    """Bytes that batches take, and the most that they may take."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.closed = False
        self._full = False
        self._repeats = Repeats()

    @property
    def problem(self) -> str | None:
        """Why batches are refused now, in one line; None where they are taken."""
        if self.closed:
            return "the storage engine is closed"
        if self._full:
            return (
                f"the memory for records is full: {self.used >> 20} of {self.max_bytes >> 20} MiB are in use;"
                " raise kop.memory.bytes, lower retention.ms or retention.bytes, or delete topics"
            )
        return None

    def refusal(self, size: int, *, unbounded: bool) -> BackendError | None:
        """KAFKA_STORAGE_ERROR where a batch of `size` bytes is not taken. 0 bytes stand for one that is not stored.

        With `unbounded` only a closed engine refuses.
        """
        if self.closed:
            return BackendError(self.problem or "")
        if size and not unbounded:
            self._full = self.used + size + _BATCH_BYTES > self.max_bytes
            if self._full:
                if self._repeats.say("full", clock.monotonic()) is not None:
                    log.warning("%s", self.problem)
                return BackendError(self.problem or "")
        return None

    def take(self, size: int, batches: int) -> None:
        """Note that so many batches, which have `size` bytes together, are held from now on."""
        self.used += size + batches * _BATCH_BYTES

    def free(self, size: int, batches: int) -> None:
        """Note that so many batches, which have `size` bytes together, are no longer held."""
        self.used -= size + batches * _BATCH_BYTES
        self._full = False
