"""Produce (0), versions 3 to 13; 0 to 2 are answered UNSUPPORTED_VERSION (see api_versions.py).

- One record batch of magic 2 a partition. CRC, sizes, counts, codec, timestamps and every record are checked as Kafka
  checks them, either here or by the engine, which says so (`Promises.checks_records`).
- acks -1 and 1 are both answered when the batch is durable; acks 0 is not answered at all, and an error on it closes
  the connection; other values are INVALID_REQUIRED_ACKS.
- From version 13 topics go by id: UNKNOWN_TOPIC_ID. Internal topics are INVALID_TOPIC_EXCEPTION.
- Versions below 7 may not carry zstd: UNSUPPORTED_COMPRESSION_TYPE.
- compression.type other than `producer` stores the batch in that codec.
- A batch with the LogAppendTime bit, as a copy from another topic has it, loses the bit; on a LogAppendTime topic it is
  INVALID_TIMESTAMP.
- Records with a timestamp that the topic does not allow are named in record_errors with INVALID_TIMESTAMP (KIP-467). Of
  a batch with more than 5,000 records none is named: its client takes all of them for refused.
- A transactional batch needs a transactional id, else the whole request is TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Its
  partition has to be in the producer's open transaction; from version 12 on Produce adds it (KIP-890). The transaction
  coordinator is asked once for each partition of a transaction; such a request, and those of the producer behind it,
  wait for that in a task. All transactional batches of a request are of one producer id, else they are
  INVALID_PRODUCER_ID_MAPPING.
- throttle_time_ms is what the storage says of batches that it holds back, if no quota says more. For the storage the
  connection is not muted (KIP-219): a client that sends on all the same waits for its answers, and what it may have
  under way is bounded.
- Else no task, and no object per record: the answer is put together by the appends' own callbacks.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Container, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Final, NoReturn, TypeAlias
from uuid import UUID

from kop.cluster.topic_configs import ProduceRules
from kop.errors import BackendError, ErrorCode, FrameError, KopError, PeerError
from kop.handlers.access import Need
from kop.handlers.api import UNLIMITED, Answer, Api, Context, Frame, undecoded
from kop.handlers.gateway import Gateway
from kop.handlers.produce_request import ReadBatch, ReadTopic, read
from kop.handlers.produce_targets import refused_by_log, refused_partition
from kop.records.batch import (
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    check_produced,
    is_transactional,
    read_header,
    stamp_create_time,
)
from kop.records.validation import check_records, inflated, refuse_times
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import AppendResult, Buffer, PartitionLog
from kop.transactions.machine import Partition
from kop.transactions.runtime import VerifiedPartitions
from kop.transactions.verification import TransactionalProducer
from kop.wire.names import outward_rows, outward_text
from kop.wire.produce import ProducePartitionAnswer, appended_row, encode_partition, encode_rows

KEY = 0
MOST_DECOMPRESSED = 256 << 20
"""The most bytes to which the batches of one request may decompress. Decompressing runs on the event loop, and a frame
has room for 40,000 bombs. Batches beyond it fail with KAFKA_STORAGE_ERROR, which clients retry.
"""
_BY_ID = 13
"""The version from which on topics go by id."""
_ADDS_PARTITIONS = 12
"""The version from which on a request adds its partitions to the transaction (KIP-890, part 2)."""
_KNOWS_ABORTABLE = 11
"""The version from which on clients know TRANSACTION_ABORTABLE."""
_COORDINATOR_ERRORS = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
}
_TOLD = -(1 << 62)
_INT32: Final = struct.Struct(">i")

_Producers: TypeAlias = dict[tuple[int, int], dict[Partition, PartitionLog]]
"""The type of the logs that transactional batches go to, by producer id and epoch, then by partition."""
_Stored: TypeAlias = tuple[UUID, int]
"""The type of a partition's key in storage: topic id and partition."""
_NO_ERRORS: Mapping[_Stored, ErrorCode] = MappingProxyType({})

log = logging.getLogger(__name__)


