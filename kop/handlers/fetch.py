"""Fetch (1), versions 4 to 18.

- Byte limits: the request's, a partition's and fetch.max.bytes; the first batch goes out even above them (KIP-74).
- min_bytes is compared with the bytes that are there up to those limits, as by Kafka, and not with the whole batches
  that fit: a consumer with a backlog does not wait. It is no more than the limit of the whole answer. A read from
  storage that brought less than there is counts as enough, as what lies in an older segment does in Kafka.
- Whole batches: one that was asked for from its middle is answered from its base offset.
- Long poll: nothing to give waits up to max_wait_ms and is woken by the logs themselves; an error in any partition
  answers at once. Partitions that were not there when the request came wait for the others, if there are any, as in
  Kafka. OFFSET_OUT_OF_RANGE at both ends, with the log start in the answer.
- Sessions (KIP-227) from version 7, topics by id from 13: UNKNOWN_TOPIC_ID; in a session that knew the topic,
  UNKNOWN_TOPIC_OR_PARTITION once it is deleted, INCONSISTENT_TOPIC_ID once another one of its name is made.
- A request that says it is a replica is NOT_LEADER_OR_FOLLOWER for every topic: no partition has a follower.
- leader_epoch is 0: a higher one asked for is UNKNOWN_LEADER_EPOCH.
- A client that took more than its quota allows gets an empty answer, and no more at once than the quota leaves.
- Batches go out as they are stored, those of zstd also below version 10, as in Kafka since 4.0.
- Isolation level 1 (read_committed) reads up to the last stable offset and is told which of the transactions in the
  batches were aborted; behind that offset and up to the high watermark there is nothing for it, and no error. Level 0
  is told null for the list, as by Kafka.
- Where all that there is of a partition up to its end are batches without records, which stand for offsets that have
  none, they do not end a long poll. An answer takes them along, so that positions come to the very end of a log.
- A request that asks for it by a tagged field of kop's own is told where Pulsar keeps the records
  (`kop.records.entry_places`): message ids and publish times, for which Kafka's protocol has no field. By another one
  it is told which versions of Pulsar's schemas they name (`kop.records.entry_schemas`).
- What is in memory is answered on the spot, without a task. What is not is read on the side, each partition by itself
  (`cold_reads.py`): as soon as there is enough, or after max_wait_ms, the answer goes out with what is there. A
  partition that is not read by then is empty in it, without an error, and the connection's next Fetch finds it. If the
  storage does not do so by itself, records behind those that came from storage are read ahead for that Fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kop import clock
from kop.errors import ErrorCode, KopError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context, Frame, InTask, Later
from kop.handlers.cold_reads import KEPT_SECONDS, ColdRead, ColdReads
from kop.handlers.fetch_sessions import FetchSession
from kop.handlers.gateway import Gateway
from kop.handlers.isolation import aborted_in, reads_committed, stable_part
from kop.records import entry_places, entry_schemas
from kop.records.batch import HEADER_SIZE, next_offset_of
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import PartitionLog, ReadResult, TopicInfo
from kop.wire.fetch import FetchCall, FetchPartition, FetchPartitionAnswer, encode_response, parse
from kop.wire.names import outward_rows
from kop.wire.primitives import encode_tags

KEY = 1
_BY_ID = 13
"""The version from which on topics go by id."""
_READ_SECONDS = 0.5
"""The seconds that a read from storage has for a Fetch with a shorter max_wait_ms."""
_LOOK_SECONDS = 20e-6
"""The least time in seconds, per partition, between two looks of a waiting Fetch at its partitions: looking takes a
tenth of it.
"""
_EMPTY = ReadResult((), 0)
_KNOWN_TO_CONSUMERS = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The errors of a partition that Kafka's own consumer expects in a Fetch; any other one ends its poll with an
exception.
"""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Response:
    """The state of one pass over a Fetch's partitions: the answers collected so far, and what they add up to."""

    budget: int
    reading: bool
    """True if this pass begins reads from storage for records that are not in memory."""
    answers: list[tuple[FetchPartition, FetchPartitionAnswer]] = field(default_factory=list)
    size: int = 0
    empty: int = 0
    """The number of bytes in `size` that are batches without records at the ends of logs."""
    left: int = 0
    """The number of further bytes that are there within the limits of the partitions, also if no whole batch fits."""
    failed: bool = False
    """True if an error in a partition ends the wait, so that the answer goes out at once."""
    missing: int = 0
    """The number of partitions that did not exist when the request came: their errors end no wait for others."""
    unread: int = 0
    """The number of partitions whose read from storage has not ended."""
    not_taken: list[tuple[FetchPartition, PartitionLog]] = field(default_factory=list)
    """The partitions that want a read from storage whose result is not in this response: it goes on, was not begun, or
    did not fit.
    """
    looked_at: set[PartitionLog] = field(default_factory=set)
    """The logs of the partitions that were looked at."""
    looked_up: str | UUID | None = None
    """The name or id of the topic that `topic` was looked up for."""
    topic: TopicInfo | ErrorCode = ErrorCode.UNKNOWN_TOPIC_ID
    """The topic that was looked up last, or the error for which the client gets none."""
    next: list[tuple[FetchPartition, PartitionLog, int]] = field(default_factory=list)
    """The offsets to read ahead: those behind records that came from storage, of partitions with more."""
    passed: list[PartitionLog] = field(default_factory=list)
    """The partitions of which a read from storage is of no use, because memory answers for them."""
    taken: list[PartitionLog] = field(default_factory=list)
    """The partitions whose part of the response comes from a read from storage, whose result is dropped when it is
    sent.
    """

    def room(self, wanted: FetchPartition) -> int:
        """Return the number of bytes that the records of this partition may take in the response: what is left of the
        partition's limit and of the whole answer's.
        """
        return max(0, min(wanted.max_bytes, self.budget - self.size))

    @property
    def min_one(self) -> bool:
        """True if the next batch goes out whatever its size, because the response holds no batch with records yet."""
        return self.size == self.empty


