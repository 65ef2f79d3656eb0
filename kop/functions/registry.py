"""The topics that workers of functions share: their tail, requests to the leader, and the leader's transactions.

Owns: the four topics, what they say as of now (`View`), and when this worker leads. It leads if it holds the partition
of the group (`membership`); before it decides anything it has

1. called InitProducerId for the leader's transactional id: no transaction of an earlier leader can be committed from
   here on, and none is open;
2. read the topics to their end, so that it knows all that there will ever be but for its own;
3. read the committed offset of the requests, from which it takes them.

Whatever it decides is one transaction: definitions, assignments, start offsets, answers, and the offset of the
requests, as a member of its generation. If that cannot be committed, all that was decided is forgotten, and it begins
with 1 again if it holds the partition still: a leader that was fenced leaves the group first, since it cannot know.

Must not know: processes, REST, what requests do (`leader`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kop import clock
from kop.client.batches import NewRecord, StoredRecords, build
from kop.client.connection import TEMPORARY
from kop.client.errors import ClientError, FencedError, NotMemberError, NoTransactionsError
from kop.client.fixed_topics import ensure_topics
from kop.client.membership import Membership
from kop.client.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kop.client.read_client import OUT_OF_RANGE, FetchSettings, ReadClient
from kop.client.write_client import Identity, MemberIdentity, WriteClient
from kop.functions.definitions import (
    Assignment,
    DamagedRecordError,
    Definition,
    InstanceName,
    LeaderAnswer,
    Request,
    WorkerInfo,
    from_log,
    instance_key,
    instance_of,
    text_of,
    to_log,
)
from kop.functions.growth import OWN_PREFIX
from kop.functions.instance import ID_PREFIX
from kop.functions.instance import TRANSACTION_TIMEOUT_MS as INSTANCE_TIMEOUT_MS
from kop.functions.leader import KNOWN_REQUESTS, Effects, Leader, losers
from kop.functions.packages import Assembler, Package, chunks
from kop.functions.reading import READ_COMMITTED
from kop.functions.scheduler import Assignments, Scheduler, Wish, mistake, schedule
from kop.functions.spec import FunctionSpec, SpecError
from kop.functions.topics import HOME, TopicNames
from kop.records.batch import Codec, add_sequence

log = logging.getLogger(__name__)

REQUESTS: Final = "__kop_functions_requests"
DEFINITIONS: Final = "__kop_functions"
ASSIGNMENTS: Final = "__kop_functions_assignments"
PACKAGES: Final = "__kop_functions_packages"
COMPACTED: Final = (DEFINITIONS, ASSIGNMENTS, PACKAGES)
CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    REQUESTS: {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    **{topic: {"cleanup.policy": "compact"} for topic in COMPACTED},
}
GROUP: Final = "__kop.functions"
SESSION_SECONDS: Final = 6.0
"""As short as Kafka's default allows: so long nobody leads after a leader was killed."""
LEADER_ID: Final = "kop.functions.leader"
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""How long the leader's transaction may be open."""
PATIENCE_SECONDS: Final = 30.0
WAIT_MS: Final = 500
"""How long a Fetch of the tail waits at most: what comes is known at once, but for what another server leads."""
WINDOW: Final = 5 * KNOWN_REQUESTS
"""How many offsets before its end the topic of requests is read from: a request takes about three."""
BATCH_REQUESTS: Final = 100
LOOK_SECONDS: Final = 10.0
"""How often the leader looks for new partitions."""
SCHEDULE_SECONDS: Final = 60.0
SWEEP_MS: Final = 600_000
"""How old a package is at least that is deleted because no definition names it: its request may be under way."""
PAUSE_SECONDS: Final = 1.0
UPLOAD: Final = "path:"
"""What the key of an uploaded file begins with; its path follows, and the value names its package."""
WORKER: Final = "worker:"
"""What the key of a drained worker begins with."""

Record: TypeAlias = tuple[str, bytes, bytes | None]
"""Topic, key and value of a record that is written."""