class ProduceAnswer(Answer):
    """A Produce request whose appends are under way: the `AppendWaiter` of all of them, and its answer.

    The place of an append is the place of its partition among all of the request.
    """

    __slots__ = (
        "acks",
        "ctx",
        "errors",
        "gw",
        "room",
        "rows",
        "submitted",
        "throttle_ms",
        "topics",
        "unanswered",
        "verification",
    )

    def __init__(self, gw: Gateway, ctx: Context, acks: int, topics: list[ReadTopic]) -> None:
        super().__init__()
        self.gw = gw
        self.ctx = ctx
        self.acks = acks
        self.topics = [(name_or_id, len(batches)) for name_or_id, batches in topics]
        """The topics of the request, by name or id, each with its number of partitions."""
        self.rows: list[bytes] = []
        """The encoded answer of each partition, in the order of the request."""
        self.errors: set[ErrorCode] = set()
        self.unanswered = 0
        """The number of appends that have not ended."""
        self.submitted = False
        """True if all appends of the request have begun."""
        self.throttle_ms = 0
        self.room = MOST_DECOMPRESSED
        """The bytes to which the request's batches may still be decompressed; `_TOLD` once a log line has said that
        they are too large.
        """
        self.verification: asyncio.Task[None] | None = None
        """The task that asks the transaction coordinator. It goes on if the client leaves, because its request was
        accepted.
        """

    def reserve(self, size: int) -> None:
        """Count bytes to which a batch will be decompressed; a negative `size` gives back what it did not need.
        BackendError, logged once for the request, if its batches have reached 256 MiB.
        """
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

    def refused(self, place: int, answer: ProducePartitionAnswer) -> None:
        """Put an error into the answer of the partition that is at `place` among all of the request, and note it for
        the metrics.
        """
        self.errors.add(ErrorCode(answer.error_code))
        if answer.message and (space := self.ctx.conn.space).prefix:
            answer = answer._replace(message=outward_text(answer.message, space))
        self.rows[place] = encode_partition(self.ctx.version, answer)

    def appended(self, place: int, result: AppendResult) -> None:
        """Put the offset at which a batch was stored into the answer of its partition, which is at `place` among all of
        the request. The answer goes out once all appends have ended.
        """
        partition = _INT32.unpack_from(self.rows[place])[0]
        self.rows[place] = appended_row(
            self.ctx.version, partition, result.base_offset, result.log_append_time, result.log_start_offset
        )
        self.throttle_ms = max(self.throttle_ms, result.throttle_ms)
        self.unanswered -= 1
        if self.submitted and not self.unanswered:
            self.finish()

    def append_failed(self, place: int, error: KopError) -> None:
        """Put the error of a batch that was not stored, or may not have been, into the answer of its partition, which
        is at `place` among all of the request. The answer goes out once all appends have ended.
        """
        partition = _INT32.unpack_from(self.rows[place])[0]
        self.refused(place, refused_by_log(self.gw.produce_targets, self._topic_at(place), partition, error))
        self.unanswered -= 1
        if self.submitted and not self.unanswered:
            self.finish()

    def _topic_at(self, place: int) -> str | bytes:
        for name_or_id, count in self.topics:
            if place < count:
                return name_or_id
            place -= count
        raise IndexError(place)

    def finish(self) -> None:
        """Give the answer to the connection, because all appends have ended; if the client expects none and a batch has
        failed, close the connection instead.
        """
        try:
            frame = self.encoded()
        except FrameError as error:
            self.refuse(error)
        else:
            self.give(frame)

    def encoded(self) -> Frame | None:
        """Return the encoded answer, and count its errors; None if the client expects none (acks=0). FrameError if an
        error with acks=0 has to close the connection.
        """
        for code in self.errors:
            self.gw.metrics.errors.labels("Produce", code.name).inc()
        if self.acks == 0:
            if self.errors:
                names = ", ".join(sorted(code.name for code in self.errors))
                raise FrameError(f"a Produce with acks=0 failed with {names}; closing is the only way to tell")
            return None
        if self.throttle_ms:
            self.gw.metrics.throttled.value += 1
        rows, space = self.rows, self.ctx.conn.space
        topics: list[tuple[str | bytes, list[bytes]]] = []
        end = 0
        for name_or_id, count in self.topics:
            begin, end = end, end + count
            topics.append((name_or_id, rows[begin:end]))
        if space.prefix and self.ctx.version < _BY_ID:
            topics = outward_rows(topics, 0, space)
        return (encode_rows(self.ctx.correlation_id, self.ctx.version, topics, self.throttle_ms),)


