"""Produce (0), versions 3 to 13; 0 to 2 are answered UNSUPPORTED_VERSION (see api_versions.py).

- One record batch of magic 2 a partition. CRC, sizes, counts, codec, timestamps and every record are checked as Kafka
  checks them, either here or by the engine, which says so (`Promises.checks_records`).
- acks -1 and 1 are both answered when the batch is durable; acks 0 is not answered at all, and an error on it closes
  the connection; other values are INVALID_REQUIRED_ACKS.
- From version 13 topics go by id: UNKNOWN_TOPIC_ID. Internal topics are INVALID_TOPIC_EXCEPTION.
- Versions below 7 may not carry zstd: UNSUPPORTED_COMPRESSION_TYPE.
- compression.type other than `producer` stores the batch in that codec.
- A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED until transactions exist. A transactional batch is it too,
  as in Kafka without a transactional id. Either refuses the whole request.
- throttle_time_ms is what the storage says of batches that it holds back. The connection is not muted (KIP-219): a
  client that sends on all the same waits for its answers, and what it may have under way is bounded.
- No task and no object per record: the answer is put together by the appends' own callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from uuid import UUID

from kop.errors import BackendError, ErrorCode, FrameError, KopError
from kop.handlers.api import UNLIMITED, AclOperation, Api, Context, Frame
from kop.handlers.gateway import Gateway
from kop.records.batch import check_produced, is_transactional, read_header, stamp_max_timestamp
from kop.records.validation import RecordsRejectedError, check_records, inflated
from kop.storage.base import AppendResult, Buffer, PartitionLog, TopicInfo
from kop.wire.produce import ProduceCall, ProducePartition, ProducePartitionAnswer, encode_response, parse

KEY = 0
MOST_DECOMPRESSED = 256 << 20
"""Bytes. Batches are decompressed on the loop, 64 MiB take some 50 ms of it, and a frame has room for 40,000 bombs.
When those of one request came to so much, the rest fails with KAFKA_STORAGE_ERROR, which clients retry."""
_TOLD = -(1 << 62)

log = logging.getLogger(__name__)


class _PendingProduce:
    """A Produce request whose appends are under way: the `AppendWaiter` of all of them.

    The place of an append is the place of its partition among all of the request.
    """

    __slots__ = ("answers", "call", "ctx", "done", "gw", "room", "throttle_ms", "waiting")

    def __init__(self, gw: Gateway, ctx: Context, call: ProduceCall) -> None:
        self.gw = gw
        self.ctx = ctx
        self.call = call
        self.answers: list[ProducePartitionAnswer] = []
        self.waiting = 0
        """Appends that have not ended."""
        self.throttle_ms = 0
        self.room = MOST_DECOMPRESSED
        """Bytes to which this request's batches may still be decompressed; below 0 the client was told."""
        self.done: asyncio.Future[Frame | None] | None = None
        """Ends with the frame, or None for acks=0. It is there once all appends were submitted and some wait."""

    def reserve(self, size: int) -> None:
        """See `AppendWaiter.reserve`."""
        if self.room > 0 or size < 0:
            self.room -= size
            return
        if self.room != _TOLD:
            self.room = _TOLD
            log.warning(
                "a Produce of client %s at %s holds batches that decompress to more than %d MiB: the rest is refused "
                "and has to be sent again; lower its max.request.size",
                self.ctx.client_id, self.ctx.conn.client_host, MOST_DECOMPRESSED >> 20,
            )  # fmt: skip
        raise BackendError(f"the batches of one request decompress to more than {MOST_DECOMPRESSED >> 20} MiB")

    def appended(self, place: int, result: AppendResult) -> None:
        """See `AppendWaiter.appended`."""
        self.answers[place] = ProducePartitionAnswer(
            self.answers[place].partition, 0, result.base_offset, result.log_append_time, result.log_start_offset
        )
        self.throttle_ms = max(self.throttle_ms, result.throttle_ms)
        self._one_less()

    def append_failed(self, place: int, error: KopError) -> None:
        """See `AppendWaiter.append_failed`."""
        answer = _refusal(self.answers[place].partition, error)
        if error.code == ErrorCode.UNKNOWN_PRODUCER_ID:
            # Without the log start the Java client sends the batch as it is again and again; see KIP-360.
            answer = answer._replace(log_start_offset=self._log_start_offset(place))
        self.answers[place] = answer
        self._one_less()

    def _log_start_offset(self, place: int) -> int:
        for topic_data in self.call.topics:
            if place < len(topic_data.partitions):
                topic, _ = _find(self.gw, topic_data.topic)
                if topic is None:
                    break  # it was deleted meanwhile
                log = self.gw.topics.log(topic.topic_id, topic_data.partitions[place].partition)
                return -1 if log is None else log.log_start_offset
            place -= len(topic_data.partitions)
        return -1

    def _one_less(self) -> None:
        """One wait less; the last one answers. A connection that is gone has cancelled `done`."""
        self.waiting -= 1
        if self.waiting or self.done is None or self.done.done():
            return
        try:
            self.done.set_result(self.frame())
        except FrameError as error:
            self.done.set_exception(error)

    def frame(self) -> Frame | None:
        """The answer: None where the client expects none."""
        errors = {answer.error_code for answer in self.answers if answer.error_code}
        for code in errors:
            self.gw.metrics.errors.labels("Produce", ErrorCode(code).name).inc()
        if self.call.acks == 0:
            if errors:
                names = ", ".join(sorted(ErrorCode(code).name for code in errors))
                raise FrameError(f"a Produce with acks=0 failed with {names}; closing is the only way to tell")
            return None
        answers = iter(self.answers)
        topics = [(topic.topic, list(islice(answers, len(topic.partitions)))) for topic in self.call.topics]
        if self.throttle_ms:
            self.gw.metrics.throttled.inc()
        return (encode_response(self.ctx.correlation_id, self.ctx.version, topics, self.throttle_ms),)


