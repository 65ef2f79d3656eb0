"""The memory that all logs of an engine share.

Owns: how many bytes of batches are held, whether more are taken.
Must not know: logs, topics.
"""

from __future__ import annotations

from kop.errors import BackendError


class Space:
    """Bytes of batches held, and the most that there may be."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.closed = False
        self._full = False

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
        """KAFKA_STORAGE_ERROR where so many bytes more are not taken; with `unbounded` only a closed engine refuses."""
        if self.closed:
            return BackendError(self.problem or "")
        if size and not unbounded:
            self._full = self.used + size > self.max_bytes
            if self._full:
                return BackendError(self.problem or "")
        return None

    def free(self, size: int) -> None:
        """Note that `size` bytes are no longer held."""
        self.used -= size
        self._full = False
