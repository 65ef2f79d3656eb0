"""What this broker has seen stored in one partition, by producer names and sequence ids.

Owns: the highest sequence id of each name, for a bounded number of names. A pure machine.
Must not know: producers, what Pulsar's deduplication says.

See docs/quirks.md, "Deduplication forgets while a topic is loaded". What was read from the log itself is always right.
"""

from __future__ import annotations

from typing import Final

MOST_NAMES: Final = 1000


class StoredSequences:
    """The highest sequence id that was seen stored, of each producer name that was seen lately."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def __contains__(self, producer_name: str) -> bool:
        """Whether a producer of this name has ended, or an entry of it was seen."""
        return producer_name in self._highest

    def add(self, producer_name: str, sequence_id: int) -> None:
        """Note that an entry is stored, whose last message has this sequence id.

        With -1 no entry is known to be stored, only that a producer of this name has ended.
        """
        self._highest[producer_name] = max(self._highest.pop(producer_name, -1), sequence_id)
        if len(self._highest) > MOST_NAMES:
            del self._highest[next(iter(self._highest))]

    def of(self, producer_name: str) -> int:
        """The highest sequence id of a name; -1 where none was seen."""
        return self._highest.get(producer_name, -1)
