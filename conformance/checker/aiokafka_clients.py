"""The clients of aiokafka: writers in one loop, readers and chains in another.

Owns: how they are driven, what they do after an error.
Must not know: what is broken meanwhile, and what is right.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from conformance.checker.history import (
    Commit,
    Instance,
    Place,
    Writer,
    name_of,
    record_of,
    source_of,
    value_of,
)
from conformance.checker.offsets import GroupOffsets
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
    shares,
)

_REQUEST_MS = 15_000
_LEAVE_SECONDS = 5.0
_BATCH = 40
_ERRORS = (KafkaError, OSError, TimeoutError, AssertionError, asyncio.CancelledError)
"""aiokafka lets cancellations of its own tasks out, too; nobody cancels ours."""
_Row = tuple[Place, int, tuple[str, int]]


class _Gone(Exception):
    """A producer that is of no more use; another one takes its place."""


def writing(work: Work) -> Iterator[Callable[[], None]]:
    """What the thread of writers does."""

    async def write() -> None:
        roles = work.writers("aiokafka")
        await _all((_transactional if r.promise == "transactional" else _plain)(work, r) for r in roles)

    yield lambda: asyncio.run(write())


def reading(work: Work) -> Iterator[Callable[[], None]]:
    """What the thread of consumers and chains does."""

    async def read() -> None:
        consumers = [_consume(work, role) for role in work.consumers("aiokafka")]
        copies = [_copy(work, role, number) for role in work.chains("aiokafka") for number in range(role.workers)]
        await _all([*consumers, *copies])

    yield lambda: asyncio.run(read())


async def _within(seconds: float, awaited: Coroutine[Any, Any, Any]) -> None:
    """Give it that time, and go on whatever becomes of it: for clients that are left."""
    task = asyncio.create_task(awaited)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        print(f"left: {error!r}", file=sys.stderr)


async def _all(roles: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Each to its end, whatever becomes of the others."""
    errors = await asyncio.gather(*roles, return_exceptions=True)
    for error in errors:
        if error is not None:
            raise error


# --- producers


