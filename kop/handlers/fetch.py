"""Fetch (1), versions 4 to 18.

- Byte limits: the request's, a partition's and fetch.max.bytes; the first batch goes out even above them (KIP-74).
- Whole batches: one that was asked for from its middle is answered from its base offset.
- Long poll: nothing to give waits up to max_wait_ms and is woken by the logs themselves; an error in any partition
  answers at once. OFFSET_OUT_OF_RANGE at both ends, with the log start in the answer.
- Sessions (KIP-227) from version 7, topics by id from 13: UNKNOWN_TOPIC_ID; in a session that knew the topic,
  UNKNOWN_TOPIC_OR_PARTITION once it is deleted, INCONSISTENT_TOPIC_ID once it is made anew.
- leader_epoch is 0: a higher one asked for is UNKNOWN_LEADER_EPOCH.
- Below version 10 a topic whose compression.type is zstd is UNSUPPORTED_COMPRESSION_TYPE (KIP-110). On other topics
  zstd batches go out as they are stored, as in Kafka.
- No transactions yet: the last stable offset is the high watermark, no transaction is aborted.
- What is in the tail cache is answered on the spot, without a task; what is not is read by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kop.errors import ErrorCode, KopError
from kop.handlers.base import Api, Context, Frame, Gateway
from kop.handlers.fetch_sessions import FetchSession
from kop.records.compression import Codec
from kop.storage.base import PartitionLog, ReadResult
from kop.wire.fetch import FetchCall, FetchPartition, PartitionAnswer, encode_response, parse

KEY = 1
_ZSTD_FROM = 10

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Round:
    """One pass over the partitions and what it found."""

    budget: int
    answers: list[tuple[FetchPartition, PartitionAnswer]] = field(default_factory=list)
    size: int = 0
    failed: bool = False

    def room(self, wanted: FetchPartition) -> int:
        """Bytes that this partition may take."""
        return max(0, min(wanted.max_bytes, self.budget - self.size))

    @property
    def min_one(self) -> bool:
        """The first batch goes out whatever its size."""
        return self.size == 0


class _Fetch:
    """A Fetch under way."""

    def __init__(self, gw: Gateway, ctx: Context, call: FetchCall, session: FetchSession | None) -> None:
        self.gw = gw
        self.ctx = ctx
        self.call = call
        self.session = session
        self.budget = min(call.max_bytes, gw.config.fetch_max_bytes)

    def wanted(self) -> list[FetchPartition]:
        """The partitions to look at, in the order of their turns."""
        if self.session is None:
            return self.call.partitions
        return [partition.wanted for partition in self.session.partitions.values()]

    def enough(self, found: _Round) -> bool:
        """True when the answer need not wait."""
        short = found.size < self.call.min_bytes and self.call.max_wait_ms > 0
        return found.failed or not found.answers or not short

    # --- looking

    def look(self) -> _Round | None:
        """A pass over what is in memory, or None where storage has to be read."""
        found = _Round(self.budget)
        for wanted in self.wanted():
            partition_log = self._log(found, wanted)
            if partition_log is None:
                continue
            if not partition_log.attached:
                return None
            try:
                room = found.room(wanted)
                if room == 0 and not found.min_one:
                    self._add(found, wanted, partition_log, None)
                    continue
                result = partition_log.read_cached(wanted.fetch_offset, room, min_one=found.min_one)
            except KopError as error:
                self._fail(found, wanted, error, partition_log)
                continue
            if result is None:
                return None
            self._add(found, wanted, partition_log, result)
        return found

    async def read(self) -> _Round:
        """A pass that reads from storage where memory does not hold what is wanted."""
        found = _Round(self.budget)
        await self._attach_all()
        for wanted in self.wanted():
            partition_log = self._log(found, wanted)
            if partition_log is None:
                continue
            try:
                if not partition_log.attached:
                    await partition_log.attach()
                room = found.room(wanted)
                result: ReadResult | None = None
                if room or found.min_one:
                    result = partition_log.read_cached(wanted.fetch_offset, room, min_one=found.min_one)
                    if result is None:
                        result = await partition_log.read(wanted.fetch_offset, room, min_one=found.min_one)
            except KopError as error:
                self._fail(found, wanted, error, partition_log)
                continue
            self._add(found, wanted, partition_log, result)
        return found

    async def _attach_all(self) -> None:
        """Side by side, where storage has to attach more than one; who fails is asked again in its turn."""
        unused = _Round(self.budget)
        logs = [self._log(unused, wanted) for wanted in self.wanted()]
        waiting = {id(one): one for one in logs if one is not None and not one.attached}
        if len(waiting) > 1:
            await asyncio.gather(*(one.attach() for one in waiting.values()), return_exceptions=True)

    def _log(self, found: _Round, wanted: FetchPartition) -> PartitionLog | None:
        """The partition's log, or None after an error was noted."""
        asked = wanted.topic
        topic = self.gw.catalog.by_id(asked) if isinstance(asked, UUID) else self.gw.catalog.get(asked)
        if topic is None:
            self._note(found, wanted, self._unknown(wanted))
            return None
        partition_log = self.gw.catalog.log(topic.topic_id, wanted.partition)
        if partition_log is None:
            self._note(found, wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif wanted.current_leader_epoch > 0:
            self._note(found, wanted, ErrorCode.UNKNOWN_LEADER_EPOCH)
        elif self.ctx.version < _ZSTD_FROM and self.gw.topic_configs.produce_rules(topic).codec is Codec.ZSTD:
            self._note(found, wanted, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        else:
            return partition_log
        return None

    def _unknown(self, wanted: FetchPartition) -> ErrorCode:
        """What to say of a topic that there is not. A session knows the name that an id had, as Kafka's does."""
        if not isinstance(wanted.topic, UUID):
            return self.gw.catalog.missing(wanted.topic)
        known = self.session and self.session.partitions.get((wanted.topic, wanted.partition))
        if not known or known.topic_name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        made_anew = self.gw.catalog.get(known.topic_name) is not None
        return ErrorCode.INCONSISTENT_TOPIC_ID if made_anew else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _note(self, found: _Round, wanted: FetchPartition, code: int, log_start_offset: int = -1) -> None:
        found.answers.append((wanted, PartitionAnswer(wanted.partition, code, log_start_offset=log_start_offset)))
        found.failed = True

    def _fail(self, found: _Round, wanted: FetchPartition, error: KopError, partition_log: PartitionLog) -> None:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._note(found, wanted, error.code, partition_log.log_start_offset)
            return
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._note(found, wanted, self._unknown(wanted))
            return
        if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            log.warning("cannot read %s-%d: %s", partition_log.topic.name, partition_log.index, error)
        self._note(found, wanted, error.code)

    def _add(
        self, found: _Round, wanted: FetchPartition, partition_log: PartitionLog, result: ReadResult | None
    ) -> None:
        high_watermark = partition_log.high_watermark
        if result is None or not result.size:
            answer = PartitionAnswer(
                wanted.partition, 0, high_watermark, high_watermark, partition_log.log_start_offset
            )
        else:
            answer = PartitionAnswer(
                wanted.partition,
                0,
                high_watermark,
                high_watermark,
                partition_log.log_start_offset,
                result.buffers,
                result.size,
            )
            found.size += result.size
        found.answers.append((wanted, answer))

    # --- answering

    def frame(self, found: _Round) -> Frame:
        """The answer; in a session only what the client does not know yet."""
        answers: Iterable[tuple[FetchPartition, PartitionAnswer]] = found.answers
        session_id = 0
        session = self.session
        if session is not None:
            session_id = session.session_id
            incremental = self.call.session_epoch != 0
            news = []
            served = []
            for wanted, answer in found.answers:
                key = (wanted.topic, wanted.partition)
                known = session.partitions.get(key)
                if answer.size:
                    served.append(key)
                if known is None or known.news(answer) or not incremental:
                    news.append((wanted, answer))
            session.rotate(served)
            answers = news
        metrics = self.gw.metrics
        metrics.fetched_bytes.inc(found.size)
        if found.failed:
            for code in {answer.error_code for _, answer in found.answers if answer.error_code}:
                metrics.errors.labels("Fetch", ErrorCode(code).name).inc()
        topics: list[tuple[str | UUID, list[PartitionAnswer]]] = []
        for wanted, answer in answers:
            if topics and topics[-1][0] == wanted.topic:
                topics[-1][1].append(answer)
            else:
                topics.append((wanted.topic, [answer]))
        return encode_response(self.ctx.correlation_id, self.ctx.version, topics, session_id=session_id)

    # --- waiting

    async def read_and_wait(self) -> Frame:
        """Read from storage, then wait if that was not enough."""
        found = await self.read()
        if self.enough(found):
            return self.frame(found)
        waiting = _Wait(self)
        waiting.poke()  # what came in while storage was read
        return await waiting.answered

    def wait(self) -> asyncio.Future[Frame]:
        """The answer when a log has news that make it enough, or when max_wait_ms is over."""
        return _Wait(self).answered


class _Wait:
    """A long poll: callbacks of the logs and one timer. Ends when answered or when the connection cancels it."""

    __slots__ = ("answered", "fetch", "loop", "poked", "reading", "timer", "undo")

    def __init__(self, fetch: _Fetch) -> None:
        self.fetch = fetch
        self.loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[Frame] = self.loop.create_future()
        self.answered.add_done_callback(self._over)
        self.poked = False
        self.reading: asyncio.Task[None] | None = None
        self.undo: list[Callable[[], None]] = []
        gw = fetch.gw
        for wanted in fetch.wanted():
            asked = wanted.topic
            topic = gw.catalog.by_id(asked) if isinstance(asked, UUID) else gw.catalog.get(asked)
            partition_log = None if topic is None else gw.catalog.log(topic.topic_id, wanted.partition)
            if partition_log is not None:
                self.undo.append(partition_log.on_advance(self.poke))
        self.timer = self.loop.call_later(fetch.call.max_wait_ms / 1000, self._timeout)

    def poke(self) -> None:
        """A log has news. Looked at once for all news of this turn of the loop."""
        if not self.poked and not self.answered.done():
            self.poked = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self.poked = False
        if self.answered.done() or self.reading is not None:
            return
        found = self.fetch.look()
        if found is None:
            self.reading = self.loop.create_task(self._read(final=False))
        elif self.fetch.enough(found):
            self.answered.set_result(self.fetch.frame(found))

    def _timeout(self) -> None:
        if self.answered.done():
            return
        found = self.fetch.look()
        if found is not None:
            self.answered.set_result(self.fetch.frame(found))
        elif self.reading is None:
            self.reading = self.loop.create_task(self._read(final=True))
        else:
            self.reading.add_done_callback(lambda _task: self._timeout())

    async def _read(self, *, final: bool) -> None:
        try:
            found = await self.fetch.read()
            if not self.answered.done() and (final or self.fetch.enough(found)):
                self.answered.set_result(self.fetch.frame(found))
        except Exception as error:
            if not self.answered.done():
                self.answered.set_exception(error)
        finally:
            self.reading = None

    def _over(self, _answered: Any) -> None:
        self.timer.cancel()
        for undo in self.undo:
            undo()
        self.undo.clear()
        if self.reading is not None:
            self.reading.cancel()


def fetch(gw: Gateway, ctx: Context, body: memoryview) -> Any:
    """Answer from memory, or by a task that reads, or by waiting."""
    call = parse(body, ctx.version)
    try:
        session = gw.fetch_sessions.resolve(call, by_id=ctx.version >= 13, now_ms=ctx.now_ms)
    except KopError as error:
        gw.metrics.errors.labels("Fetch", error.code.name).inc()
        return encode_response(ctx.correlation_id, ctx.version, (), error_code=error.code)
    if session is not None:
        _keep_names(gw, session, call)
    asked = _Fetch(gw, ctx, call, session)
    found = asked.look()
    if found is None:
        return asked.read_and_wait()
    if asked.enough(found):
        return asked.frame(found)
    return asked.wait()


def _keep_names(gw: Gateway, session: FetchSession, call: FetchCall) -> None:
    """Note in the session what the topic ids of a request stand for now."""
    for wanted in call.partitions:
        if not isinstance(wanted.topic, UUID) or (topic := gw.catalog.by_id(wanted.topic)) is None:
            continue
        known = session.partitions.get((wanted.topic, wanted.partition))
        if known is not None:  # else the same request forgets it
            known.topic_name = topic.name


APIS = (Api(KEY, 4, 18, fetch, raw=True),)
