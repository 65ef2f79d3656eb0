"""The clients of confluent-kafka (librdkafka), each in a thread of its own.

Owns: how they are driven, what they do after an error.
Must not know: what is broken meanwhile, and what is right.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from conformance.checker.history import (
    NOT_SENT,
    Commit,
    Committed,
    Instance,
    Place,
    Record,
    Writer,
    name_of,
    record_of,
    source_of,
    value_of,
)
from conformance.checker.recorder import Ending, Positions
from conformance.checker.work import ANSWER_SECONDS, RECORD_SECONDS, WAITING, Work
from conformance.checker.workload import (
    TRANSACTION_MS,
    ChainRole,
    ConsumerRole,
    Draft,
    Finish,
    WriterRole,
    chain_finishes,
    deeds,
    partitions_of,
)

_CALL_SECONDS = 5.0
"""For one call that may be repeated."""
_COMMON = {"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 500, "log_level": 0}
_HUNG_SECONDS = 10.0
_BATCH = 40


class _Hung(Exception):
    """A call of librdkafka does not return. It is left in its thread."""


class _Gone(Exception):
    """A producer that is of no more use; another one takes its place."""


def writing(work: Work) -> Iterator[Callable[[], None]]:
    """What the threads of writers do."""
    for role in work.writers("confluent"):
        yield partial(_transactional if role.promise == "transactional" else _plain, work, role)


def reading(work: Work) -> Iterator[Callable[[], None]]:
    """What the threads of consumers and chains do."""
    for role in work.consumers("confluent"):
        yield partial(_consume, work, role)
    for chain in work.chains("confluent"):
        for number in range(chain.workers):
            yield partial(_copy, work, chain, f"{chain.name}-{number}")


def _error(error: KafkaException) -> KafkaError:
    cause: KafkaError = error.args[0]
    return cause


# --- producers


class _Transactional:
    """A producer of a transactional id: the `number`th, which fences those before it."""

    def __init__(self, work: Work, transactional_id: str, name: str, number: int) -> None:
        self._work = work
        self._id = transactional_id
        self._number = number
        self.name = f"{name}#{number}"
        self._records = 0
        self._transactions = 0
        self._producer = Producer(
            _COMMON
            | {
                **work.librdkafka,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 5,
                "topic.metadata.refresh.interval.ms": 5000,
            }
        )
        begin = time.time()
        self._repeat(self._producer.init_transactions)
        work.recorder.add(Writer(self.name, True))
        work.recorder.add(Instance(transactional_id, number, begin, time.time()))
        self._ending: Ending | None = None

    def _repeat(self, call: Callable[[float], Any], seconds: float = ANSWER_SECONDS) -> None:
        """Until it is answered. KafkaException for an answer that is no."""
        end = time.monotonic() + seconds
        while True:
            try:
                call(_CALL_SECONDS)
                return
            except KafkaException as error:
                if not _error(error).retriable() or time.monotonic() > end:
                    raise
            time.sleep(0.05)  # some calls answer at once that they are under way

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        told = -1 if offset is None or error is not None else offset
        self._work.recorder.done(self.name, number, told, error.name() if error else "")

    def begin(self) -> None:
        self._transactions += 1
        self._producer.begin_transaction()
        self._ending = Ending(self._work.recorder, f"{self.name}/{self._transactions}", self._id, self._number)

    def send(self, draft: Draft, source: str = "") -> None:
        assert self._ending is not None
        number = self._records
        self._records += 1
        topic = self._work.names.of(draft.topic)
        self._work.recorder.sent(self.name, number, (topic, draft.partition), self._ending.name, source)
        try:
            self._producer.produce(
                topic,
                value_of(self.name, number, draft.padding),
                draft.key,
                draft.partition,
                on_delivery=partial(self._delivered, number),
            )
        except (KafkaException, BufferError):
            self._work.recorder.done(self.name, number, error=NOT_SENT)
            raise

    def offsets(self, group: str, offsets: dict[Place, int], metadata: object) -> None:
        assert self._ending is not None
        self._ending.offsets(group, [(*place, offset) for place, offset in offsets.items()])
        asked = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        _within(
            _HUNG_SECONDS,
            partial(self._repeat, lambda seconds: self._producer.send_offsets_to_transaction(asked, metadata, seconds)),
        )

    def wait(self, seconds: float) -> None:
        """Until all is acknowledged, then as long as told."""
        self._producer.flush(ANSWER_SECONDS)
        if seconds:
            self._producer.poll(seconds)

    def commit(self) -> bool:
        """Whether it was. What the server may have done all the same is not known where it was not."""
        assert self._ending is not None
        self._ending.ask("commit")
        try:
            self._repeat(self._producer.commit_transaction)
        except KafkaException as error:
            self._ending.answer("commit", _error(error).name())
            if not _error(error).txn_requires_abort():
                raise
            self.abort()
            return False
        self._ending.answer("commit")
        return True

    def abort(self) -> None:
        if self._ending is None:
            return
        self._ending.ask("abort")
        self._repeat(self._producer.abort_transaction)
        self._ending.answer("abort")

    def leave(self) -> None:
        """Go away as if the process had died."""
        if self._ending is not None:
            self._ending.leave()
        try:
            self._producer.purge(blocking=False)
            self._producer.poll(0)
        except KafkaException:
            pass  # a fatal error, which its callbacks were told
        self._work.recorder.give_up(self.name)


def _within(seconds: float, call: Callable[[], None]) -> None:
    """Call it, and raise what it raises. _Hung where it does not return in that time.

    send_offsets_to_transaction ignores its time limit, and may wait for ever once a connection was lost (librdkafka
    issue 5456), whatever the server is.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _Hung("send_offsets_to_transaction does not return")
    for error in errors:
        raise error


