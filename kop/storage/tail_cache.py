"""The tail cache: the newest batches of every log, bounded in bytes over all of them, oldest out first.

Owns: what is kept and what goes; how the one number that a user sets is shared with what reads hold. Must not know: an
engine, Kafka's errors, the high watermark.

The engine pushes what follows in a log, nothing else; so what is kept of a log is always the end of it, without holes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from kop.records.entry_schemas import NO_VERSION, SchemaRun, add_run, runs_between
from kop.storage.base import Buffer

_ENTRY_BYTES = 200
"""The bytes that a kept batch costs beside its own: its objects and its places in the lists."""
_TRIM_AT = 64
_LEAST_READS, _MOST_READS = 64 << 20, 256 << 20


def reads_bytes(cache_bytes: int) -> int:
    """Return the bytes of `kop.cache.bytes` that reads may hold: a quarter, at most 256 MiB; at least 64 MiB, even if
    that is more than `cache_bytes`, because readers of a few partitions need so much.
    """
    return min(max(cache_bytes // 4, _LEAST_READS), _MOST_READS)


class Tail:
    """The cached end of one log. Changed by its `TailCache` only."""

    __slots__ = ("buffers", "first", "lasts", "schemas", "stale", "start")

    def __init__(self) -> None:
        self.lasts: list[int] = []
        self.buffers: list[Buffer] = []
        self.first = 0
        """The index of the oldest batch kept; the places before it are cut off now and then."""
        self.start = 0
        """The base offset of the oldest batch kept."""
        self.stale = 0
        """The number of batches that were dropped before their turn and that the cache's queue still counts."""
        self.schemas: list[SchemaRun] = []
        """The versions of schemas that kept batches name; few have any."""

    def get(
        self, offset: int, max_bytes: int, min_one: bool, end: int | None = None
    ) -> tuple[list[Buffer], int] | None:
        """Return whole batches from the one that holds `offset` on, and their bytes; None if nothing is cached, or the
        cached end of the log begins later.

        Takes batches up to `max_bytes` together; with `min_one` the first one is taken whatever its size. With `end`,
        only batches that end before that offset.
        """
        lasts, buffers = self.lasts, self.buffers
        if self.first == len(lasts) or offset < self.start:
            return None
        batches: list[Buffer] = []
        size = 0
        stop = len(lasts) if end is None else bisect_left(lasts, end, self.first)
        for i in range(bisect_left(lasts, offset, self.first), stop):
            buffer = buffers[i]
            total = size + len(buffer)
            if total > max_bytes and (batches or not min_one):
                break
            batches.append(buffer)
            size = total
        return batches, size

    def schemas_between(self, offset: int, end: int) -> Sequence[SchemaRun]:
        """Return the versions of schemas that the kept batches name, for the records from `offset` on and before
        `end`.
        """
        return runs_between(self.schemas, offset, end) if self.schemas else ()

    def holds(self, offset: int) -> bool:
        """Return true if the cached end of the log begins at or before `offset`."""
        return self.first < len(self.lasts) and self.start <= offset

    def pop(self) -> int:
        """Drop the oldest batch; return the bytes that this frees: its own, and the 200 that the cache counts for its
        objects.
        """
        i = self.first
        cost = len(self.buffers[i]) + _ENTRY_BYTES
        self.buffers[i] = b""
        self.start = self.lasts[i] + 1
        if len(self.schemas) > 1 and self.schemas[1].base_offset <= self.start:
            del self.schemas[0]
        self.first = i = i + 1
        if i == len(self.lasts) or (i >= _TRIM_AT and i * 2 >= len(self.lasts)):
            del self.lasts[:i], self.buffers[:i]
            self.first = 0
        return cost


class TailCache:
    """The newest batches of all logs, and the bound on their bytes.

    Bytes that others hold of the same memory are taken off the bound, up to half of it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._whole = self._max_bytes = max_bytes
        self._others: dict[object, int] = {}
        self._order: deque[Tail] = deque()
        self._stale = 0
        """The number of places in `_order` of batches that were dropped before their turn."""
        self.size = 0
        """The bytes kept, with an allowance for each batch."""

    @property
    def places(self) -> int:
        """The number of places in the queue of all logs' cached batches, those of batches that were dropped before
        their turn among them.
        """
        return len(self._order)

    def push(self, tail: Tail, base: int, last: int, data: Buffer, schema: int = NO_VERSION) -> None:
        """Add the batch with the offsets `base` to `last` that follows in a log, and that names the version `schema` of
        a schema, if any; the oldest batches of any log are dropped to make room.
        """
        if tail.first == len(tail.lasts):
            tail.start = base
            tail.schemas.clear()
        if schema != NO_VERSION or tail.schemas:
            add_run(tail.schemas, base, schema)
        tail.lasts.append(last)
        tail.buffers.append(data)
        self._order.append(tail)
        self.size += len(data) + _ENTRY_BYTES
        if self.size > self._max_bytes:
            self._fit()

    def leave(self, who: object, size: int) -> None:
        """Leave `size` bytes of the cache's memory to `who`, in place of those that it was left before. What is left to
        all together is taken off the bound, up to half of it; the oldest batches are dropped until the rest fit.
        """
        self._others[who] = size
        self._max_bytes = self._whole - min(sum(self._others.values()), self._whole // 2)
        self._fit()

    def _fit(self) -> None:
        while self.size > self._max_bytes:
            oldest = self._order.popleft()
            if oldest.stale:
                oldest.stale -= 1
                self._stale -= 1
            else:
                self.size -= oldest.pop()

    def drop(self, tail: Tail, before: int | None = None) -> None:
        """Drop the cached batches of a log that end before offset `before`, or all of them."""
        while tail.first < len(tail.lasts) and (before is None or tail.lasts[tail.first] < before):
            self.size -= tail.pop()
            tail.stale += 1
            self._stale += 1
        if self._stale >= _TRIM_AT and self._stale * 2 >= len(self._order):
            self._forget_stale()

    def _forget_stale(self) -> None:
        order: deque[Tail] = deque()
        for tail in self._order:
            if tail.stale:  # of a tail the oldest batches go first, so its first places in the queue are stale
                tail.stale -= 1
            else:
                order.append(tail)
        self._order, self._stale = order, 0
