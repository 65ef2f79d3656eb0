"""Records to the partitions of one topic: batches in the order of their sequences, sent again until a limit.

Owns: which partition a record goes to, the batches that wait, what is sent again and for how long, and the connection.
Must not know: where records come from, the terminal.

One thread drives everything by `Sender.step`, which never waits for longer than STEP_MS.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from kop import clock
from kop.cli.common import BOOTSTRAP_MS, SAY_SECONDS, explain, one_line, reason
from kop.cli.lines import LineRecord
from kop.client.first_connection import connect, refused, will_not_pass
from kop.errors import ErrorCode, PeerError
from kop.records.batch import Codec, add_sequence, build, iter_records, read_header, stamp_producer
from kop.records.columns import MAX_BYTES, EncodeSettings, RowsIn, encode_columns, key_partitions

STEP_MS: Final = 100
RETRY_SECONDS: Final = 0.1
SETTLE_SECONDS: Final = 3.0
"""The seconds for which a topic may be unknown to the server before that is an error: a server hears of a topic that
another server made a moment later.
"""
BATCH_BYTES: Final = 900_000
"""The largest batch that records are put into together, below a topic's usual max.message.bytes of 1 MiB. A larger
record is sent alone.
"""
REQUEST_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 4
"""The number of Produce requests that one server is sent before it has answered."""
WAITING_BYTES: Final = 8 << 20
"""The bytes of unanswered batches above which no more records are taken."""

_NO_PRODUCER_ID: Final = (
    "CLUSTER_AUTHORIZATION_FAILED: a producer id needs the right write on a topic, or idempotent-write on the cluster: "
    "kop acls add PRINCIPAL write --topic {}; with --acks 1 none is asked for"
)
"""The text for a client that may not have a producer id (KIP-679)."""
_DONE: Final = (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


CODECS: Final = {codec.name.lower(): codec for codec in Codec}


class SendError(Exception):
    """An error for records that cannot be sent; the text is for the user."""


# -- rows to batches


def rows_of_values(values: Sequence[bytes | None]) -> RowsIn:
    """Return records of values alone, without keys and headers, as columns for the encoder."""
    return RowsIn(len(values), None, _column(values), None, None)


def rows_of(records: Sequence[LineRecord]) -> RowsIn:
    """Return these records as columns for the encoder; their partitions are left out."""
    headers = timestamps = None
    if any(record.headers for record in records):
        ends = array("i", itertools.accumulate((len(record.headers) for record in records), initial=0))
        flat = [header for record in records for header in record.headers]
        names, values = _column([name for name, _ in flat]), _column([value for _, value in flat])
        headers = 0, None, memoryview(ends).cast("B"), (0, None), names, values
    times = [record.timestamp for record in records]
    if any(moment is not None for moment in times):
        numbers = memoryview(array("q", [moment or 0 for moment in times])).cast("B")
        timestamps = 0, _validity(times), numbers, 1
    key = _column([record.key for record in records])
    return RowsIn(len(records), key, _column([record.value for record in records]), headers, timestamps)


def _column(items: Sequence[bytes | None]) -> tuple[int, bytes | None, memoryview, bytes]:
    validity = _validity(items)
    present: Sequence[bytes] = items if validity is None else [item or b"" for item in items]  # type: ignore[assignment]
    ends = array("i", itertools.accumulate(map(len, present), initial=0))
    return 0, validity, memoryview(ends).cast("B"), b"".join(present)


def _validity(items: Sequence[object]) -> bytes | None:
    """Return the validity bitmap of a column: a bit for each item, set if it is not None, lowest bits first; None if
    every item is set.
    """
    if None not in items:
        return None
    bits = bytearray(len(items) + 7 >> 3)
    for place, item in enumerate(items):
        if item is not None:
            bits[place >> 3] |= 1 << (place & 7)
    return bytes(bits)


def encoded(rows: RowsIn, codec: int, now_ms: int) -> Iterator[tuple[bytearray, int]]:
    """Encode the rows as record batches without a producer id; yield each batch with its number of records. Rows
    without a timestamp get `now_ms`. Batches have 900,000 bytes at most; a larger record gets one of its own.
    """
    done = 0
    while done < rows.rows:
        rest = _behind(rows, done)
        try:
            for batch in encode_columns(rest, EncodeSettings(BATCH_BYTES, now_ms, codec)):
                yield batch.batch, batch.records
                done += batch.records
        except PeerError as error:
            if error.code != ErrorCode.MESSAGE_TOO_LARGE:
                raise
            for batch in encode_columns(_behind(rows, done)._replace(rows=1), EncodeSettings(MAX_BYTES, now_ms, codec)):
                yield batch.batch, batch.records
            done += 1


def _behind(rows: RowsIn, count: int) -> RowsIn:
    """Return the rows without the first `count` of them."""
    if not count:
        return rows

    def moved(part: Any) -> Any:
        return None if part is None else (part[0] + count, *part[1:])

    return RowsIn(rows.rows - count, *(moved(part) for part in rows[1:]))


def placed(records: Sequence[LineRecord], partitions: int, turn: int) -> dict[int, list[LineRecord]]:
    """Return the records by partition: the partition that a record names, or that of its key as Kafka's clients choose
    it, or for records without a key the partition `turn`.
    """
    _, _, chosen = key_partitions(len(records), _column([record.key for record in records]), partitions)
    by_key = memoryview(chosen).cast("i")
    by_partition: dict[int, list[LineRecord]] = {}
    for place, record in enumerate(records):
        partition = record.partition
        if partition is None:
            partition = turn if record.key is None else by_key[place]
        by_partition.setdefault(partition, []).append(record)
    return by_partition


# -- what waits


@dataclass(slots=True, eq=False)
class SentBatch:
    """A record batch that the server has not answered yet."""

    data: bytearray
    records: int
    made: float
    sequence: int | None = None


@dataclass(slots=True)
class _Lane:
    """The batches of one partition that wait. The first `flying` of them are sent and not answered."""

    waiting: deque[SentBatch] = field(default_factory=deque)
    flying: int = 0
    held_until: float | None = None
    """The time from which a partition may be sent to again after a batch of it failed, one batch at first; None while
    all is well.
    """
    next_sequence: int = 0
    acknowledged: int = 0
    """The sequence number of an idempotent producer behind the last batch that was acknowledged."""
    renumber: bool = False
    """True after a batch was taken out: the others get new sequence numbers before they are sent again."""


class Outbox:
    """The batches of a topic in the order in which they are to be written, and which of them may be sent now.

    Each batch of a partition has the next sequence. After a failure nothing more is sent to that partition until all
    that is under way was answered; then the first goes out again, alone. So the order stays, whatever is lost.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self.sent = 0
        """The number of records that the server has acknowledged."""
        self.waiting_bytes = 0

    @property
    def waiting(self) -> int:
        """The number of records that the server has not answered."""
        return sum(batch.records for lane in self._lanes.values() for batch in lane.waiting)

    @property
    def flying(self) -> bool:
        """True while a batch is sent and not answered."""
        return any(lane.flying for lane in self._lanes.values())

    @property
    def oldest(self) -> float | None:
        """The monotonic time, in seconds, at which the oldest unanswered batch was made; None if every batch is
        answered.
        """
        return min((lane.waiting[0].made for lane in self._lanes.values() if lane.waiting), default=None)

    def add(self, partition: int, data: bytearray, records: int, now: float) -> None:
        """Put a record batch of one partition, made at the monotonic time `now`, behind the others of that
        partition.
        """
        self._lanes.setdefault(partition, _Lane()).waiting.append(SentBatch(data, records, now))
        self.waiting_bytes += len(data)

    def due(self, partitions: Sequence[int], now: float, room: int) -> dict[int, SentBatch]:
        """Return for each of these partitions the next batch that may be sent now, as far as `room` bytes go, but at
        least one batch; each counts as sent from now on.
        """
        chosen: dict[int, SentBatch] = {}
        for partition in partitions:
            lane = self._lanes.get(partition)
            if lane is None or lane.flying >= len(lane.waiting):
                continue
            if lane.held_until is not None and (lane.flying or now < lane.held_until):
                continue
            if lane.renumber and not lane.flying:
                self._number_again(lane)
            batch = lane.waiting[lane.flying]
            room -= len(batch.data)
            if chosen and room < 0:
                break
            if batch.sequence is None:
                batch.sequence = lane.next_sequence
                lane.next_sequence = add_sequence(lane.next_sequence, batch.records)
            lane.flying += 1
            chosen[partition] = batch
        return chosen

    def done(self, partition: int, batch: SentBatch) -> None:
        """Remove a batch that the server has acknowledged, and count its records as sent. After a failure its partition
        is sent to as before once the first batch is acknowledged and nothing is under way.
        """
        first = self._lanes[partition].waiting[0] is batch
        lane = self._remove(partition, batch)
        if first and not lane.flying:
            lane.held_until = None
        if batch.sequence is not None:
            lane.acknowledged = add_sequence(batch.sequence, batch.records)
        self.sent += batch.records

    def failed(self, partition: int, now: float) -> None:
        """Note that the request of one batch of this partition failed: the batch is sent again after 0.1 s, and nothing
        else of the partition before all that is under way was answered.
        """
        lane = self._lanes[partition]
        lane.flying -= 1
        lane.held_until = now + RETRY_SECONDS

    def refused(self, partition: int, batch: SentBatch, now: float) -> None:
        """Remove a batch that the server will never write; the batches behind it get its sequence numbers."""
        lane = self._remove(partition, batch)
        lane.renumber = True
        lane.held_until = now

    def split(self, partition: int, batch: SentBatch, now: float) -> None:
        """Replace a batch that was too large by two batches of half of its records each, in its place, with new
        sequence numbers.
        """
        lane = self._lanes[partition]
        place = lane.waiting.index(batch)
        self._remove(partition, batch)
        header = read_header(batch.data)
        records = list(iter_records(batch.data, header, max_bytes=MAX_BYTES))
        middle = len(records) // 2
        for half in (records[middle:], records[:middle]):
            data = build(half, base_offset=half[0].offset, codec=header.codec)
            data[:8] = bytes(8)
            lane.waiting.insert(place, SentBatch(data, len(half), batch.made))
            self.waiting_bytes += len(data)
        lane.renumber = True
        lane.held_until = now

    def is_behind_a_gap(self, partition: int, batch: SentBatch) -> bool:
        """Return true if the sequence of a batch under way cannot follow that of the last one written: another batch of
        its partition waits before it, or was taken out.
        """
        lane = self._lanes[partition]
        return lane.renumber or lane.waiting[0] is not batch

    def _remove(self, partition: int, batch: SentBatch) -> _Lane:
        lane = self._lanes[partition]
        lane.waiting.remove(batch)
        lane.flying -= 1
        self.waiting_bytes -= len(batch.data)
        return lane

    @staticmethod
    def _number_again(lane: _Lane) -> None:
        for batch in lane.waiting:
            batch.sequence = None
        lane.next_sequence = lane.acknowledged
        lane.renumber = False