class _Line:
    """The producers of one transactional id, one after the other."""

    def __init__(self, work: Work, name: str) -> None:
        self._work = work
        self._name = name
        self._id = work.names.of(name)
        self._number = 0
        self.current = self._next()

    def _next(self) -> _Transactional:
        while True:
            self._number += 1
            try:
                return _Transactional(self._work, self._id, self._name, self._number)
            except KafkaException as error:
                print(f"{self._name}: {error}", file=sys.stderr)
                if self._work.over:
                    raise _Gone from error
                time.sleep(0.2)  # before the next try: the broker may be away

    def renew(self) -> None:
        """Let the current one go away and initialize another one."""
        self.current.leave()
        self.current = self._next()

    def transact(self, fill: Callable[[_Transactional], None], finish: Finish, wait: float) -> bool:
        """One transaction; whether it was committed by a producer that goes on."""
        producer = self.current
        try:
            producer.begin()
            fill(producer)
            producer.wait(wait)
            if finish == "commit":
                return producer.commit()
            if finish == "abort":
                producer.abort()
            elif finish == "abandon":
                self.renew()
            else:
                self._be_refused(producer)
        except (KafkaException, BufferError, _Hung) as error:
            self._recover(error)
        return False

    def _be_refused(self, zombie: _Transactional) -> None:
        self.current = self._next()
        try:
            zombie.commit()
        except KafkaException:
            pass  # as it has to be; the history tells where it is not so
        zombie.leave()

    def _recover(self, error: Exception) -> None:
        print(f"{self.current.name}: {error}", file=sys.stderr)
        if isinstance(error, KafkaException) and _error(error).txn_requires_abort():
            try:
                self.current.abort()
                return
            except KafkaException as another:
                print(f"{self.current.name}: abort: {another}", file=sys.stderr)
        self.renew()


def _transactional(work: Work, role: WriterRole) -> None:
    try:
        line = _Line(work, role.name)
        for deed in deeds(role, work.seed):
            if work.stop_writing.is_set():
                break

            def fill(producer: _Transactional, drafts: Iterable[Draft] = deed.drafts) -> None:
                for draft in drafts:
                    producer.send(draft)

            line.transact(fill, deed.finish, deed.wait)
            work.stop_writing.wait(deed.pause)
        line.current.leave()
    except _Gone:
        pass