@dataclass
class View:
    """What the topics say. The thread of the tail alone changes it; others may read single values."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    assignments: dict[InstanceName, Assignment] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    answers: dict[str, LeaderAnswer] = field(default_factory=dict)
    """The last ones, by their requests, in their order."""
    pending: dict[int, Request] = field(default_factory=dict)
    """Requests without an answer, by their offsets."""
    uploads: dict[str, str] = field(default_factory=dict)
    """Path to digest."""
    stored_at: dict[str, int] = field(default_factory=dict)
    """When the last part of each package was written, in milliseconds since the epoch."""


@dataclass
class Term:
    """What a leader knows that nobody else needs."""

    leader: Leader
    identity: Identity
    cursor: int
    """The offset behind the last request that was decided."""
    assignments: dict[InstanceName, Assignment]
    partitions: Mapping[str, Collection[TopicPartition]] = field(default_factory=dict)
    alive: Collection[str] = ()
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    look_at: float = 0.0
    schedule_at: float = 0.0


def membership_of(
    settings: Mapping[str, Any],
    me: WorkerInfo,
    changed: Callable[[], None] = lambda: None,
    session_seconds: float = SESSION_SECONDS,
) -> Membership:
    """Return a worker's membership in the group of all workers; `changed` is called if somebody came or went."""
    return Membership(settings, me.client_id(), GROUP, REQUESTS, changed, session_seconds)