def produce(gw: Gateway, ctx: Context, body: memoryview) -> Frame | ProduceAnswer | None:
    """Answer Produce: check each partition's batch, hand it to its log, and answer when all are durable. Batches of
    transactions that this broker has not verified wait for their coordinator first.
    """
    walks = not gw.engine.promises.checks_records
    transactional_id, acks, _, transactional, topics = read(body, ctx.version, walks=walks, copies=not ctx.owned)
    if (space := ctx.conn.space).prefix:
        transactional_id = transactional_id and space.inward(transactional_id)
        topics = [(space.inward(topic) if isinstance(topic, str) else topic, batches) for topic, batches in topics]
    refusal = _refuse_whole(ctx, transactional_id, acks, transactional)
    answer = ProduceAnswer(gw, ctx, acks, topics)
    if transactional and transactional_id is not None and refusal is None:
        producers, known = _transactional_producers(gw, ctx, topics)
        if not all(
            gw.verifier.holds(*producer, (each.topic.topic_id, each.index)) and each.in_transaction(*producer)
            for producer, logs in producers.items()
            for each in logs.values()
        ):
            if not ctx.owned:
                topics = _kept(topics)
            turn = gw.verifier.turn(next(iter(producers))[0])
            answer.verification = asyncio.get_running_loop().create_task(
                _verify_and_submit(answer, topics, transactional_id, producers, known, turn)
            )
            return answer
    _submit_all(answer, topics, refusal, _NO_ERRORS)
    if not answer.unanswered:
        return answer.encoded()
    answer.submitted = True
    return answer


def _submit_all(
    answer: ProduceAnswer,
    topics: list[ReadTopic],
    refusal: ErrorCode | None,
    errors: Mapping[_Stored, ErrorCode],
    known: Container[_Stored] | None = None,
) -> None:
    """Hand the batches to their logs, or put the error for which one is refused into the answer. `refusal` is an error
    of all of them, `errors` has those of single partitions, by topic id and index.

    `known`: the partitions that existed when the request came, if it has waited since; others are refused.
    """
    gw, rows = answer.gw, answer.rows
    peer = answer.ctx.conn
    targets = gw.produce_targets.current(peer)
    for name_or_id, batches in topics:
        target = refusal or targets.get(name_or_id) or gw.produce_targets.find(peer, name_or_id)
        for batch in batches:
            place = len(rows)
            partition = batch[0]
            rows.append(_INT32.pack(partition))
            if isinstance(target, ErrorCode):
                answer.refused(place, ProducePartitionAnswer(partition, target))
                continue
            partition_log = target.logs.get(partition) or target.log(partition)
            if partition_log is None or (known is not None and (target.topic.topic_id, partition) not in known):
                text = f"{target.topic.name} has no partition {partition}"
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.refused(place, ProducePartitionAnswer(partition, code, message=text))
                continue
            if errors and (code := errors.get((target.topic.topic_id, partition), ErrorCode.NONE)):
                answer.refused(place, ProducePartitionAnswer(partition, code))
                continue
            answer.unanswered += 1
            try:
                header = _submit(answer, target.rules, partition_log, batch, place)
                if answer.acks:
                    gw.direct_produce.offer(peer, name_or_id, target.rules, partition_log, header)
            except KopError as error:
                answer.unanswered -= 1
                answer.refused(place, refused_partition(partition, error))


def _refuse_whole(ctx: Context, transactional_id: str | None, acks: int, transactional: bool) -> ErrorCode | None:
    if ctx.version < 3:
        return ErrorCode.UNSUPPORTED_VERSION
    if acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if not transactional:  # the id alone needs no right
        return None
    if transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ctx.transactional_id(transactional_id, AclOperation.WRITE) or None


# --- transactions