def _plain(work: Work, role: WriterRole) -> None:
    """Idempotent or not; after a fatal error another producer begins."""
    number = 0
    supply = deeds(role, work.seed)
    while not work.stop_writing.is_set():
        number += 1
        _plain_until_fatal(work, role, f"{role.name}#{number}", supply)


def _plain_until_fatal(work: Work, role: WriterRole, name: str, supply: Iterator[Any]) -> None:
    fatal = False
    work.recorder.add(Writer(name, role.promise == "idempotent"))

    def delivered(number: int, error: KafkaError | None, message: Message) -> None:
        nonlocal fatal
        offset = message.offset()
        work.recorder.done(name, number, -1 if offset is None or error else offset, error.name() if error else "")
        fatal = fatal or (error is not None and error.fatal())

    producer = Producer(
        _COMMON
        | {
            **work.librdkafka,
            "enable.idempotence": role.promise == "idempotent",
            "acks": "all",
            "message.timeout.ms": int(RECORD_SECONDS * 1000),
            "linger.ms": 5,
        }
    )
    number = 0
    while not work.stop_writing.is_set() and not fatal:
        if len(producer) > WAITING:
            fatal = _poll(producer, 0.1) or fatal
            continue
        deed = next(supply)
        for draft in deed.drafts:
            topic = work.names.of(draft.topic)
            work.recorder.sent(name, number, (topic, draft.partition))
            try:
                producer.produce(
                    topic,
                    value_of(name, number, draft.padding),
                    draft.key,
                    draft.partition,
                    on_delivery=partial(delivered, number),
                )
            except (KafkaException, BufferError) as error:
                work.recorder.done(name, number, error=NOT_SENT)
                fatal = fatal or (isinstance(error, KafkaException) and _error(error).fatal())
            number += 1
        fatal = _poll(producer, deed.pause) or fatal
    end = time.monotonic() + (_CALL_SECONDS if fatal else ANSWER_SECONDS)
    while len(producer) and time.monotonic() < end:
        _poll(producer, 0.1)
    work.recorder.give_up(name)