class _Fetch:
    """A Fetch request under way: it looks at its partitions, perhaps several times, until the answer is enough."""

    def __init__(
        self, gw: Gateway, ctx: Context, call: FetchCall, session: FetchSession | None, committed: bool
    ) -> None:
        """Begin a Fetch. With `committed` it gets no records of open transactions (isolation level 1)."""
        self.gw = gw
        self.ctx = ctx
        self.call = call
        self.session = session
        self.committed = committed
        self.places = entry_places.TAG in call.tags
        """True if the answer says at which places Pulsar keeps the records. Memory does not know that, so they are read
        again.
        """
        self.schemas = entry_schemas.TAG in call.tags
        """True if the answer says which versions of Pulsar's schemas the records name. Memory knows that; a reader
        ahead may not.
        """
        self.of_entries = self.places or self.schemas
        """True if reads from storage have to bring what only Pulsar's entries tell."""
        self.budget = min(call.max_bytes, gw.settings.fetch_max_bytes)
        room = None if ctx.meter is None else ctx.meter.room()
        self.has_quota = room is not None
        """True if a quota bounds what the client may take."""
        if room is not None:
            self.budget = min(self.budget, int(room))
        self.min_bytes = min(call.min_bytes, max(self.budget, 1))
        if ctx.conn.cold_reads is None:
            ctx.conn.cold_reads = ColdReads(gw.engine.read_budget)
        self.reads = ctx.conn.cold_reads
        self.missing: set[tuple[str | UUID, int]] = set()
        """The partitions that did not exist at the first look, by name or id of the topic."""
        self.looked = False
        self.waits = False
        """True while a `WaitingFetch` waits for this Fetch's reads."""

    def wanted(self) -> list[FetchPartition]:
        """Return the partitions of the request or its session, in the order in which they get their turn."""
        if self.session is None:
            return self.call.partitions
        return [partition.wanted for partition in self.session.partitions.values()]

    def enough(self, response: _Response) -> bool:
        """Return true if the response is to go out now: it has the bytes that the request waits for, or an error, or
        the request does not wait for records and no read from storage is missing.
        """
        if response.failed or response.missing == len(response.answers):
            return True
        size = response.size - response.empty
        if size > 0 and size + response.left >= self.min_bytes:
            return True
        return not response.unread and (self.min_bytes <= 0 or self.call.max_wait_ms <= 0)

    # --- looking

    def look(self, *, read: bool) -> _Response:
        """Collect a response out of memory and the results of reads from storage that have ended. With `read`, reads
        are begun for what is missing; such partitions are counted as unread.
        """
        response = _Response(self.budget, reading=read)
        for wanted in self.wanted():
            partition_log = self._log(response, wanted)
            if partition_log is None:
                continue
            again = partition_log in response.looked_at
            response.looked_at.add(partition_log)
            stable = partition_log.last_stable_offset
            end = stable if self.committed and stable < partition_log.high_watermark else None
            try:
                result = self._cached(response, wanted, partition_log, end)
                if result is not None and len(self.reads) and not again:
                    self._note_passed(response, wanted, partition_log, result)
                if result is None:
                    # Storage is read for a partition once: two offsets would end each other's reads again and again.
                    result = _EMPTY if again else self._from_storage(response, wanted, partition_log, end, read)
            except KopError as error:
                self._fail(response, wanted, error, partition_log)
                continue
            if result is None:
                response.unread += 1
                response.not_taken.append((wanted, partition_log))
            self._add(response, wanted, partition_log, stable, result)
        self.looked = True
        if read and response.unread:
            self.reads.make_room(response.looked_at.difference(response.passed), int(self.waits))
        return response

    def _note_passed(
        self, response: _Response, wanted: FetchPartition, partition_log: PartitionLog, result: ReadResult
    ) -> None:
        """Note that memory answers for a partition with `result`, so that a read of it is of no use. Not if `result` is
        empty and there is a read of the wanted offset: the response may have no room for its records.
        """
        if result.size or self.reads.find(partition_log, wanted.fetch_offset) is None:
            response.passed.append(partition_log)

    def _cached(
        self, response: _Response, wanted: FetchPartition, partition_log: PartitionLog, end: int | None
    ) -> ReadResult | None:
        """Return the batches of a partition that memory holds, none if the response has no room left; None if storage
        has to be read, or has been, with a result that this Fetch should use.

        `end` is the offset at which open transactions begin, if the Fetch may only read up to it; else None.
        """
        if not partition_log.attached or self._was_read(wanted, partition_log):
            return None
        room = response.room(wanted)
        if room == 0 and not response.min_one:
            return _EMPTY
        if end is not None and end <= wanted.fetch_offset < partition_log.high_watermark:
            return _EMPTY
        result = partition_log.read_cached(wanted.fetch_offset, room, min_one=response.min_one)
        if result is not None and result.size and (self.places or (self.schemas and result.schemas is None)):
            return None
        return result if end is None or result is None else stable_part(result, end)

    def _was_read(self, wanted: FetchPartition, partition_log: PartitionLog) -> bool:
        """Return true if a read of this partition from storage has ended whose result this Fetch should use, rather
        than the batches in memory.
        """
        read = self._found(wanted, partition_log) if len(self.reads) else None
        return read is not None and read.result is not None

    def _most(self, wanted: FetchPartition) -> int:
        """Return the number of bytes that the records of a partition may take in an answer that has no others."""
        return min(wanted.max_bytes, self.budget)

    def _found(self, wanted: FetchPartition, partition_log: PartitionLog) -> ColdRead | None:
        return self.reads.find(partition_log, wanted.fetch_offset, self.of_entries, self._most(wanted))

    def _from_storage(
        self, response: _Response, wanted: FetchPartition, partition_log: PartitionLog, end: int | None, read: bool
    ) -> ReadResult | None:
        """Return the batches of a partition that a read from storage has brought, none if they do not fit; None while
        there is no such read or it goes on. With `read` one is begun if there is none. Raise the KopError that the read
        ended with.

        `end` is the offset at which open transactions begin, if the Fetch may only read up to it; else None.
        """
        if read:
            under_way: ColdRead | None = self._ask(wanted, partition_log)
        else:
            under_way = self._found(wanted, partition_log)
        if under_way is None:
            return None
        if under_way.error is not None:
            response.taken.append(partition_log)
            raise under_way.error
        result = under_way.result
        if result is None:
            return None
        if end is not None:
            result = stable_part(result, end)
        if result.size > response.room(wanted) and not response.min_one:
            response.not_taken.append((wanted, partition_log))
            return _EMPTY  # the batches do not fit: a later answer takes them
        response.taken.append(partition_log)
        return result

    def read_ahead(self, response: _Response) -> None:
        """Begin reads from storage whose results the client's next Fetch takes: for the partitions that this response
        lacks because it does not wait for them, unless it began them, and for the records behind those that it has from
        storage. The records in it are not read again.
        """
        if response.unread and not response.reading:
            for wanted, partition_log in response.not_taken:
                self._ask(wanted, partition_log)
            self.reads.make_room(response.looked_at, int(self.waits))
        for wanted, partition_log, offset in response.next:
            if _is_cold(partition_log, offset):
                self.reads.ask_ahead(partition_log, offset, self._most(wanted), self.of_entries)

    def _ask(self, wanted: FetchPartition, partition_log: PartitionLog) -> ColdRead:
        """Return the read of a partition from storage, which begins now if there is none."""
        return self.reads.ask(partition_log, wanted.fetch_offset, self._most(wanted), self.of_entries)

    def _log(self, response: _Response, wanted: FetchPartition) -> PartitionLog | None:
        """Return the partition's log; None if it has none, or the client may not read it, after that error was put into
        the response.
        """
        if wanted.topic != response.looked_up:  # the partitions of a topic stand together
            response.looked_up = wanted.topic
            response.topic = self._topic(wanted.topic)
        topic = response.topic
        if isinstance(topic, ErrorCode):
            topic = self._unknown(wanted) if topic is ErrorCode.UNKNOWN_TOPIC_ID else topic
            self._note_missing(response, wanted, topic)
            return None
        partition_log = self.gw.topics.log(topic.topic_id, wanted.partition)
        if partition_log is None:
            self._note_missing(response, wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif wanted.current_leader_epoch > 0:
            self._note(response, wanted, ErrorCode.UNKNOWN_LEADER_EPOCH)
        else:
            return partition_log
        return None

    def _topic(self, name_or_id: str | UUID) -> TopicInfo | ErrorCode:
        """Return the topic, or the error for which the client gets none of its records: not authorized, no such topic,
        or NOT_LEADER_OR_FOLLOWER for a client that says it is a replica.
        """
        ctx = self.ctx
        if self.call.replica_id < 0:
            return ctx.topic(name_or_id, AclOperation.READ)
        if ctx.cluster(AclOperation.CLUSTER_ACTION):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic = ctx.topic(name_or_id, None)
        return topic if isinstance(topic, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _unknown(self, wanted: FetchPartition) -> ErrorCode:
        """Return the error for a partition whose topic or log does not exist: UNKNOWN_TOPIC_ID for an id that the
        request's session does not know. Of an id that it knows it also knows the name, as in Kafka:
        INCONSISTENT_TOPIC_ID if another topic has that now, else UNKNOWN_TOPIC_OR_PARTITION, as for a name.
        """
        if not isinstance(wanted.topic, UUID):
            topic = self.ctx.topic(wanted.topic, None)
            return topic if isinstance(topic, ErrorCode) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        known = self.session and self.session.partitions.get((wanted.topic, wanted.partition))
        if not known or known.topic_name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic = self.ctx.topic(known.topic_name, None)
        if isinstance(topic, ErrorCode) or topic.topic_id == wanted.topic:  # a log may be gone before its topic is
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.INCONSISTENT_TOPIC_ID

    def _note_missing(self, response: _Response, wanted: FetchPartition, code: int) -> None:
        failed = response.failed
        self._note(response, wanted, code)
        key = (wanted.topic, wanted.partition)
        if not self.looked and code != ErrorCode.INCONSISTENT_TOPIC_ID:
            self.missing.add(key)
        if key in self.missing:
            response.missing += 1
            response.failed = failed

    def _note(self, response: _Response, wanted: FetchPartition, code: int, log_start_offset: int = -1) -> None:
        response.answers.append(
            (wanted, FetchPartitionAnswer(wanted.partition, code, log_start_offset=log_start_offset))
        )
        response.failed = True

    def _fail(self, response: _Response, wanted: FetchPartition, error: KopError, partition_log: PartitionLog) -> None:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._note(response, wanted, error.code, partition_log.log_start_offset)
            return
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._note(response, wanted, self._unknown(wanted))
            return
        if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            log.warning(
                "cannot read %s-%d: %s; consumers try again. If this goes on, see what docs/operations.md says of it",
                *(partition_log.topic.name, partition_log.index, error),
            )
        self._note(response, wanted, error.code if error.code in _KNOWN_TO_CONSUMERS else ErrorCode.KAFKA_STORAGE_ERROR)

    def _add(
        self,
        response: _Response,
        wanted: FetchPartition,
        partition_log: PartitionLog,
        stable: int,
        result: ReadResult | None,
    ) -> None:
        if not partition_log.attached:  # its ends are not known yet: clients ignore ends of -1
            response.answers.append((wanted, FetchPartitionAnswer(wanted.partition, 0, -1, -1, -1)))
            return
        unread = result is None
        buffers, size, places, schemas = result = _EMPTY if result is None else result
        high_watermark = partition_log.high_watermark
        answer = FetchPartitionAnswer(
            wanted.partition,
            0,
            high_watermark,
            stable,
            partition_log.log_start_offset,
            buffers,
            size,
            aborted_in(partition_log, result) if self.committed else None,
        )
        if self.of_entries:
            tags = {}
            if self.places and places:
                tags[entry_places.TAG] = entry_places.pack_places(places)
            if self.schemas and schemas:
                tags[entry_schemas.TAG] = entry_schemas.pack_runs(schemas)
            if tags:
                answer = answer._replace(tags=encode_tags(tags))
        response.answers.append((wanted, answer))
        if size:
            response.size += size
            next_offset = next_offset_of(buffers[-1])
            # A batch has at least the bytes of its header, so none of these has records.
            if next_offset >= high_watermark and size == len(buffers) * HEADER_SIZE:
                response.empty += size
        elif unread or not response.size:
            return
        else:
            next_offset = wanted.fetch_offset  # there was no room, or nothing
        if next_offset < (stable if self.committed else high_watermark):
            most = self._most(wanted)
            if size and response.taken and response.taken[-1] is partition_log:
                if not (self.has_quota or partition_log.reads_ahead):
                    response.next.append((wanted, partition_log, next_offset))
                most = self.budget  # a read from storage is as one of an older segment in Kafka: more of it is enough
            response.left += max(0, most - size)

    # --- answering

    def frame(self, response: _Response) -> Frame:
        """Return the encoded answer; in a session it holds only what the client does not know yet. If the client has
        taken more than its quota, the answer is empty and nothing is taken. Else its bytes are counted, the results of
        reads that it has are dropped, and reads of what it lacks begin.
        """
        meter = self.ctx.meter
        if meter is not None and not meter.consume(response.size):
            if self.session is not None and self.call.session_epoch == 0:
                self.gw.fetch_sessions.end(self.session)
            return _held(self.ctx, self.call, self.session)
        for partition_log in response.taken:
            self.reads.forget(partition_log)
        for partition_log in response.passed:
            self.reads.forget(partition_log)
        self.read_ahead(response)
        answers: Iterable[tuple[FetchPartition, FetchPartitionAnswer]] = response.answers
        session_id = 0
        session = self.session
        if session is not None:
            session_id = session.session_id
            incremental = self.call.session_epoch != 0
            news = []
            served = []
            for wanted, answer in response.answers:
                key = (wanted.topic, wanted.partition)
                known = session.partitions.get(key)
                if answer.size:
                    served.append(key)
                if known is None or known.news(answer) or not incremental:
                    news.append((wanted, answer))
            session.rotate(served)
            answers = news
        metrics = self.gw.metrics
        metrics.fetched_bytes.value += response.size
        if response.failed or response.missing:
            for code in {answer.error_code for _, answer in response.answers if answer.error_code}:
                metrics.errors.labels("Fetch", ErrorCode(code).name).inc()
        topics: list[tuple[str | UUID, list[FetchPartitionAnswer]]] = []
        for wanted, answer in answers:
            if topics and topics[-1][0] == wanted.topic:
                topics[-1][1].append(answer)
            else:
                topics.append((wanted.topic, [answer]))
        if self.ctx.conn.space.prefix and self.ctx.version < _BY_ID:
            topics = outward_rows(topics, 0, self.ctx.conn.space)
        return encode_response(self.ctx.correlation_id, self.ctx.version, topics, session_id=session_id)

    # --- waiting

    async def read_and_wait(self) -> Frame:
        """Begin reads from storage, and return the encoded answer: as soon as it is enough, or after max_wait_ms, which
        is taken for 0.5 s at least if a read goes on. The pipeline calls this once there is memory for the reads.
        """
        response = self.look(read=True)
        return self.frame(response) if self.enough(response) else await WaitingFetch(self, response.unread > 0).answered

    def wait(self) -> asyncio.Future[Frame]:
        """Return a future of the encoded answer, which is given as soon as news of a log or of a read make it enough,
        or after max_wait_ms.
        """
        return WaitingFetch(self, reads=False).answered


def _is_cold(partition_log: PartitionLog, offset: int) -> bool:
    """Return true if records from this offset on are there, and not in memory. The offset is before the log's end."""
    start = partition_log.log_start_offset
    return offset >= start and partition_log.read_cached(offset, 0, min_one=False) is None


class WaitingFetch:
    """A Fetch that waits for news of logs, for reads from storage, or for a timer. It ends when it is answered or
    cancelled.
    """

    __slots__ = ("answered", "deadline", "due", "fetch", "looked", "looking", "loop", "pause", "timer", "undo")

    def __init__(self, fetch: _Fetch, reads: bool) -> None:
        """Wait for max_wait_ms from now on; with `reads` for at least 0.5 s, so that storage has time to answer. The
        future `answered` has the encoded answer then.
        """
        self.fetch = fetch
        self.loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[Frame] = self.loop.create_future()
        self.answered.add_done_callback(self._over)
        self.looked = self.loop.time()
        self.looking: asyncio.Handle | None = None
        self.undo: list[Callable[[], None]] = []
        gw, wanted_ones = fetch.gw, fetch.wanted()
        self.pause = len(wanted_ones) * _LOOK_SECONDS
        for wanted in wanted_ones:
            topic = fetch.ctx.topic(wanted.topic, AclOperation.READ)
            partition_log = None if isinstance(topic, ErrorCode) else gw.topics.log(topic.topic_id, wanted.partition)
            if partition_log is not None:
                self.undo.append(partition_log.on_advance(self.poke))
        self.undo.append(fetch.reads.on_news(self.poke))
        fetch.waits = True
        seconds = fetch.call.max_wait_ms / 1000
        self.deadline = self.looked + (max(seconds, _READ_SECONDS) if reads else seconds)
        self.timer = self._set_timer()

    def poke(self) -> None:
        """Look at the partitions again soon, because a log or a read has news: 20 microseconds for each partition after
        the last look, or at once if that is over. All news until then lead to one look.
        """
        if self.looking is None and not self.answered.done():
            self.looking = self.loop.call_at(self.looked + self.pause, self._look_at_news)

    def _look(self) -> None:
        self.looking = None
        if self.answered.done():
            return
        begin = clock.perf_counter()
        response = self.fetch.look(read=True)
        self.looked = self.loop.time()
        if self.fetch.ctx.meter is not None:
            self.fetch.ctx.meter.seconds += clock.perf_counter() - begin
        if self.fetch.enough(response) or self.looked >= self.deadline:
            self.answered.set_result(self.fetch.frame(response))

    def _look_at_news(self) -> None:
        self._look()
        if not self.answered.done() and self.due > self._next_time():  # this look has begun a read
            self.timer.cancel()
            self.timer = self._set_timer()

    def _next_time(self) -> float:
        # Looking again keeps the reads that this waits for from being taken for ones that nobody wants.
        return min(self.deadline, self.loop.time() + KEPT_SECONDS / 2) if len(self.fetch.reads) else self.deadline

    def _set_timer(self) -> asyncio.TimerHandle:
        self.due = self._next_time()
        return self.loop.call_at(self.due, self._time)

    def _time(self) -> None:
        if self.looking is not None:
            self.looking.cancel()
        self._look()
        if not self.answered.done():
            self.timer = self._set_timer()

    def _over(self, _answered: Any) -> None:
        self.timer.cancel()
        if self.looking is not None:
            self.looking.cancel()
        for undo in self.undo:
            undo()
        self.undo.clear()


def fetch(gw: Gateway, ctx: Context, call: FetchCall) -> Frame | Later:
    """Answer a Fetch from memory at once if there is enough, or later: by reading from storage, or by waiting for
    records.
    """
    committed = reads_committed(call.isolation_level)
    held = ctx.meter is not None and ctx.meter.room() == 0
    if held and call.session_epoch == 0:
        return _held(ctx, call, None)  # it begins no session: as in Kafka its client asks for the same again
    try:
        session = gw.fetch_sessions.resolve(
            call, by_id=ctx.version >= _BY_ID, now_ms=ctx.now_ms, owner=ctx.conn.space.prefix + ctx.conn.principal
        )
    except KopError as error:
        gw.metrics.errors.labels("Fetch", error.code.name).inc()
        return encode_response(ctx.correlation_id, ctx.version, (), error_code=error.code)
    if session is not None:
        _keep_names(ctx, session, call)
    if held:
        return _held(ctx, call, session)
    fetching = _Fetch(gw, ctx, call, session, committed)
    response = fetching.look(read=False)
    if fetching.enough(response):
        return fetching.frame(response)
    return InTask(fetching.read_and_wait()) if response.unread else Later().follow(fetching.wait())


def _held(ctx: Context, call: FetchCall, session: FetchSession | None) -> Frame:
    """Return the empty answer, with the id of the session if it goes on, to a client that is held for what it took
    before (KIP-219).
    """
    session_id = session.session_id if session is not None and call.session_epoch > 0 else 0
    return encode_response(ctx.correlation_id, ctx.version, (), session_id=session_id)


def _keep_names(ctx: Context, session: FetchSession, call: FetchCall) -> None:
    """Keep in the session, for the partitions that a request names by topic id, the names that these ids
    stand for now.
    """
    for wanted in call.partitions:
        if not isinstance(wanted.topic, UUID) or isinstance(topic := ctx.topic(wanted.topic, None), ErrorCode):
            continue
        known = session.partitions.get((wanted.topic, wanted.partition))
        if known is not None:  # a request may also forget a partition that it names
            known.topic_name = topic.name


APIS = (
    Api(
        KEY,
        4,
        18,
        fetch,
        (
            Need(AclOperation.READ, ResourceType.TOPIC, lambda call: [wanted.topic for wanted in call.partitions]),
            Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),
        ),
        finds=False,
        decode=parse,
        encodes=True,
        long_poll=True,
        reads=lambda call: call.max_bytes,
    ),
)