def _transactional_producers(gw: Gateway, ctx: Context, topics: list[ReadTopic]) -> tuple[_Producers, set[_Stored]]:
    """Return the logs of the transactional batches by producer, under the names by which transactions know partitions.

    A batch that cannot be read, or whose partition does not exist, is left out: it is refused later. Also returned are
    all partitions of the request that exist now: one that is made later was not verified, so it takes no batch.
    """
    producers: _Producers = {}
    known: set[_Stored] = set()
    targets = gw.produce_targets.current(ctx.conn)
    for name_or_id, batches in topics:
        target = targets.get(name_or_id) or gw.produce_targets.find(ctx.conn, name_or_id)
        if isinstance(target, ErrorCode):
            continue
        name = ctx.canonical_name(target.topic.name)
        for partition, records, fields, _ in batches:
            partition_log = target.logs.get(partition) or target.log(partition)
            if partition_log is None:
                continue
            known.add((target.topic.topic_id, partition))
            if records is None or not is_transactional(records):
                continue
            try:
                header = BatchHeader._make(fields) if fields is not None else read_header(records)
            except KopError:
                continue
            if header.producer_id < 0:
                continue
            producer = header.producer_id, header.producer_epoch
            producers.setdefault(producer, {})[name, partition] = partition_log
    return producers, known


def _kept(topics: list[ReadTopic]) -> list[ReadTopic]:
    """Return the batches of the topics as copies, because the shared receive buffer that they lie in is used again."""
    return [(name_or_id, [_kept_batch(batch) for batch in batches]) for name_or_id, batches in topics]


def _kept_batch(batch: ReadBatch) -> ReadBatch:
    partition, records, fields, times = batch
    return partition, bytearray(records) if isinstance(records, memoryview) else records, fields, times


async def _verify_and_submit(
    answer: ProduceAnswer,
    topics: list[ReadTopic],
    transactional_id: str,
    producers: _Producers,
    known: Container[_Stored],
    turn: AbstractAsyncContextManager[None],
) -> None:
    """Ask the transaction coordinator to verify, or to add, the partitions; then hand the batches to their logs, in the
    order of the producer's requests, which `turn` keeps. Partitions that it refuses get its error. The answer is given
    at the end of all appends.
    """
    gw, version = answer.gw, answer.ctx.version
    (producer, logs), *others = producers.items()
    stored = {partition: (each.topic.topic_id, each.index) for partition, each in logs.items()}
    errors = {
        (each.topic.topic_id, each.index): ErrorCode.INVALID_PRODUCER_ID_MAPPING
        for _, logs_of_another in others
        for each in logs_of_another.values()
    }
    async with turn:
        try:
            verified = await gw.verifier.verify(
                TransactionalProducer(transactional_id, *producer),
                stored,
                add=version >= _ADDS_PARTITIONS,
                again=not all(each.in_transaction(*producer) for each in logs.values()),
            )
        except Exception:
            log.exception("a transaction of producer %d could not be verified", producer[0])
            gw.metrics.internal_errors.labels("Produce").inc()
            verified = VerifiedPartitions(ErrorCode.UNKNOWN_SERVER_ERROR)
        for partition, partition_log in logs.items():
            code = verified.error or verified.errors.get(partition, ErrorCode.NONE)
            if code:
                errors[stored[partition]] = _error_of_verification(code, version)
            else:
                partition_log.join_transaction(*producer, verified.storage_transaction)
        _submit_all(answer, topics, None, errors, known)
    answer.verification = None
    answer.submitted = True
    if not answer.unanswered:
        answer.finish()