class Registry:
    """The topics, for one worker. `settings` are kafka-python's.

    `packages` is where packages are kept; `membership` (`membership_of`) is begun and ended here. `changed` is called
    when anything changed, `answered` for each answer; both on the thread of the tail.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        me: WorkerInfo,
        packages: Assembler,
        membership: Membership,
        *,
        changed: Callable[[], None] = lambda: None,
        answered: Callable[[LeaderAnswer], None] = lambda answer: None,
        topic_names: TopicNames = HOME,
        scheduler: Scheduler = schedule,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.view = View()
        self.packages = packages
        self.failure: str | None = None
        """Why the topics cannot be read at the moment."""
        self._settings = dict(settings)
        self._me = me
        self._changed = changed
        self._answered = answered
        self._topic_names = topic_names
        self._scheduler = scheduler
        self._patience = patience
        self._membership = membership
        self._writing = threading.Lock()
        self._writer: WriteClient | None = None
        self._ready = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kop-functions-tail", daemon=True)
        # of the thread of the tail
        self._reader: ReadClient | None = None
        self._leading: WriteClient | None = None
        self._positions: Offsets = {}
        self._requests_from = 0
        """The first offset of the requests that was read."""
        self._term: Term | None = None
        self._refused: MemberIdentity | None = None
        """As which member this worker could not commit: the group has another generation by now."""

    # -- for any thread

    def start(self) -> None:
        """Make the topics, or check them, and begin. Returns once all is known; ClientError if that cannot be."""
        writer = self._writer = WriteClient(self._settings, self._patience)
        try:
            writer.init_producer(f"{ID_PREFIX}.workers/{self._me.worker_id}", TRANSACTION_TIMEOUT_MS)
        except NoTransactionsError as error:
            raise ClientError(
                "workers need transactions: over Pulsar set transactionCoordinatorEnabled=true on its brokers; "
                f"elsewhere let this user Write on transactional ids that begin with {ID_PREFIX} ({error})"
            ) from None
        ensure_topics(self._settings, CONFIGS)
        self._membership.start()
        self._thread.start()
        while not self._ready.wait(0.05):
            if self.failure is not None:
                raise ClientError(self.failure)

    def close(self) -> None:
        """Leave the group, and end."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            self._membership.close()
        if self._writer is not None:
            self._writer.close()

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return the workers that live, and which of them leads, as of a second ago."""
        by_id: dict[str, WorkerInfo] = {}
        for peer in self._membership.peers():
            worker = WorkerInfo.of_client_id(peer.client_id, is_leader=peer.holds)
            if worker is not None and (peer.holds or worker.worker_id not in by_id):
                by_id[worker.worker_id] = worker
        return tuple(by_id.values())

    def is_second(self) -> bool:
        """Return if another worker has the same id, and its address goes before that of this one."""
        mine = self._me.client_id()
        others = [peer.client_id for peer in self._membership.peers() if peer.client_id < mine]
        return any(other.startswith(f"{self._me.worker_id}@") for other in others)

    @property
    def leads(self) -> bool:
        """True if this worker leads."""
        return self._term is not None

    def write(self, records: Sequence[Record]) -> None:
        """Write records of requests or packages; returns once they are durable."""
        with self._writing:
            assert self._writer is not None
            _produce(self._writer, self._writer.init_producer(None, -1), records, {})

    def send(self, request: Request) -> None:
        """Write a request. Its answer comes to `answered`."""
        self.write([(REQUESTS, request.fqfn.encode(), to_log(request))])

    def upload(self, package: Package, path: str | None = None) -> None:
        """Write a package, under the name of a path if that is given."""
        named = [] if path is None else [(PACKAGES, f"{UPLOAD}{path}".encode(), package.digest.encode())]
        self.write([(PACKAGES, key, value) for key, value in chunks(package)] + named)

    def make_topics(self, spec: FunctionSpec) -> list[str]:
        """Make the topics of a function that are not there, with the servers' defaults; the names of those."""
        names = [topic for topic, given in spec.inputs.items() if not given.is_regex]
        with self._writing:
            assert self._writer is not None
            return [topic for topic in filter(None, [*names, spec.output]) if self._writer.make_topic(topic)]

    def history(self, fqfn: str) -> list[tuple[Request, LeaderAnswer | None]]:
        """Return all requests for a function, the oldest first, with their answers."""
        reader = ReadClient(self._settings, int(self._patience * 1000))
        requests: dict[str, Request] = {}
        answers: dict[str, LeaderAnswer] = {}
        try:
            place = REQUESTS, 0
            position = reader.list_offsets({place: EARLIEST}, READ_COMMITTED)[place]
            end = reader.list_offsets({place: LATEST}, READ_COMMITTED)[place]
            while position < end:
                stored = StoredRecords(reader.fetch(place, None, position, _FETCH), place, position)
                for records in stored:
                    for _, _, key, value, _ in records:
                        if key == fqfn.encode():
                            with suppress(DamagedRecordError):
                                said = from_log(value)
                                if isinstance(said, Request):
                                    requests.setdefault(said.id, said)
                                else:
                                    answers.setdefault(said.request, said)
                position = stored.next_offset
        finally:
            reader.close()
        return [(request, answers.get(name)) for name, request in requests.items()]

    # -- the topics

    # -- the tail

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    self._open()
                    while not self._over.is_set():
                        self._step(WAIT_MS)
                        self._lead()
                except Exception as error:
                    if str(error) != self.failure:
                        log.warning("the topics of functions cannot be followed: %s", str(error) or repr(error))
                    self.failure = str(error) or repr(error)
                    self._over.wait(PAUSE_SECONDS)
                finally:
                    self._close_clients()
        finally:
            self._term = None

    def _close_clients(self) -> None:
        self._term = None
        for client in (self._reader, self._leading):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._reader = self._leading = None

    def _open(self) -> None:
        """Begin to follow the topics, or go on."""
        reader = self._reader = ReadClient(self._settings, int(self._patience * 1000))
        if not self._positions:
            first = reader.list_offsets({(topic, 0): EARLIEST for topic in CONFIGS}, READ_COMMITTED)
            last = reader.list_offsets({(REQUESTS, 0): LATEST}, READ_COMMITTED)[REQUESTS, 0]
            self._requests_from = max(first[REQUESTS, 0], last - WINDOW)
            self._positions = first | {(REQUESTS, 0): self._requests_from}
        self._read_to_end()
        self.failure = None
        self._ready.set()

    def _read_to_end(self, topics: Collection[str] = tuple(CONFIGS)) -> None:
        assert self._reader is not None
        ends = self._reader.list_offsets({(topic, 0): LATEST for topic in topics}, READ_COMMITTED)
        while any(self._positions[place] < end for place, end in ends.items()):
            self._step(0)

    def _step(self, wait_ms: int) -> None:
        """Take what the topics have next; waits for it."""
        assert self._reader is not None
        fetch = FetchSettings(isolation=READ_COMMITTED, wait_ms=wait_ms)
        changed = False
        for place, answer in self._reader.fetch_many(dict(self._positions), fetch).items():
            if isinstance(answer, OUT_OF_RANGE):
                log.warning("the topic %s was made again: it is read from its beginning", place[0])
                self._positions |= self._reader.list_offsets({place: EARLIEST}, READ_COMMITTED)
                continue
            if isinstance(answer, TEMPORARY):
                continue
            if isinstance(answer, Exception):
                raise answer
            stored = StoredRecords(answer, place, self._positions[place])
            for records in stored:
                for offset, at_ms, key, value, _ in records:
                    changed = True
                    try:
                        self._take(place[0], offset, at_ms, key, value)
                    except DamagedRecordError as error:
                        log.warning("the record at offset %d of %s is left out: %s", offset, place[0], error)
            self._positions[place] = stored.next_offset
        if changed:
            self._changed()

    def _take(self, topic: str, offset: int, at_ms: int, key: bytes | None, value: bytes | None) -> None:
        view = self.view
        name = text_of(key)
        if topic == REQUESTS:
            self._take_log(offset, from_log(value))
        elif topic == PACKAGES:
            if name.startswith(UPLOAD):
                path = name.removeprefix(UPLOAD)
                if value is None:
                    view.uploads.pop(path, None)
                else:
                    view.uploads[path] = text_of(value)
            else:
                self.packages.add(name.encode(), value)
                digest = name.partition("/")[0]
                view.stored_at[digest] = at_ms
                if value is None and not self.packages.keys(digest):
                    del view.stored_at[digest]
        elif topic == DEFINITIONS:
            view.definitions.pop(name, None)  # a damaged one does not leave the one before it
            if value is not None:
                view.definitions[name] = _definition(name, value)
        elif name.startswith(WORKER):
            (view.drained.discard if value is None else view.drained.add)(name.removeprefix(WORKER))
        else:
            instance = instance_of(key)
            view.assignments.pop(instance, None)
            if value is not None:
                view.assignments[instance] = Assignment.from_json(value)

    def _take_log(self, offset: int, said: Request | LeaderAnswer) -> None:
        view = self.view
        if isinstance(said, Request):
            view.pending[offset] = said
            return
        for asked in [o for o, request in view.pending.items() if request.id == said.request]:
            del view.pending[asked]
        if said.request not in view.answers:
            view.answers[said.request] = said
            if len(view.answers) > KNOWN_REQUESTS:
                del view.answers[next(iter(view.answers))]
        self._answered(said)

    # -- the leader

    def _lead(self) -> None:
        """Do what a leader has to, if this worker is one."""
        holding = self._membership.holding()
        if holding is None or holding == self._refused:
            self._term = None
            return
        try:
            if self._term is None:
                self._term = self._take_over(holding)
            if self._term is not None:
                self._decide(self._term, holding)
        except FencedError as error:
            log.warning("another worker leads by now, and this one joins again: %s", error.args[0])
            self._term = None
            self._membership.rejoin()
        except NotMemberError as error:
            log.info("the group of workers has another generation by now: %s", error)
            self._refused = holding
            self._abort()
        except Exception as error:
            log.warning("what was decided is forgotten, and decided again: %s", str(error) or repr(error))
            self._abort()
            self._over.wait(PAUSE_SECONDS)

    def _abort(self) -> None:
        """Forget the term, and let nobody wait for the end of its transaction."""
        term, self._term = self._term, None
        if term is not None and self._leading is not None:
            with suppress(Exception):
                self._leading.end_transaction(term.identity, commit=False)

    def _take_over(self, holding: MemberIdentity) -> Term | None:
        if self._leading is None:
            self._leading = WriteClient(self._settings, self._patience)
        began = clock.monotonic()
        identity = self._leading.init_producer(LEADER_ID, TRANSACTION_TIMEOUT_MS)
        self._read_to_end()
        place = REQUESTS, 0
        committed, _ = self._leading.committed(GROUP, [place]).get(place, (0, ""))
        if committed < self._requests_from:
            self._positions[place] = self._requests_from = committed
            self._read_to_end([REQUESTS])
        if self._membership.holding() != holding:
            return None
        log.info(
            "%s leads the workers: %d functions, %d requests wait; this took %.0f ms",
            self._me.worker_id, len(self.view.definitions), len(self.view.pending), (clock.monotonic() - began) * 1000,
        )  # fmt: skip
        view = self.view
        leader = Leader(view.definitions, view.answers.values(), view.drained, self._topic_names)
        return Term(leader, identity, committed, dict(view.assignments))

    def _decide(self, term: Term, holding: MemberIdentity) -> None:
        """Take requests, and schedule if anything is another than before."""
        alive = {worker.worker_id for worker in self.workers()}
        if self._me.worker_id not in alive:
            return  # who is there was not asked yet
        now = clock.monotonic()
        due = sorted((offset, request) for offset, request in self.view.pending.items() if offset >= term.cursor)
        due = due[:BATCH_REQUESTS]
        if any(request.package for _, request in due):
            self._read_to_end([PACKAGES])  # it may have come since, and it may be gone since
        effects = [
            term.leader.take(offset, request, is_whole=self.packages.is_whole, workers=alive) for offset, request in due
        ]
        anew = any(effect.schedules for effect in effects) or alive != term.alive or now >= term.schedule_at
        partitions = term.partitions
        if anew or now >= term.look_at:
            partitions = self._partitions(term.leader.definitions)
            term.look_at = now + LOOK_SECONDS
            anew = anew or partitions != term.partitions
        if not anew and not effects:
            return
        gone = term.leader.gone(alive)
        then: dict[InstanceName, Assignment] = dict(term.assignments)
        wishes: dict[str, Wish] | None = None
        if anew:
            wishes = term.leader.wishes(partitions)
            then = dict(self._schedule(wishes, term.assignments, term.leader.workers(alive)))
        cursor = due[-1][0] + 1 if due else term.cursor
        self._commit(term, holding, dict(due), effects, then, wishes, gone, cursor)
        term.cursor, term.assignments, term.partitions = cursor, then, partitions
        if anew:
            term.alive, term.schedule_at = alive, now + SCHEDULE_SECONDS
        self._clean(effects)

    def _partitions(self, definitions: Mapping[str, Definition]) -> dict[str, Collection[TopicPartition]]:
        """Return the partitions of each function's inputs, of those topics that there are."""
        assert self._reader is not None
        specs = {fqfn: definition.spec for fqfn, definition in definitions.items()}
        inputs = [given for spec in specs.values() for given in spec.inputs.items()]
        patterns = any(given.is_regex for _, given in inputs)
        topics = self._reader.topics(None if patterns else {topic for topic, _ in inputs})
        return {
            fqfn: tuple(
                (topic, partition)
                for topic, there in sorted(topics.items())
                if reads(spec, topic, internal=there.internal)
                for partition in sorted(there.leaders)
            )
            for fqfn, spec in specs.items()
        }

    def _schedule(self, wishes: Mapping[str, Wish], current: Assignments, workers: Collection[str]) -> Assignments:
        if self._scheduler is not schedule:
            try:
                then = dict(self._scheduler(wishes, current, workers))
                wrong = mistake(then, wishes, workers)
            except Exception as error:
                wrong = repr(error)
            if wrong is None:
                return then
            log.error("the scheduler that was named is not used this time: %s", wrong)
        return schedule(wishes, current, workers)

    def _commit(
        self,
        term: Term,
        holding: MemberIdentity,
        requests: Mapping[int, Request],
        effects: Sequence[Effects],
        then: Mapping[InstanceName, Assignment],
        wishes: Mapping[str, Wish] | None,
        gone: Collection[str],
        cursor: int,
    ) -> None:
        """Write all that was decided in one transaction."""
        assert self._leading is not None
        records: list[Record] = []
        fqfns = {request.id: request.fqfn for request in requests.values()}
        named = {definition.package for definition in term.leader.definitions.values()}
        for effect in effects:
            records += [
                (DEFINITIONS, fqfn.encode(), None if made is None else made.to_json())
                for fqfn, made in effect.definitions.items()
            ]
            records += [(PACKAGES, key, None) for digest in set(effect.packages) - named for key in self._keys(digest)]
            records += [
                (ASSIGNMENTS, f"{WORKER}{worker}".encode(), b"{}" if drained else None)
                for worker, drained in effect.drained.items()
            ]
            records.append((REQUESTS, fqfns[effect.answer.request].encode(), to_log(effect.answer)))
        records += [(ASSIGNMENTS, f"{WORKER}{worker}".encode(), None) for worker in gone]
        records += list(_changes(term.assignments, then))
        if wishes is not None:
            records += [(PACKAGES, key, None) for digest in self._orphans() - named for key in self._keys(digest)]
        starts = self._starts(term, effects, wishes or {})
        if not records and not starts:
            return
        if records:
            self._leading.add_partitions(term.identity, sorted({(topic, 0) for topic, _, _ in records}))
            _produce(self._leading, term.identity, records, term.sequences)
        for group, offsets in starts.items():
            self._leading.commit_in_transaction(term.identity, group, offsets)
        # Fenced once the transaction is open: a fenced instance stays down for as long as that can last, so either the
        # new assignment is committed before it runs again, or the old one stands.
        for fqfn, number in losers(term.assignments, then):
            self._leading.init_producer(f"{ID_PREFIX}/{fqfn}/{number}", INSTANCE_TIMEOUT_MS)
        self._leading.commit_in_transaction(term.identity, GROUP, {(REQUESTS, 0): cursor}, member=holding)
        self._leading.end_transaction(term.identity)

    def _keys(self, digest: str) -> list[bytes]:
        """Return the keys of a package that no definition names; none if an uploaded file is it."""
        return [] if digest in self.view.uploads.values() else self.packages.keys(digest)

    def _orphans(self) -> set[str]:
        """Return packages that are old: if nobody names one, its request was lost, or never came."""
        old = clock.wall_ms() - SWEEP_MS
        return {digest for digest, at_ms in self.view.stored_at.items() if at_ms < old}

    def _starts(
        self, term: Term, effects: Sequence[Effects], wishes: Mapping[str, Wish]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Return the offsets that groups begin at in partitions that they have none of.

        What is there when a definition names it begins where the definition says; what comes later at its first record.
        """
        assert self._reader is not None
        assert self._leading is not None
        begins = {fqfn: before for effect in effects for fqfn, before in effect.begins.items()}
        held: dict[str, set[TopicPartition]] = {}
        for (fqfn, _), assignment in term.assignments.items():
            held.setdefault(fqfn, set()).update(assignment.partitions)
        starts: dict[str, dict[TopicPartition, int]] = {}
        for fqfn, wish in wishes.items():
            new = set(wish.partitions)
            if fqfn not in begins:
                new -= held.get(fqfn, set())
            if not new:
                continue
            spec, before = term.leader.definitions[fqfn].spec, begins.get(fqfn)
            new -= self._leading.committed(spec.group, new).keys() | starts.get(spec.group, {}).keys()
            places = {
                place: LATEST
                if fqfn in begins
                and spec.subscription_position == "Latest"
                and not (before is not None and reads(before, place[0]))
                else EARLIEST
                for place in new
            }
            if places:
                starts.setdefault(spec.group, {}).update(self._reader.list_offsets(places, READ_COMMITTED))
        return starts

    def _clean(self, effects: Sequence[Effects]) -> None:
        """Delete the groups of functions that were deleted."""
        assert self._leading is not None
        for group in [group for effect in effects for group in effect.cleaned]:
            try:
                self._leading.delete_group(group)
            except Exception as error:
                log.warning("delete the offsets of a function that is gone: kop groups delete %s (%r)", group, error)


def reads(spec: FunctionSpec, topic: str, *, internal: bool = False) -> bool:
    """Return if a function reads a topic. Patterns leave out its output, and topics that are the servers' own."""
    if topic in spec.inputs and not spec.inputs[topic].is_regex:
        return True
    if internal or topic.startswith(OWN_PREFIX) or topic in spec.own_topics:
        return False
    return any(given.is_regex and re.fullmatch(name, topic) for name, given in spec.inputs.items())


_FETCH: Final = FetchSettings(isolation=READ_COMMITTED)


def _definition(fqfn: str, value: bytes) -> Definition:
    definition = Definition.from_json(value)
    try:
        if definition.spec.fqfn != fqfn or definition.fqfn != fqfn:
            raise DamagedRecordError(f"the definition of {definition.fqfn} is under the key {fqfn}")
    except SpecError as error:
        raise DamagedRecordError(str(error)) from None
    return definition


def _changes(before: Assignments, then: Assignments) -> Iterator[Record]:
    """Yield the records that make these assignments of those before."""
    for name in before.keys() - then.keys():
        yield ASSIGNMENTS, instance_key(name), None
    for name, assignment in then.items():
        if before.get(name) != assignment:
            yield ASSIGNMENTS, instance_key(name), assignment.to_json()


def _produce(
    client: WriteClient, producer: Identity, records: Sequence[Record], sequences: dict[TopicPartition, int]
) -> None:
    """Write records in their order, topic by topic; `sequences` are the producer's, and go on."""
    by_topic: dict[str, list[NewRecord]] = {}
    for topic, key, value in records:
        by_topic.setdefault(topic, []).append((key, value, (), None))
    for topic, rows in by_topic.items():
        place = topic, 0
        for batch, count in build(rows, producer, sequences.get(place, 0), now=clock.wall_ms(), codec=Codec.NONE):
            client.produce(producer, {place: batch})
            sequences[place] = add_sequence(sequences.get(place, 0), count)
