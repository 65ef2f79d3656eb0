"""The watch over a function: it has to be ended if a call takes too long, or it has too much memory.

Owns: the numbers by which an instance tells where it is, and what is too long and too much.
Must not know: clocks, processes, who ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from kop.client.offsets import TopicPartition

Calling: TypeAlias = Sequence[int]
"""The place in the work of an instance: three numbers, at the indexes below."""
GENERATION: Final = 0
"""The index of a number that changes with each lot of messages that the function is called with, and each retry."""
PARTITION: Final = 1
"""The index of the partition's number among those of the instance; NOT_CALLING if no code of the user runs."""
OFFSET: Final = 2
"""The index of the offset of the record that the function is called with."""
NOT_CALLING: Final = -1

LEAST_RAM: Final = 64 << 20
"""The bytes that an instance takes without its function."""
LOOK_SECONDS: Final = 1.0
"""The seconds between two looks at most."""


class CallWatch:
    """The watch over one instance, which is looked at from time to time."""

    def __init__(self, timeout_ms: int | None, ram: int | None) -> None:
        self._timeout_ms = timeout_ms
        self._ram = ram
        self._seen: tuple[int, ...] = ()
        self._since = 0.0

    @property
    def seconds(self) -> float | None:
        """The seconds between two looks; None if there is nothing to look for."""
        if self._timeout_ms is not None:
            return min(LOOK_SECONDS, self._timeout_ms / 4000)
        return None if self._ram is None else LOOK_SECONDS

    def look(self, calling: Calling, rss: int, now: float) -> str | None:
        """Return the reason why the instance has to be ended; None if it may go on.

        `calling` is the place in its work, which is kept to see if it moves until the next look. `rss` is the memory of
        its process in bytes, 0 if that is not known; `now` is in seconds of the monotonic clock.
        """
        seen = tuple(calling)
        if seen != self._seen:
            self._seen, self._since = seen, now
        if self._timeout_ms is not None and seen[PARTITION] != NOT_CALLING:
            taken = now - self._since
            if taken * 1000 >= self._timeout_ms:
                return f"a call has taken longer than timeoutMs, {self._timeout_ms} ms"
        if self._ram is not None and rss > self._ram:
            return f"it has {rss >> 20} MiB in memory, and resources.ram is {self._ram >> 20} MiB"
        return None


def place_of(calling: Calling, partitions: Sequence[TopicPartition]) -> tuple[TopicPartition, int] | None:
    """Return partition and offset of the record that the function is being called with; None if there is none."""
    index = calling[PARTITION]
    return (partitions[index], calling[OFFSET]) if 0 <= index < len(partitions) else None