# -- sending


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The settings of a `Sender`: acknowledgements, compression, time limits."""

    acks: int = -1
    codec: int = Codec.NONE
    timeout: float = 120.0
    """The seconds that a record may wait for its acknowledgement; then sending ends with an error."""
    say_after: float = SAY_SECONDS
    """The seconds of waiting after which the user is told the reason; told again after four times as long, or for
    another reason.
    """


class Sender:
    """A sender of records to one topic. `servers`, `client_id` and `security`, the settings of TLS and SASL, are
    kafka-python's; `say` tells the user one line.

    Call `open`, then `add` records and `step` again and again; each step sends and receives what can be. SendError
    names the reason if no more can be sent: a record was refused (unless `tolerant`: then it is said, and the others go
    on), or the time is over.
    """

    def __init__(
        self,
        topic: str,
        servers: Sequence[str],
        client_id: str,
        settings: SendSettings,
        say: Callable[[str], None],
        tolerant: bool = False,
        security: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.outbox = Outbox()
        self.partitions: Sequence[int] = ()
        """The partition numbers of the topic, once the sender is open."""
        self._topic = topic
        self._settings = settings
        self._say = say
        self.tolerant = tolerant
        self._failure: str | None = None
        self._moved = 0.0
        self._why: str | None = None
        self._said: tuple[str, float] | None = None
        self._leaders: Mapping[int, int] = {}
        self._asking = False
        self._stale = False
        self._ask_at = 0.0
        self._under_way: dict[int, int] = {}
        self._producer: tuple[int, int] | None = None
        self._turn = itertools.count(clock.chance.randrange(1 << 16))
        self._servers = servers
        self._net = NetworkSelector(slow_task_threshold_secs=0)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=list(servers),
            client_id=client_id,
            **security,
            reconnect_backoff_max_ms=1000,
            request_timeout_ms=int(min(30.0, settings.timeout) * 1000),
        )

    def wake(self) -> None:
        """End the wait of a step; any thread may call it."""
        self._net.wakeup()

    def close(self) -> None:
        """Close the connections; what was not answered is given up."""
        self._manager.close()
        self._net.close()

    # -- before the first record

    def open(self, is_over: Callable[[], bool]) -> bool:
        """Connect, find the topic's partitions, and, unless acks are 0 or 1, get a producer id; return false if
        `is_over` came true first. SendError if that takes longer than the time limit, or the client lacks the right to
        a producer id; kafka-python's error if it will not pass, UnknownTopicOrPartitionError after three seconds.
        """
        end = clock.monotonic() + self._settings.timeout
        if not self._connect(is_over, end):
            return False
        begin = clock.monotonic()
        while not self._leaders:
            answer = self._until(self._manager.send(self._metadata_request()), is_over, end)
            if answer is None:
                return False
            if not isinstance(answer, Exception):
                answer = self._learn(answer)
            unknown = isinstance(answer, errors.UnknownTopicOrPartitionError)
            if unknown and clock.monotonic() - begin > SETTLE_SECONDS:
                raise answer
            self._again(answer, end, unknown)
        while self._settings.acks == -1 and self._producer is None:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1, max_version=4
            )
            answer = self._until(self._manager.send(request), is_over, end)
            if answer is None:
                return False
            if not isinstance(answer, Exception):
                if not answer.error_code:
                    self._producer = answer.producer_id, answer.producer_epoch
                    break
                if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    raise SendError(_NO_PRODUCER_ID.format(self._topic))
                answer = errors.for_code(answer.error_code)()
            self._again(answer, end)
        self._why = self._said = None
        return True

    def _connect(self, is_over: Callable[[], bool], end: float) -> bool:
        """Connect to any of the servers; return false if `is_over` came true first. UnreachableError if none will ever
        let this client in, SendError if none answers before the monotonic time `end`.
        """
        begin = clock.monotonic()
        while True:
            failure = self._until(self._manager.call_soon(self._first_connection), is_over, end, begin)
            if failure is None:
                return False
            if isinstance(failure, Exception):
                if not isinstance(failure, (errors.KafkaError, OSError)):
                    raise failure
                if will_not_pass(failure):
                    raise refused(failure, self._manager.config, self._settings.timeout)
                self._why = _words(failure)
            connected = self._until(self._manager.bootstrap_async(timeout_ms=BOOTSTRAP_MS), is_over, end, begin)
            if connected is None:
                return False
            if not isinstance(connected, Exception):
                return True
            if not isinstance(connected, errors.KafkaTimeoutError):
                raise connected

    async def _first_connection(self) -> Exception | bool:
        return await connect(self._manager, BOOTSTRAP_MS) or True

    def _until(self, future: Any, is_over: Callable[[], bool], end: float, since: float | None = None) -> Any:
        """Drive the network until the future is done; return its value or its exception, or None if `is_over` came true
        first. SendError if the monotonic time `end` comes before. The wait began at `since`, or now.
        """
        begin = clock.monotonic() if since is None else since
        while not future.is_done:
            if is_over():
                return None
            self._net.poll(timeout_ms=STEP_MS)
            now = clock.monotonic()
            self._check(now, begin, end)
        return future.exception if future.exception is not None else future.value

    def _again(self, failure: Any, end: float, expected: bool = False) -> None:
        """Wait 0.1 s after a failure that may pass; raise one that will not, or SendError after the monotonic time
        `end`. Do nothing if there was no failure. One that is `expected` is not told to the user as a reason for
        waiting.
        """
        if not isinstance(failure, Exception):
            return
        if not isinstance(failure, errors.RetriableError):
            raise failure
        if not expected:
            self._why = _words(failure)
        now = clock.monotonic()
        self._check(now, end - self._settings.timeout, end)
        self._net.poll(timeout_ms=RETRY_SECONDS * 1000)

    # -- records

    @property
    def has_room(self) -> bool:
        """True if more records may be added now: the bounds on waiting bytes and unanswered requests are not
        reached.
        """
        return self.outbox.waiting_bytes < WAITING_BYTES and sum(self._under_way.values()) < IN_FLIGHT

    def add_values(self, values: Sequence[bytes | None], partition: int | None) -> None:
        """Add records that have a value and no key, to this partition or to the next one in turn."""
        self._add(self._next_turn() if partition is None else partition, rows_of_values(values))

    def add(self, records: Sequence[LineRecord]) -> None:
        """Add records: they are encoded as batches and wait to be sent. Those that name no partition and have no key go
        to the next one in turn, together.
        """
        for partition, some in placed(records, len(self.partitions), self._next_turn()).items():
            self._add(partition, rows_of(some))

    def _next_turn(self) -> int:
        return self.partitions[next(self._turn) % len(self.partitions)]

    def _add(self, partition: int, rows: RowsIn) -> None:
        now = clock.monotonic()
        for data, records in encoded(rows, self._settings.codec, clock.wall_ms()):
            self.outbox.add(partition, data, records, now)

    def step(self) -> None:
        """Send what may be sent, wait for 0.1 s at most for an answer or a call of `wake`, and take the answers.
        SendError if a record was refused for good, unless the sender is tolerant, or waits for longer than the time
        limit.
        """
        now = clock.monotonic()
        if self._stale and not self._asking and now >= self._ask_at:
            self._ask_leaders(now)
        by_leader: dict[int, list[int]] = {}
        for partition, leader in self._leaders.items():
            by_leader.setdefault(leader, []).append(partition)
        self._stale = self._stale or -1 in by_leader
        for leader, partitions in by_leader.items():
            while leader >= 0 and self._under_way.get(leader, 0) < IN_FLIGHT:
                if not self._send(leader, partitions, now):
                    break
        self._net.poll(timeout_ms=STEP_MS)
        now = clock.monotonic()
        oldest = self.outbox.oldest
        if self._failure is not None:
            raise SendError(self._failure)
        if oldest is None:
            self._why = self._said = None
        else:
            self._check(now, max(oldest, self._moved), oldest + self._settings.timeout)

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Call `step` until every record was answered, or `is_over` comes true. With acks of 0 no record is answered:
        then wait until the servers have read them all, and raise SendError if one does not say so. Errors of `step` are
        raised.
        """
        while not is_over() and self.outbox.oldest is not None:
            self.step()
        if not self._settings.acks:
            # No answer is asked for: a request behind the last record tells that the server has read them all.
            for leader in {leader for leader in self._leaders.values() if leader >= 0}:
                end = clock.monotonic() + self._settings.timeout
                answer = self._until(self._manager.send(self._metadata_request(), node_id=leader), is_over, end)
                if isinstance(answer, Exception):
                    raise SendError(f"the last records may be lost: {_words(answer)}")

    def _check(self, now: float, since: float, end: float) -> None:
        """Tell the user the reason for a wait that began at `since` if it is long, and again at times; raise SendError
        from `end` on. All are seconds of the monotonic clock.
        """
        if now < end and now - since < self._settings.say_after:
            return
        why = self._why or f"no answer from {', '.join(self._servers)}"
        if now >= end:
            raise SendError(f"{why}; given up after {self._settings.timeout:g} s")
        if self._said is not None:
            before, moment = self._said
            if now - moment < self._settings.say_after * (4 if before == why else 1):
                return
        self._said = why, now
        waiting = self.outbox.waiting
        count = f"{waiting:,} {'record waits' if waiting == 1 else 'records wait'}" if waiting else "not connected yet"
        self._say(f"{why}; {count}, for {self._settings.timeout:g} s at most (Ctrl-C ends)")

    # -- requests

    def _metadata_request(self) -> Any:
        return MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=self._topic)],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    def _learn(self, answer: Any) -> Exception | None:
        """Note the partitions' leaders in an answer to Metadata; return the topic's error if it has one."""
        self._manager.cluster.update_metadata(answer)
        (topic,) = answer.topics
        if topic.error_code:
            error: Exception = errors.for_code(topic.error_code)()
            return error
        leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
        self._leaders = dict(sorted(leaders.items()))
        self.partitions = list(self._leaders)
        return None

    def _ask_leaders(self, now: float) -> None:
        self._asking = True
        self._ask_at = now + RETRY_SECONDS

        def answered(answer: Any) -> None:
            self._asking = False
            failure = self._learn(answer)
            self._stale = failure is not None
            if failure is not None:
                self._why = _words(failure)

        def failed(error: Exception) -> None:
            self._asking = False
            self._blame(error)

        self._manager.send(self._metadata_request()).add_callback(answered).add_errback(failed)

    def _send(self, leader: int, partitions: Sequence[int], now: float) -> bool:
        """Send one Produce request with the batches that are due to a leader; return false if none is, or if the
        connection accepts no request now.
        """
        due = self.outbox.due(partitions, now, REQUEST_BYTES)
        if not due:
            return False
        topic_class = ProduceRequest.TopicProduceData
        parts = []
        for partition, batch in due.items():
            if self._producer is not None:
                assert batch.sequence is not None
                stamp_producer(batch.data, *self._producer, batch.sequence)
            parts.append(topic_class.PartitionProduceData(index=partition, records=bytes(batch.data)))
        request = ProduceRequest(
            transactional_id=None,
            acks=self._settings.acks,
            timeout_ms=int(min(30.0, self._settings.timeout) * 1000),
            topic_data=[topic_class(name=self._topic, partition_data=parts)],
            min_version=3,
            max_version=9,
        )
        self._under_way[leader] = self._under_way.get(leader, 0) + 1

        def answered(answer: Any) -> None:
            self._under_way[leader] -= 1
            try:
                self._take(due, answer)
            except Exception as error:  # kafka-python would go on in silence
                self._failure = self._failure or one_line(f"{type(error).__name__}: {error}; this is a bug of kop")

        def failed(error: Exception) -> None:
            self._under_way[leader] -= 1
            self._blame(error)
            for partition in due:
                self.outbox.failed(partition, clock.monotonic())

        try:
            future = self._manager.send(request, node_id=leader)
        except errors.KafkaError as error:  # an unknown broker
            failed(error)
            return False
        future.add_callback(answered).add_errback(failed)
        return future.exception is None

    def _take(self, due: Mapping[int, SentBatch], answer: Any) -> None:
        """Handle the answer to a Produce request, batch by batch: each is done, split, sent again or refused. With
        acks=0 the answer is None, and all are done.
        """
        if answer is None:
            self._moved = clock.monotonic()
            for partition, batch in due.items():
                self.outbox.done(partition, batch)
            return
        now = clock.monotonic()
        for part in answer.responses[0].partition_responses:
            partition, code = part.index, part.error_code
            batch = due[partition]
            kind = errors.for_code(code)
            late = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.outbox.is_behind_a_gap(partition, batch)
            if code in _DONE:
                self._moved = now
                self.outbox.done(partition, batch)
            elif code in _TOO_LARGE and batch.records > 1:
                self.outbox.split(partition, batch, now)
            elif late or issubclass(kind, errors.RetriableError):
                if not late:
                    self._why = reason(code, part.error_message)
                self._stale = self._stale or issubclass(kind, errors.InvalidMetadataError)
                self.outbox.failed(partition, now)
            else:
                self._refuse(partition, batch, reason(code, _first_message(part)), now)

    def _refuse(self, partition: int, batch: SentBatch, why: str, now: float) -> None:
        self.outbox.refused(partition, batch, now)
        if not self.tolerant:
            self._failure = self._failure or why
            return
        self._say(f"{why}; {batch.records:,} {'record was' if batch.records == 1 else 'records were'} not sent")

    def _blame(self, error: Exception) -> None:
        """Keep the error of a request that was not answered as the reason to tell the user, and ask for the leaders
        again.
        """
        self._stale = True
        if not isinstance(error, errors.NodeNotReadyError):  # the next attempt is not due yet, or the socket is full
            self._why = _words(error)


def _words(error: Exception) -> str:
    return explain(error) or one_line(repr(error))


def _first_message(part: Any) -> str | None:
    """Return the server's words on the first record that it refuses, or else on the batch."""
    of_records = (record.batch_index_error_message for record in part.record_errors or ())
    words: str | None = next(filter(None, of_records), part.error_message)
    return words