class _Transactional:
    """A producer of a transactional id: the `number`th, which fences those before it. `start` initializes it."""

    def __init__(self, work: Work, name: str, number: int) -> None:
        self._work = work
        self._id = work.names.of(name)
        self._number = number
        self.name = f"{name}#{number}"
        self._records = 0
        self._transactions = 0
        self._ending: Ending | None = None
        self._answers: list[asyncio.Future[Any]] = []
        self._producer = AIOKafkaProducer(
            **work.aiokafka,
            transactional_id=self._id,
            transaction_timeout_ms=TRANSACTION_MS,
            request_timeout_ms=_REQUEST_MS,
            metadata_max_age_ms=5000,
            linger_ms=5,
        )

    async def start(self) -> None:
        begin = time.time()
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._producer.start()
        self._work.recorder.add(Writer(self.name, True))
        self._work.recorder.add(Instance(self._id, self._number, begin, time.time()))

    async def begin(self) -> None:
        self._transactions += 1
        self._answers = []
        await self._producer.begin_transaction()
        self._ending = Ending(self._work.recorder, f"{self.name}/{self._transactions}", self._id, self._number)

    async def send(self, draft: Draft, source: str = "") -> None:
        assert self._ending is not None
        number = self._records
        self._records += 1
        topic = self._work.names.of(draft.topic)
        self._work.recorder.sent(self.name, number, (topic, draft.partition), self._ending.name, source)
        value = value_of(self.name, number, draft.padding)
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await self._producer.send(topic, value, draft.key.encode(), draft.partition)
        answer.add_done_callback(partial(_delivered, self._work, self.name, number))
        self._answers.append(answer)

    async def offsets(self, group: str, offsets: dict[Place, int]) -> None:
        assert self._ending is not None
        self._ending.offsets(group, [(*place, offset) for place, offset in offsets.items()])
        asked = {TopicPartition(*place): offset for place, offset in offsets.items()}
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._producer.send_offsets_to_transaction(asked, group)

    async def wait(self, seconds: float) -> None:
        """Until all is acknowledged, then as long as told. The error of one that was not."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(*self._answers)  # it would commit without one that failed
        await asyncio.sleep(seconds)

    async def commit(self) -> None:
        """What the server may have done is not known where this fails."""
        await self._end("commit", self._producer.commit_transaction)

    async def abort(self) -> None:
        if self._ending is not None:
            await self._end("abort", self._producer.abort_transaction)

    async def _end(self, what: str, call: Callable[[], Awaitable[Any]]) -> None:
        assert self._ending is not None
        self._ending.ask(what)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await call()
        except _ERRORS as error:
            self._ending.answer(what, type(error).__name__)
            raise
        self._ending.answer(what)

    async def leave(self) -> None:
        """Go away with a transaction left open."""
        if self._ending is not None:
            self._ending.leave()
        await _within(_LEAVE_SECONDS, self._producer.stop())
        self._work.recorder.give_up(self.name)


def _delivered(work: Work, name: str, number: int, answer: asyncio.Future[Any]) -> None:
    if answer.cancelled():
        work.recorder.done(name, number, error="Cancelled")
    elif (error := answer.exception()) is not None:
        work.recorder.done(name, number, error=type(error).__name__)
    else:
        work.recorder.done(name, number, answer.result().offset)


class _Line:
    """The producers of one transactional id, one after the other."""

    def __init__(self, work: Work, name: str) -> None:
        self._work = work
        self._name = name
        self._number = 0
        self.current: _Transactional | None = None

    async def start(self) -> None:
        """Initialize another one, beside the current one. _Gone where the run is over."""
        while True:
            self._number += 1
            producer = _Transactional(self._work, self._name, self._number)
            try:
                await producer.start()
                self.current = producer
                return
            except _ERRORS as error:
                print(f"{producer.name}: {error!r}", file=sys.stderr)
                await producer.leave()
                if self._work.over:
                    raise _Gone from error
                await asyncio.sleep(0.2)

    async def renew(self) -> None:
        """Let the current one go away and initialize another one."""
        assert self.current is not None
        await self.current.leave()
        await self.start()

    async def transact(self, fill: Callable[[_Transactional], Awaitable[None]], finish: Finish, wait: float) -> bool:
        """One transaction; whether it was committed."""
        producer = self.current
        assert producer is not None
        try:
            await producer.begin()
            await fill(producer)
            await producer.wait(wait)
            if finish == "commit":
                await producer.commit()
                return True
            if finish == "abort":
                await producer.abort()
            elif finish == "abandon":
                await self.renew()
            else:
                await self._be_refused(producer)
        except _ERRORS as error:
            print(f"{producer.name}: {error!r}", file=sys.stderr)
            await self._recover(producer)
        return False

    async def _be_refused(self, zombie: _Transactional) -> None:
        await self.start()
        try:
            await zombie.commit()
        except _ERRORS:
            pass  # as it has to be; the history tells where it is not so
        await zombie.leave()

    async def _recover(self, producer: _Transactional) -> None:
        try:
            await producer.abort()
        except _ERRORS as error:
            print(f"{producer.name}: abort: {error!r}", file=sys.stderr)
            await self.renew()


async def _transactional(work: Work, role: WriterRole) -> None:
    line = _Line(work, role.name)
    try:
        await line.start()
        for deed in deeds(role, work.seed):
            if work.stop_writing.is_set():
                break

            async def fill(producer: _Transactional, drafts: Iterable[Draft] = deed.drafts) -> None:
                for draft in drafts:
                    await producer.send(draft)

            await line.transact(fill, deed.finish, deed.wait)
            await asyncio.sleep(deed.pause)
        assert line.current is not None
        await line.current.leave()
    except _Gone:
        pass


async def _plain(work: Work, role: WriterRole) -> None:
    """Idempotent or not."""
    name = f"{role.name}#1"
    work.recorder.add(Writer(name, role.promise == "idempotent"))
    producer = AIOKafkaProducer(
        **work.aiokafka,
        acks="all",
        enable_idempotence=role.promise == "idempotent",
        request_timeout_ms=int(RECORD_SECONDS * 1000),
        metadata_max_age_ms=5000,
        linger_ms=5,
    )
    if not await _started(work, producer):
        return
    number = 0
    for deed in deeds(role, work.seed):
        if work.stop_writing.is_set():
            break
        if work.recorder.waiting(name) > WAITING:
            await asyncio.sleep(deed.pause)
            continue
        for draft in deed.drafts:
            topic = work.names.of(draft.topic)
            work.recorder.sent(name, number, (topic, draft.partition))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    value = value_of(name, number, draft.padding)
                    answer = await producer.send(topic, value, draft.key.encode(), draft.partition)
                answer.add_done_callback(partial(_delivered, work, name, number))
            except _ERRORS as error:
                work.recorder.done(name, number, error=type(error).__name__)
            number += 1
        await asyncio.sleep(deed.pause)
    await _within(ANSWER_SECONDS, producer.stop())
    work.recorder.give_up(name)


async def _started(work: Work, client: AIOKafkaProducer | AIOKafkaConsumer) -> bool:
    """Whether it could be started before the run was over."""
    while not work.over:
        try:
            await client.start()
            return True
        except _ERRORS as error:
            print(f"start: {error!r}", file=sys.stderr)
            await asyncio.sleep(0.2)
    return False


# --- consumers


class _Member(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A consumer in a group. It does not tell where it begins: its sessions begin at the first record that comes.

    `highest`: what the members of the group have committed. None commits less, though it may have begun at the log's
    start (see GroupOffsets of aiokafka).
    """

    def __init__(self, work: Work, name: str, group: str, isolation: Any, highest: dict[Place, int]) -> None:
        self._highest = highest
        self._work = work
        self._group = group
        self._positions = Positions(work.recorder, name, isolation)
        self.at: dict[Place, int] = {}
        self.consumer = AIOKafkaConsumer(
            **work.aiokafka,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=f"read_{isolation}",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            request_timeout_ms=_REQUEST_MS,
            metadata_max_age_ms=5000,
            fetch_max_wait_ms=100,
        )

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.at = {}

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.begin({})

    def begin(self, positions: dict[Place, int]) -> None:
        self.at = {}
        self._positions.begin(positions)

    async def poll(self, most: int, seconds: float) -> list[_Row]:
        fetched = await self.consumer.getmany(timeout_ms=int(seconds * 1000), max_records=most)
        rows = [
            ((tp.topic, tp.partition), message.offset, record_of(message.value))
            for tp, messages in fetched.items()
            for message in messages
        ]
        moved = self._positions.given(rows)
        self.at |= {place: moved[place] for place, _, _ in rows}
        return rows

    async def commit(self) -> None:
        offsets = tuple((*place, at) for place, at in self.at.items() if at > self._highest.get(place, -1))
        if not offsets:
            return
        self._highest |= {(topic, partition): offset for topic, partition, offset in offsets}
        begin, error = time.time(), ""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.consumer.commit(
                    {TopicPartition(topic, partition): offset for topic, partition, offset in offsets}
                )
        except _ERRORS as failure:
            error = type(failure).__name__
        self._work.recorder.add(Commit(self._group, begin, time.time(), error, offsets))

    async def rewind(self, offsets: GroupOffsets, partitions: Iterable[TopicPartition]) -> bool:
        """Begin again at the committed offsets of partitions that it alone has; False where those were not told."""
        places = [(partition.topic, partition.partition) for partition in partitions]
        told = await asyncio.to_thread(offsets.committed, places)
        if told is None:
            return False
        starts = {place: max(0, offset) for place, offset in told.items()}
        for place, offset in starts.items():
            self.consumer.seek(TopicPartition(*place), offset)
        self.begin(starts)
        return True