def produce(gw: Gateway, ctx: Context, call: ProduceCall) -> Frame | asyncio.Future[Frame | None] | None:
    """Check each partition's batch, hand it to its log, and answer when all are durable."""
    refusal = _refuse_whole(ctx, call)
    pending = _PendingProduce(gw, ctx, call)
    answers = pending.answers
    for topic_data in call.topics:
        topic, code = (None, refusal) if refusal is not None else _find(gw, topic_data.topic)
        for part in topic_data.partitions:
            place = len(answers)
            answers.append(ProducePartitionAnswer(part.partition, code))
            if topic is None:
                continue
            partition_log = gw.topics.log(topic.topic_id, part.partition)
            if partition_log is None:
                text = f"{topic.name} has no partition {part.partition}"
                answers[place] = ProducePartitionAnswer(
                    part.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=text
                )
                continue
            pending.waiting += 1
            try:
                _submit(pending, topic, partition_log, part, place)
            except KopError as error:
                answers[place] = _refusal(part.partition, error)
                pending.waiting -= 1
    if not pending.waiting:
        return pending.frame()
    pending.done = asyncio.get_running_loop().create_future()
    return pending.done


def _refuse_whole(ctx: Context, call: ProduceCall) -> ErrorCode | None:
    if ctx.version < 3:
        return ErrorCode.UNSUPPORTED_VERSION
    if call.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if call.transactional_id is not None or any(
        part.records is not None and is_transactional(part.records)
        for topic_data in call.topics
        for part in topic_data.partitions
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return None


def _find(gw: Gateway, asked: str | UUID) -> tuple[TopicInfo | None, ErrorCode]:
    if isinstance(asked, UUID):
        topic = gw.topics.by_id(asked)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = gw.topics.get(asked)
        missing = ErrorCode.NONE if topic is not None else gw.topics.missing(asked)
    if topic is None:
        return None, missing
    if topic.internal:
        return None, ErrorCode.INVALID_TOPIC_EXCEPTION
    return topic, ErrorCode.NONE


def _submit(
    pending: _PendingProduce, topic: TopicInfo, partition_log: PartitionLog, part: ProducePartition, place: int
) -> None:
    """Check a partition's batch and hand it to its log. KopError where it is refused before."""
    gw, ctx = pending.gw, pending.ctx
    rules = gw.topic_configs.produce_rules(topic)
    records = part.records if part.records is not None else memoryview(b"")
    header = check_produced(records, max_message_bytes=rules.max_message_bytes, zstd_allowed=ctx.version >= 7)
    stored: Buffer = records
    if gw.engine.promises.checks_records:
        rules.check_timestamp(header.base_timestamp, header.max_timestamp, ctx.now_ms)
        body = None
        if header.codec and rules.changes_codec(header):
            pending.reserve(rules.max_uncompressed_bytes)
            body = inflated(records, header, rules.max_uncompressed_bytes)
            pending.reserve(len(body) - rules.max_uncompressed_bytes)
    else:
        most = rules.max_uncompressed_bytes if header.codec else 0
        if most:
            pending.reserve(most)
        earliest, latest, body = check_records(records, header, rules.compact, most)
        if most:
            pending.reserve(len(body) - most)
        rules.check_timestamp(earliest, latest, ctx.now_ms)
        if latest != header.max_timestamp and not rules.log_append_time:
            stored = bytearray(records)  # as Kafka does: look-ups by time go by what the header says
            stamp_max_timestamp(stored, latest)
            header = read_header(stored)
    stored, header = rules.stored(stored, header, body)
    del body  # a log that decompresses, too, would hold both
    gw.metrics.produced_bytes.inc(header.size)
    gw.metrics.produced_records.inc(header.record_count)
    # A view of the shared receive buffer is copied; a frame's own memory and a recompressed batch are ours to keep.
    batch = bytearray(records) if stored is records and not ctx.owned else stored
    partition_log.submit(batch, header, now_ms=ctx.now_ms, waiter=pending, place=place)


def _refusal(partition: int, error: KopError) -> ProducePartitionAnswer:
    rejected = error.records if isinstance(error, RecordsRejectedError) else ()
    return ProducePartitionAnswer(partition, error.code, message=error.message or None, record_errors=rejected)


APIS = (
    Api(
        KEY,
        3,
        13,
        produce,
        AclOperation.WRITE,
        decode=parse,
        encodes=True,
        refused_from=0,
        largest=UNLIMITED,
        overlaps=True,
    ),
)
