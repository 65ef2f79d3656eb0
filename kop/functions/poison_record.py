"""The record that may have ended the process of an instance, for the process that is started after it.

Owns: how the messages around that record are divided.
Must not know: who calls them, why the process has ended.

What comes before the record is called and committed first, then it is called alone. So nothing else is called again and
again, and who steps over the record (`kop groups reset-offsets --shift-by 1`) loses that record and no other.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

from kop.client.offsets import TopicPartition
from kop.functions.reading import Taken


class PoisonRecord:
    """The record that a process was calling when it ended."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self._partition = partition
        self._offset = offset

    def place_in(self, taken: Taken) -> int | None:
        """Return how many of these records come before the poison record; None if it is not among them."""
        if taken.partition != self._partition or not taken.records:
            return None
        place = bisect_left(taken.records, self._offset, key=itemgetter(0))
        return place if place < len(taken.records) and taken.records[place][0] == self._offset else None


def divided(taken: Taken, count: int) -> tuple[Taken, Taken | None]:
    """Return the first `count` records, and the others; None for the others if there are none."""
    if count >= len(taken.records):
        return taken, None
    others = taken.records[count:]
    return taken._replace(records=taken.records[:count], next_offset=others[0][0]), taken._replace(records=others)