async def _consume(work: Work, role: ConsumerRole) -> None:
    rng = random.Random(f"{work.seed} {role.name}")
    number = 0
    highest: dict[Place, int] = {}
    while not work.stop.is_set():
        number += 1
        member = _Member(work, f"{role.name}#{number}", work.names.of(role.group), role.isolation, highest)
        member.consumer.subscribe([work.names.of(topic) for topic in role.topics], listener=member)
        if await _started(work, member.consumer):
            until = time.monotonic() + rng.uniform(8, 20)
            while time.monotonic() < until and not work.stop.is_set():
                try:
                    if await member.poll(200, rng.uniform(0.1, 0.5)) and rng.random() < 0.5:
                        await member.commit()
                except _ERRORS as error:
                    print(f"{role.name}: {error!r}", file=sys.stderr)
                    break
        await _within(_LEAVE_SECONDS, member.consumer.stop())


async def _copy(work: Work, role: ChainRole, number: int) -> None:
    """Copy the partitions of this worker. Its producer is initialized before the committed offsets are asked for."""
    name = f"{role.name}-{number}"
    topic, group = work.names.of(role.source), work.names.of(role.name)
    numbers = shares(partitions_of(role.source), role.workers, number)
    partitions = [TopicPartition(topic, partition) for partition in numbers]
    line, member = _Line(work, name), _Member(work, name, group, "committed", {})
    offsets = GroupOffsets(work.librdkafka, group, work.recorder)
    finishes = chain_finishes(name, work.seed)
    try:
        await line.start()
        if not await _started(work, member.consumer):
            return
        member.consumer.assign(partitions)
        await _rewind(work, member, offsets, partitions)
        while not work.stop.is_set():
            rows = await member.poll(_BATCH, 0.3)
            if rows:
                fill = partial(
                    _fill, role=role, rows=rows, group=group, at={place: member.at[place] for place, _, _ in rows}
                )
                finish = "commit" if work.stop_writing.is_set() else next(finishes)
                if not await line.transact(fill, finish, 0.0):
                    await line.renew()  # the transaction may have been ended behind the answer: this waits for that
                    await _rewind(work, member, offsets, partitions)
        assert line.current is not None
        await line.current.leave()
    except _Gone:
        pass
    await asyncio.to_thread(offsets.close)
    await _within(_LEAVE_SECONDS, member.consumer.stop())


async def _fill(
    producer: _Transactional, *, role: ChainRole, rows: list[_Row], group: str, at: dict[Place, int]
) -> None:
    for place, offset, record in rows:
        draft = Draft(role.output, offset % partitions_of(role.output), name_of(record), "")
        await producer.send(draft, source_of(place, offset))
    await producer.offsets(group, at)


async def _rewind(work: Work, member: _Member, offsets: GroupOffsets, partitions: list[TopicPartition]) -> None:
    while not work.stop.is_set():
        if await member.rewind(offsets, partitions):
            return
        await asyncio.sleep(0.1)