def _error_of_verification(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error of a Produce of this version for an error of the transaction coordinator, as Kafka 4.3
    translates it.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE:
        return code if version >= _KNOWS_ABORTABLE else ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS:
        return code if version >= _ADDS_PARTITIONS else ErrorCode.NOT_ENOUGH_REPLICAS
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in _COORDINATOR_ERRORS else code


def _submit(
    answer: ProduceAnswer, rules: ProduceRules, partition_log: PartitionLog, batch: ReadBatch, place: int
) -> BatchHeader:
    """Check a partition's batch, count it in the metrics, and hand it to its log; return its header as it is stored.
    KopError if the batch is refused before the log has it; later errors come to `answer` by its `place`.
    """
    gw, ctx = answer.gw, answer.ctx
    _, records, fields, times = batch
    if records is None:
        records = memoryview(b"")
    if fields is not None and fields[1] + LOG_OVERHEAD <= rules.max_message_bytes:
        header = BatchHeader._make(fields)
    else:
        header = check_produced(records, max_message_bytes=rules.max_message_bytes, zstd_allowed=ctx.version >= 7)
    if header.log_append_time:
        records, header = _with_create_time(answer, rules, records, header)
    stored, body = records, None
    if gw.engine.promises.checks_records:
        if header.codec and rules.changes_codec(header):
            body = _inflated(answer, rules, records, header)
    else:
        if times is not None and not (rules.compact and times[2]):
            earliest, latest, _ = times
        else:
            most = rules.max_uncompressed_bytes if header.codec else 0
            if most:
                answer.reserve(most)
            earliest, latest, body = check_records(records, header, rules.compact, most)
            if most:
                answer.reserve(len(body) - most)
        if not rules.takes_times(earliest, latest, ctx.now_ms):
            _refuse_times(answer, rules, records, header, body)
        if latest != header.max_timestamp and not rules.log_append_time:
            stored = records = records if isinstance(records, bytearray) else bytearray(records)
            stamp_create_time(stored, latest)  # as Kafka does: look-ups by time go by what the header says
            header = read_header(stored)
    stored, header = rules.stored(stored, header, body)
    del body  # a log that decompresses, too, would hold both
    gw.metrics.produced_bytes.value += header.batch_length + LOG_OVERHEAD
    gw.metrics.produced_records.value += header.record_count
    # A view of the shared receive buffer is copied; a frame's own memory and a recompressed batch are ours to keep.
    if stored is records and not ctx.owned and not isinstance(stored, bytearray):
        stored = bytearray(stored)
    from_zero = ctx.version >= _ADDS_PARTITIONS and header.transactional
    partition_log.submit(stored, header, now_ms=ctx.now_ms, waiter=answer, place=place, from_zero=from_zero)
    return header


def _inflated(answer: ProduceAnswer, rules: ProduceRules, records: Buffer, header: BatchHeader) -> Buffer:
    answer.reserve(rules.max_uncompressed_bytes)
    body = inflated(records, header.codec, rules.max_uncompressed_bytes)
    answer.reserve(len(body) - rules.max_uncompressed_bytes)
    return body


def _with_create_time(
    answer: ProduceAnswer, rules: ProduceRules, records: Buffer, header: BatchHeader
) -> tuple[bytearray, BatchHeader]:
    """Return a batch of LogAppendTime, copied from another topic, as one of CreateTime, and its header.

    As in Kafka the batch is judged as if all of its records had its largest timestamp; then they have their own ones.
    PeerError (INVALID_TIMESTAMP) on a LogAppendTime topic, if the batch has no such timestamp, or if it is not allowed.
    """
    time, now_ms = header.max_timestamp, answer.ctx.now_ms
    if rules.log_append_time or time == NO_TIMESTAMP:
        raise PeerError("Producer should not set timestamp type to LogAppendTime", ErrorCode.INVALID_TIMESTAMP)
    if not rules.takes_times(time, time, now_ms):
        _refuse_times(answer, rules, records, header)
    records = bytearray(records)
    stamp_create_time(records, time)
    return records, read_header(records)


def _refuse_times(
    answer: ProduceAnswer, rules: ProduceRules, records: Buffer, header: BatchHeader, body: Buffer | None = None
) -> NoReturn:
    """Raise INVALID_TIMESTAMP for a batch, naming the records whose timestamps are not allowed. `body` is its records
    without compression, if the caller has them; else they are decompressed for that.
    """
    refuse_times(
        records,
        header,
        rules.time_limits,
        answer.ctx.now_ms,
        reserve=answer.reserve,
        max_bytes=rules.max_uncompressed_bytes,
        body=body,
    )


APIS = (
    Api(
        KEY,
        3,
        13,
        produce,
        (
            Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
            Need(AclOperation.WRITE, ResourceType.TOPIC),
        ),
        finds=False,
        decode=undecoded,
        encodes=True,
        refused_from=0,
        largest=UNLIMITED,
        overlaps=True,
        produces=True,
    ),
)