def _poll(producer: Producer, seconds: float) -> bool:
    """Let callbacks run for that time; whether a fatal error was raised."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            producer.poll(left)
        except KafkaException as error:
            if _error(error).fatal():
                return True
    return False


# --- consumers


class GroupMember:
    """A consumer in a group, whose sessions begin where the group's committed offsets are."""

    def __init__(self, work: Work, name: str, group: str, isolation: Any, topics: Iterable[str]) -> None:
        self._work = work
        self._group = group
        self._isolation = isolation
        self._positions = Positions(work.recorder, name, isolation)
        self.at: dict[Place, int] = {}
        """The positions of this session, of what has come in it."""
        self.assigned = 0
        """How often partitions were given or taken."""
        self.consumer = Consumer(
            _COMMON
            | {
                **work.librdkafka,
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": f"read_{isolation}",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
            }
        )
        self.consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1
        self._assign(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1
        self.at = {}

    def _assign(self, partitions: list[TopicPartition]) -> None:
        committed = self.committed(partitions)
        if committed is None:  # librdkafka asks again by itself
            self._positions.begin({})
            self.consumer.assign(partitions)
            self.at = {}
        else:
            self._begin_at(committed)

    def _begin_at(self, committed: list[tuple[str, int, int]]) -> None:
        starts = [TopicPartition(topic, partition, max(0, offset)) for topic, partition, offset in committed]
        self._positions.begin({(start.topic, start.partition): start.offset for start in starts})
        self.consumer.assign(starts)
        self.at = {}

    def rewind(self) -> bool:
        """Begin again at the committed offsets; False where they were not told.

        What is assigned names the offsets at which it was assigned, and librdkafka would begin there.
        """
        committed = self.committed(self.consumer.assignment())
        if committed is None:
            return False
        self._begin_at(committed)
        return True

    def committed(self, partitions: list[TopicPartition]) -> list[tuple[str, int, int]] | None:
        """The group's offsets, -1 for none; None where there was no answer."""
        if not partitions:
            return []
        begin = time.time()
        try:
            positions = self.consumer.committed(partitions, timeout=10)
        except KafkaException as error:
            print(f"{self._group}: committed: {error}", file=sys.stderr)
            return None
        if any(position.error is not None for position in positions):
            return None
        offsets = [(position.topic, position.partition, max(-1, position.offset)) for position in positions]
        stable = self._isolation == "committed"
        self._work.recorder.add(Committed(self._group, stable, begin, time.time(), tuple(offsets)))
        return offsets

    def poll(self, most: int, seconds: float) -> list[tuple[Place, int, Record]]:
        """What comes within that time, of one assignment."""
        rows: list[tuple[Place, int, Record]] = []
        end = time.monotonic() + seconds
        while len(rows) < most and (left := end - time.monotonic()) > 0:
            before = self.assigned
            message = self.consumer.poll(left)
            if self.assigned != before:
                rows.clear()  # they will be given again
            if message is not None and message.error() is None:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                rows.append(((topic, partition), offset, record_of(message.value())))
        moved = self._positions.given(rows)
        self.at |= {place: moved[place] for place, _, _ in rows}
        return rows

    def commit(self) -> None:
        offsets = tuple((*place, offset) for place, offset in self.at.items())
        begin, error = time.time(), ""
        try:
            told = self.consumer.commit(offsets=[TopicPartition(*offset) for offset in offsets], asynchronous=False)
            error = next((position.error.name() for position in told or () if position.error is not None), "")
        except KafkaException as failure:
            error = _error(failure).name()
        self._work.recorder.add(Commit(self._group, begin, time.time(), error, offsets))


def _consume(work: Work, role: ConsumerRole) -> None:
    rng = random.Random(f"{work.seed} {role.name}")
    number = 0
    while not work.stop.is_set():
        number += 1
        topics = [work.names.of(topic) for topic in role.topics]
        member = GroupMember(work, f"{role.name}#{number}", work.names.of(role.group), role.isolation, topics)
        until = time.monotonic() + rng.uniform(6, 20)
        while time.monotonic() < until and not work.stop.is_set():
            if member.poll(200, rng.uniform(0.1, 0.5)) and rng.random() < 0.5:
                member.commit()
        member.consumer.close()


def _copy(work: Work, role: ChainRole, name: str) -> None:
    """Copy what comes, in transactions with the offsets; after each that was not committed, again from those."""
    try:
        line = _Line(work, name)
        topic = work.names.of(role.source)
        group = work.names.of(role.name)
        member = GroupMember(work, name, group, "committed", [topic])
        finishes = chain_finishes(name, work.seed)
        while not work.stop.is_set():
            rows = member.poll(_BATCH, 0.3)
            if not rows:
                continue
            metadata = member.consumer.consumer_group_metadata()
            at = {place: member.at[place] for place, _, _ in rows}
            fill = partial(_fill, role=role, rows=rows, group=group, at=at, metadata=metadata)
            finish = "commit" if work.stop_writing.is_set() else next(finishes)
            if not line.transact(fill, finish, 0.0):
                _rewind(work, member)
        line.current.leave()
        member.consumer.close()
    except _Gone:
        pass


def _fill(
    producer: _Transactional,
    *,
    role: ChainRole,
    rows: list[tuple[Place, int, Record]],
    group: str,
    at: dict[Place, int],
    metadata: object,
) -> None:
    for place, offset, record in rows:
        draft = Draft(role.output, offset % partitions_of(role.output), name_of(record), "")
        producer.send(draft, source_of(place, offset))
    producer.offsets(group, at, metadata)


def _rewind(work: Work, member: GroupMember) -> None:
    while not work.stop.is_set() and not member.rewind():
        time.sleep(0.1)  # before the next try: the coordinator may be moving
