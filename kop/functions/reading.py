"""The records of an instance's partitions, read ahead by threads of their own, one for each server that leads some.

Owns: which partitions are read on from where, how much is kept in memory, and what is done if records of them are gone.
Must not know: what becomes of the records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from kop import clock
from kop.client.batches import StoredRecords
from kop.client.connection import RETRY_SECONDS, SETTLE_SECONDS, TEMPORARY
from kop.client.errors import ClientError
from kop.client.offsets import EARLIEST, Offsets, TopicPartition
from kop.client.read_client import GONE, OUT_OF_RANGE, Fetched, FetchSettings, ReadClient
from kop.client.record_columns import RecordColumns
from kop.records import arrow

log = logging.getLogger(__name__)

READ_COMMITTED: Final = 1
PARTITION_BYTES: Final = 1 << 20
ANSWER_BYTES: Final = 8 << 20
"""The most that is asked for at a time, of a partition and in all."""
AHEAD_BYTES: Final = 16 << 20
"""Bytes of batches that all partitions together are read ahead."""
PARTITION_AHEAD_BYTES: Final = 4 << 20
"""Bytes of batches that one partition is read ahead; the answer that goes beyond it is the last."""
MORE_BYTES: Final = 32 << 10
"""Bytes of an answer from which on more is read at once. Behind a smaller one little is waiting: it is read when it is
wanted, with all that has come until then, instead of a record at a time."""
_NO_RECORDS: Final = RecordColumns((), (), tuple)


class Taken(NamedTuple):
    """Records of one partition, in order."""

    partition: TopicPartition
    records: Any
    """RecordColumns or another sequence of InputRecord, or a record batch of Arrow."""
    next_offset: int
    """The first offset behind them. Offsets before it that have no record have none for a reader of committed ones."""


@dataclass(slots=True)
class _Ahead:
    position: int
    """The next offset that is fetched."""
    chunks: deque[tuple[Any, int, int]] = field(default_factory=deque)
    """Records, the offset behind them, and how many bytes they count."""
    end: int = -1
    """The first offset that no reader of committed records gets yet, as of the last answer."""
    bytes: int = 0
    taken: int = 0
    """The number of records of the first chunk that are taken."""


class ReadAhead:
    """Reads partitions and gives their records to one other thread. `failed` is told of an error that ends a thread."""

    def __init__(
        self,
        client: ReadClient,
        another: Callable[[], ReadClient],
        positions: Mapping[TopicPartition, int],
        failed: Callable[[BaseException], None],
        fetch: FetchSettings,
        *,
        batches: bool = False,
    ) -> None:
        """Begin to read. `another` makes a client like the first one; both are closed here, also if this raises.
        `batches`: records come as record batches of Arrow.
        """
        self._batches = batches
        self._fetch = fetch
        self._failed = failed
        self._ahead = {partition: _Ahead(position) for partition, position in positions.items()}
        self._gone: dict[TopicPartition, float] = {}
        """The time since which servers say that a partition is gone, in seconds; they may not know of it yet."""
        self._bytes = 0
        self._hungry = True
        """True if the thread that takes has nothing to do."""
        self._over = False
        self._woken = False
        self._changed = threading.Condition()
        # A server that has no records answers late: the partitions of the others do not wait for it.
        try:
            self._thread_of = _by_leader(client, positions)
        except BaseException:
            client.close()
            raise
        self._another = another
        self._threads: list[threading.Thread] = []
        self._begin(lambda: client)
        for _ in range(max(self._thread_of.values(), default=0)):
            self._begin(another)

    # -- for the thread that takes

    def take(self, count: int, waiting: Collection[TopicPartition], seconds: float | None) -> list[Taken]:
        """Return up to `count` records of partitions that are not in `waiting`, each lot with its partition. Waits
        until there are some, `wake` is called, or `seconds` (None: without limit) are over; empty then. Partitions take
        turns.
        """
        taken: list[Taken] = []
        with self._changed:
            self._changed.wait_for(lambda: self._woken or self._ready(waiting), seconds)
            self._woken = False
            for partition in [partition for partition, ahead in self._ahead.items() if ahead.chunks]:
                if count <= 0:
                    break
                if partition not in waiting:
                    count -= self._take(partition, count, taken)
                    self._ahead[partition] = self._ahead.pop(partition)  # its next turn is after the others
            self._changed.notify_all()
        return taken

    def ends(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return two offsets for each partition: the first one that no reader of committed records gets yet, as of the
        last answer (-1 before it), and the next one to be fetched. For any thread.
        """
        return {partition: (ahead.end, ahead.position) for partition, ahead in list(self._ahead.items())}

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read further partitions from these offsets on; those that are read already go on as they are. For any thread.

        They have a thread of their own: the others may wait for records for long.
        """
        with self._changed:
            for partition, position in positions.items():
                self._thread_of.setdefault(partition, len(self._threads))
                self._ahead.setdefault(partition, _Ahead(position))
            self._begin(self._another)

    def wake(self) -> None:
        """Let the `take` that waits return now; if none waits, let the next one return at once."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """End the threads, which close their clients; waits so many seconds for them."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        end = clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - clock.monotonic()))

    def _ready(self, waiting: Collection[TopicPartition]) -> bool:
        """Return True if there is something to take from partitions that are not in `waiting`; else wake the threads
        that read.
        """
        if any(ahead.chunks for partition, ahead in self._ahead.items() if partition not in waiting):
            return True
        if not self._hungry:
            self._hungry = True
            self._changed.notify_all()
        return False

    def _take(self, partition: TopicPartition, count: int, taken: list[Taken]) -> int:
        ahead = self._ahead[partition]
        got = 0
        while ahead.chunks and got < count:
            records, behind, size = ahead.chunks[0]
            end = min(len(records), ahead.taken + count - got)
            some = records if end - ahead.taken == len(records) else records[ahead.taken : end]
            got += len(some)
            if end == len(records):
                ahead.chunks.popleft()
                ahead.taken = 0
                ahead.bytes -= size
                self._bytes -= size
            else:
                ahead.taken = end
                behind = records.column("offset")[end].as_py() if self._batches else records.offsets[end]
            taken.append(Taken(partition, some, behind))
        return got

    # -- the threads that read

    def _begin(self, make: Callable[[], ReadClient]) -> None:
        number = len(self._threads)
        name = f"kop-function-read-{number}"
        self._threads.append(threading.Thread(target=self._run, args=(number, make), name=name, daemon=True))
        self._threads[-1].start()

    def _run(self, number: int, make: Callable[[], ReadClient]) -> None:
        client = None
        try:
            client = make()
            more = True
            while (positions := self._wanted(number, more)) is not None:
                try:
                    answers = client.fetch_many(positions, self._fetch)
                except GONE as error:  # it is raised only if nothing else has come for a while
                    raise _gone(min(positions)) from error
                for partition, answer in answers.items():
                    self._put(client, partition, positions[partition], answer)
                got = sum(len(answer.records) for answer in answers.values() if isinstance(answer, Fetched))
                more = got >= MORE_BYTES
                if any(isinstance(answer, TEMPORARY) for answer in answers.values()):
                    time.sleep(RETRY_SECONDS)
        except Exception as error:
            self._failed(error)
        finally:
            if client is not None:
                client.close()

    def _wanted(self, number: int, more: bool) -> Offsets | None:
        """Return the offsets to fetch from, by partition, for the thread of this number; None at the end. Waits until
        there is room in memory, and, unless the last fetch gave `more` than a little, until somebody waits for records.
        """
        with self._changed:
            while not self._over:
                if self._bytes < AHEAD_BYTES and (more or self._hungry):
                    wanted = {
                        partition: ahead.position
                        for partition, ahead in self._ahead.items()
                        if self._thread_of[partition] == number and ahead.bytes < PARTITION_AHEAD_BYTES
                    }
                    if wanted:
                        return wanted
                self._changed.wait()
        return None

    def _put(self, client: ReadClient, partition: TopicPartition, position: int, answer: Fetched | Exception) -> None:
        if isinstance(answer, OUT_OF_RANGE):
            first = self._first(client, partition, position)
            with self._changed:
                self._ahead[partition].position = first
            return
        if isinstance(answer, GONE):
            since = self._gone.setdefault(partition, clock.monotonic())
            if clock.monotonic() - since > SETTLE_SECONDS:
                raise _gone(partition)
            return
        self._gone.pop(partition, None)
        if isinstance(answer, TEMPORARY):
            return  # it is asked for again
        if isinstance(answer, Exception):
            raise answer
        stored: Any
        if self._batches:
            stored = arrow.decode(
                answer.records, topic=partition[0], partition=partition[1], start=position, aborted=answer.aborted,
                headers=True,
            )  # fmt: skip
        else:
            stored = StoredRecords(answer, partition, position)
        chunks = [(records, stored.next_offset, 0) for records in stored]
        with self._changed:
            self._ahead[partition].end = answer.last_stable_offset
        if stored.next_offset == position:
            if stored.cut_off > self._fetch.partition_bytes:
                size = stored.cut_off
                self._fetch = replace(self._fetch, partition_bytes=size, max_bytes=max(size, self._fetch.max_bytes))
            return
        chunks.append((_NO_RECORDS, stored.next_offset, len(answer.records)))
        with self._changed:
            ahead = self._ahead[partition]
            ahead.position = stored.next_offset
            ahead.chunks.extend(chunks)
            ahead.bytes += len(answer.records)
            self._bytes += len(answer.records)
            self._hungry = False
            self._changed.notify_all()

    @staticmethod
    def _first(client: ReadClient, partition: TopicPartition, position: int) -> int:
        """Return the first offset of a partition, to go on from since `position` is out of its range, and log that."""
        first = client.list_offsets({partition: EARLIEST}, READ_COMMITTED)[partition]
        what = "was deleted before it was read" if first > position else "is behind the end of the log"
        log.warning(
            "records may be lost: offset %d of %s-%d %s; it is read on from offset %d, its first",
            position, *partition, what, first,
        )  # fmt: skip
        return first


def _by_leader(client: ReadClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return a number for each partition, from 0 on; partitions that one server leads have the same."""
    topics = client.topics({topic for topic, _ in partitions})
    numbers: dict[int, int] = {}
    return {
        (topic, partition): numbers.setdefault(
            topics[topic].leaders.get(partition, -1) if topic in topics else -1, len(numbers)
        )
        for topic, partition in partitions
    }


def _gone(partition: TopicPartition) -> ClientError:
    return ClientError(f"create the topic {partition[0]} again: it, or its partition {partition[1]}, is gone")
