"""The worker that leads: it takes requests, deals instances, and commits what was decided.

Owns: when this worker leads. It does if it holds the partition of the group (`membership`); before it decides anything
it has

1. called InitProducerId for the leader's transactional id: no transaction of an earlier leader can be committed from
   here on, and none is open;
2. read the topics to their end, so that it knows all that there will ever be but for its own;
3. read the committed offset of the requests, from which it takes them.

Whatever it decides is one transaction: definitions, assignments, start offsets, answers, and the offset of the
requests, as a member of its generation. If that cannot be committed, all that was decided is forgotten, and it begins
with 1 again if it holds the partition still: a leader that was fenced leaves the group first, since it cannot know.

What the server refuses for one function holds nobody else up: its request is refused, and all is decided anew. If there
is no such request, the function keeps the partitions that it has for a while.

Must not know: processes, REST, what requests do (`leader`), how the topics are followed (`registry`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kop import clock
from kop.client.batches import NewRecord, build
from kop.client.errors import FencedError, NotMemberError, NoTransactionsError
from kop.client.membership import Membership
from kop.client.offsets import EARLIEST, LATEST, TopicPartition
from kop.client.read_client import ReadClient
from kop.client.write_client import Identity, MemberIdentity, WriteClient
from kop.functions.definitions import (
    Assignment,
    InstanceName,
    Request,
    WorkerInfo,
    instance_key,
    mesh_key,
    to_log,
)
from kop.functions.input_topics import partitions_of, reads, topics_of
from kop.functions.instance import ID_PREFIX
from kop.functions.instance import TRANSACTION_TIMEOUT_MS as INSTANCE_TIMEOUT_MS
from kop.functions.leader import Leader, losers
from kop.functions.metadata import (
    ASSIGNMENTS,
    CONFIGS,
    DEFINITIONS,
    PACKAGES,
    REQUESTS,
    WORKER,
    FunctionsMetadata,
    Record,
)
from kop.functions.reading import READ_COMMITTED
from kop.functions.refusals import RefusedFunctionError, concerning
from kop.functions.request_effects import Effects
from kop.functions.scheduler import Assignments, Scheduler, Wish, mistake, schedule
from kop.functions.spec import FunctionSpec
from kop.functions.topics import TopicNames
from kop.records.batch import Codec, add_sequence

log = logging.getLogger(__name__)

GROUP: Final = "__kop.functions"
LEADER_ID: Final = "kop.functions.leader"
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""The milliseconds for which the leader's transaction may be open."""
PATIENCE_SECONDS: Final = 10.0
"""The seconds that all wait at most for the needs of one function."""
BATCH_REQUESTS: Final = 100
LOOK_SECONDS: Final = 10.0
"""The seconds between two looks of the leader for new partitions."""
SCHEDULE_SECONDS: Final = 60.0
SWEEP_MS: Final = 600_000
"""The milliseconds for which a package is kept at least that no definition names: its request may be under way."""
PAUSE_SECONDS: Final = 1.0


@dataclass
class Term:
    """The data that a leader knows and nobody else needs."""

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


class Leading:
    """The part of a worker that leads if its turn has come. `settings` are kafka-python's.

    All but `leads`, `failure` and `hurry` is for the thread that follows the topics, which `metadata` tells of.
    `read_to_end` follows some of them to their ends, `read_requests` the requests from an offset on, if that was not
    done yet.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        worker_id: str,
        metadata: FunctionsMetadata,
        membership: Membership,
        *,
        members: Callable[[], Collection[WorkerInfo]],
        read_to_end: Callable[[Collection[str]], None],
        read_requests: Callable[[int], None],
        topic_names: TopicNames,
        scheduler: Scheduler,
        patience: float,
    ) -> None:
        self.failure: str | None = None
        """The reason that this worker, whose turn it is to lead, takes no requests now; None if there is none."""
        self._settings = dict(settings)
        self._worker_id = worker_id
        self._metadata = metadata
        self._membership = membership
        self._members = members
        self._read_to_end = read_to_end
        self._read_requests = read_requests
        self._topic_names = topic_names
        self._scheduler = scheduler
        self._patience = min(patience, PATIENCE_SECONDS)
        self._writer: WriteClient | None = None
        self._reader: ReadClient | None = None
        self._term: Term | None = None
        self._outdated: MemberIdentity | None = None
        """As which member this worker could not commit: the group has another generation by now."""
        self._refused: dict[str, tuple[int, str]] = {}
        """Requests that are refused when they are decided, and with which status and reason."""
        self._held: dict[str, float] = {}
        """Functions that keep their partitions, and until when."""
        self._pause_until = 0.0

    @property
    def leads(self) -> bool:
        """True if this worker leads."""
        return self._term is not None

    def close(self) -> None:
        """Lead no more, forget what was decided and not committed, and close the connections. A later `step` may lead
        anew.
        """
        self._term = None
        self._refused.clear()
        for client in (self._writer, self._reader):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._writer = self._reader = None

    def hurry(self, seconds: float) -> None:
        """Let requests to servers, those under way too, be tried again for so many seconds from now on at most."""
        for client in (self._writer, self._reader):
            if client is not None:
                client.hurry(seconds)

    def step(self) -> None:
        """Decide the requests that wait, if this worker leads; become the leader if it is its turn, and lead no more if
        it is not. If another worker leads by now, the group is joined again. Any other error is logged and kept as
        `failure`, and all that is not committed is decided anew after a second.
        """
        holding = self._membership.holding()
        if holding is None or holding == self._outdated:
            self._term = self.failure = None
            self._refused.clear()
            return
        if clock.monotonic() < self._pause_until:
            return
        try:
            if self._term is None:
                self._term = self._take_over(holding)
            if self._term is not None:
                self._decide(self._term, holding)
                self.failure = None
        except FencedError as error:
            log.warning("another worker leads by now, and this one joins again: %s", error.args[0])
            self._term = None
            self._membership.rejoin()
        except NotMemberError as error:
            log.info("the group of workers has another generation by now: %s", error)
            self._outdated = holding
            self._abort()
        except Exception as error:
            reason = str(error) or repr(error)
            if reason != self.failure:
                log.error("no request is taken, and it is tried again: %s", reason)
            self.failure = reason
            self._abort()
            self._pause_until = clock.monotonic() + PAUSE_SECONDS

    def _abort(self) -> None:
        """Forget the term of leading, and abort its transaction so that nobody waits for its end."""
        term, self._term = self._term, None
        if term is not None and self._writer is not None:
            with suppress(Exception):
                self._writer.end_transaction(term.identity, commit=False)

    def _take_over(self, holding: MemberIdentity) -> Term | None:
        if self._writer is None:
            self._writer = WriteClient(self._settings, self._patience)
        if self._reader is None:
            self._reader = ReadClient(self._settings, int(self._patience * 1000))
        began = clock.monotonic()
        identity = self._writer.init_producer(LEADER_ID, TRANSACTION_TIMEOUT_MS)
        self._read_to_end(CONFIGS)
        place = REQUESTS, 0
        committed, _ = self._writer.committed(GROUP, [place]).get(place, (0, ""))
        self._read_requests(committed)
        if self._membership.holding() != holding:
            return None
        metadata = self._metadata
        log.info(
            "%s leads the workers: %d functions, %d requests wait; this took %.0f ms",
            self._worker_id, len(metadata.definitions), len(metadata.pending), (clock.monotonic() - began) * 1000,
        )  # fmt: skip
        leader = Leader(
            metadata.definitions, metadata.answers.values(), metadata.drained, self._topic_names, metadata.meshes
        )
        return Term(leader, identity, committed, dict(metadata.assignments))

    # -- decisions

    def _decide(self, term: Term, holding: MemberIdentity) -> None:
        """Decide the next requests, 100 at most, commit what they change, and schedule anew if workers, partitions or
        definitions have changed.
        """
        members = self._members()
        if self._worker_id not in {member.worker_id for member in members}:
            return  # who is there was not asked yet
        alive = {member.worker_id for member in members if member.runs_instances}
        metadata = self._metadata
        due = sorted((offset, request) for offset, request in metadata.pending.items() if offset >= term.cursor)
        due = due[:BATCH_REQUESTS]
        if any(request.package or request.mesh is not None for _, request in due):
            self._read_to_end([PACKAGES])  # it may have come since, and it may be gone since
        effects = [
            term.leader.take(
                offset,
                request,
                is_whole=metadata.packages.is_whole,
                workers=alive,
                refused=self._refused.get(request.id),
            )
            for offset, request in due
        ]
        try:
            self._carry_out(term, holding, alive, due, effects)
        except RefusedFunctionError as refusal:
            self._take_refusal(refusal, [request for _, request in due], effects)
            self._abort()
            return
        for _, request in due:
            self._refused.pop(request.id, None)
        self._clean(effects)

    def _carry_out(
        self,
        term: Term,
        holding: MemberIdentity,
        alive: Collection[str],
        due: Sequence[tuple[int, Request]],
        effects: Sequence[Effects],
    ) -> None:
        now = clock.monotonic()
        begins = {fqfn: before for effect in effects for fqfn, before in effect.begins.items()}
        anew = any(effect.schedules for effect in effects) or alive != term.alive or now >= term.schedule_at
        partitions = term.partitions
        if anew or now >= term.look_at:
            held = {fqfn for fqfn, until in self._held.items() if now < until} - begins.keys()
            partitions = self._partitions(term, held)
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
        records = self._records(term, dict(due), effects, then, wishes, gone)
        starts = self._starts(term, begins, wishes or {})
        if records or starts:
            self._commit(term, holding, records, starts, then, cursor)
        term.cursor, term.assignments, term.partitions = cursor, then, partitions
        if anew:
            term.alive, term.schedule_at = alive, now + SCHEDULE_SECONDS

    def _take_refusal(
        self, refusal: RefusedFunctionError, requests: Sequence[Request], effects: Sequence[Effects]
    ) -> None:
        """Note that a request is to be refused: the last one that made the server refuse something for a function. If
        no request did, let that function keep its partitions for a minute; if it was left so already, raise the
        refusal.
        """
        fqfn = refusal.fqfn
        won = [
            (request, effect)
            for request, effect in zip(requests, effects, strict=True)
            if request.fqfn == fqfn and effect.answer.won
        ]
        is_held = clock.monotonic() < self._held.get(fqfn, 0.0)
        for request, effect in reversed(won):
            if is_held or fqfn in effect.begins:
                self._refused[request.id] = refusal.status, refusal.reason
                log.warning("refused to %s %s: %s", request.kind, fqfn, refusal.reason)
                return
        if is_held:
            raise refusal
        log.error("%s keeps the partitions that it has, and it is looked again later: %s", fqfn, refusal.reason)
        self._held[fqfn] = clock.monotonic() + SCHEDULE_SECONDS

    def _partitions(self, term: Term, held: Collection[str]) -> Mapping[str, Collection[TopicPartition]]:
        """Return the partitions of each function's inputs, of topics that exist. The functions in `held` keep those
        that they have. RefusedFunctionError if the server refuses a topic that a function reads.
        """
        assert self._reader is not None
        specs = {fqfn: definition.spec for fqfn, definition in term.leader.deployed.items() if fqfn not in held}
        refused: dict[str, Exception] = {}
        topics = topics_of(specs.values(), self._reader, refused)
        for fqfn, spec in specs.items():
            for topic, error in refused.items():
                if reads(spec, topic):
                    with concerning(fqfn):
                        raise error
        has = _partitions_now(term.assignments)
        kept = {fqfn: tuple(sorted(has.get(fqfn, ()))) for fqfn in held if fqfn in term.leader.definitions}
        return {fqfn: partitions_of(spec, topics) for fqfn, spec in specs.items()} | kept

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

    # -- what is written of them

    def _records(
        self,
        term: Term,
        requests: Mapping[int, Request],
        effects: Sequence[Effects],
        then: Mapping[InstanceName, Assignment],
        wishes: Mapping[str, Wish] | None,
        gone: Collection[str],
    ) -> list[Record]:
        """Return the records that say what was decided: definitions, packages that are deleted, drained workers,
        answers and changed assignments.
        """
        metadata = self._metadata
        records: list[Record] = []
        fqfns = {request.id: request.fqfn for request in requests.values()}
        in_use = {definition.package for definition in term.leader.definitions.values()}
        for effect in effects:
            records += [
                (DEFINITIONS, fqfn.encode(), None if made is None else made.to_json())
                for fqfn, made in effect.definitions.items()
            ]
            records += [
                (DEFINITIONS, mesh_key(name).encode(), None if mesh is None else mesh.to_json())
                for name, mesh in effect.meshes.items()
            ]
            unused = set(effect.packages) - in_use
            records += [(PACKAGES, key, None) for digest in unused for key in metadata.removable(digest)]
            records += [
                (ASSIGNMENTS, f"{WORKER}{worker}".encode(), b"{}" if drained else None)
                for worker, drained in effect.drained.items()
            ]
            records.append((REQUESTS, fqfns[effect.answer.request].encode(), to_log(effect.answer)))
        records += [(ASSIGNMENTS, f"{WORKER}{worker}".encode(), None) for worker in gone]
        records += list(_changes(term.assignments, then))
        if wishes is not None:
            unused = self._orphans() - in_use
            records += [(PACKAGES, key, None) for digest in unused for key in metadata.removable(digest)]
        return records

    def _orphans(self) -> set[str]:
        """Return the digests of packages that were stored more than ten minutes ago, used or not. If no definition
        names one, its request was lost, or never came.
        """
        old = clock.wall_ms() - SWEEP_MS
        return {digest for digest, at_ms in self._metadata.stored_at.items() if at_ms < old}

    def _starts(
        self, term: Term, begins: Mapping[str, FunctionSpec | None], wishes: Mapping[str, Wish]
    ) -> dict[str, Mapping[TopicPartition, int]]:
        """Return, by function, the offsets at which its group begins in the partitions that have none committed.

        A partition that exists when a definition begins to name it begins where the definition says; one that comes
        later, or that the definition named before, at its first record.
        """
        assert self._reader is not None
        assert self._writer is not None
        has = _partitions_now(term.assignments)
        begun: dict[str, set[TopicPartition]] = {}
        starts: dict[str, Mapping[TopicPartition, int]] = {}
        for fqfn, wish in wishes.items():
            new = set(wish.partitions)
            if fqfn not in begins:
                new -= has.get(fqfn, set())
            if not new:
                continue
            spec, before = term.leader.definitions[fqfn].spec, begins.get(fqfn)
            in_group = begun.setdefault(spec.group, set())
            with concerning(fqfn):
                new -= self._writer.committed(spec.group, new).keys() | in_group
                places = {
                    place: LATEST
                    if fqfn in begins
                    and spec.subscription_position == "Latest"
                    and not (before is not None and reads(before, place[0]))
                    else EARLIEST
                    for place in new
                }
                if places:
                    starts[fqfn] = self._reader.list_offsets(places, READ_COMMITTED)
                    in_group |= new
        return starts

    def _commit(
        self,
        term: Term,
        holding: MemberIdentity,
        records: Sequence[Record],
        starts: Mapping[str, Mapping[TopicPartition, int]],
        then: Mapping[InstanceName, Assignment],
        cursor: int,
    ) -> None:
        """Write all that was decided in one transaction, and commit it as the member `holding`. Instances that lose
        partitions are fenced just before the commit.
        """
        assert self._writer is not None
        if records:
            self._writer.add_partitions(term.identity, sorted({(topic, 0) for topic, _, _ in records}))
            produce(self._writer, term.identity, records, term.sequences)
        for fqfn, offsets in starts.items():
            with concerning(fqfn, in_transaction=True):
                self._writer.commit_in_transaction(term.identity, term.leader.definitions[fqfn].spec.group, offsets)
        # Fenced once the transaction is open: a fenced instance stays down for as long as that can last, so either the
        # new assignment is committed before it runs again, or the old one stands.
        for fqfn, number in losers(term.assignments, then):
            self._fence(fqfn, number)
        self._writer.commit_in_transaction(term.identity, GROUP, {(REQUESTS, 0): cursor}, member=holding)
        self._writer.end_transaction(term.identity)

    def _fence(self, fqfn: str, number: int) -> None:
        """Make an instance unable to commit in transactions from now on; if this worker may not, that is logged."""
        assert self._writer is not None
        name = f"{ID_PREFIX}/{fqfn}/{number}"
        with concerning(fqfn):
            try:
                self._writer.init_producer(name, INSTANCE_TIMEOUT_MS)
            except NoTransactionsError as error:  # the instance may not use it either
                log.warning("let the workers' user Write on the transactional id %s, to fence it: %s", name, error)

    def _clean(self, effects: Sequence[Effects]) -> None:
        """Delete the consumer groups that end with what was decided; one that cannot be deleted is logged."""
        assert self._writer is not None
        for group in [group for effect in effects for group in effect.cleaned]:
            try:
                self._writer.delete_group(group)
            except Exception as error:
                log.warning("delete the offsets of a function that is gone: kop groups delete %s (%r)", group, error)


def _partitions_now(assignments: Mapping[InstanceName, Assignment]) -> dict[str, set[TopicPartition]]:
    """Return the partitions that each function's instances have together."""
    has: dict[str, set[TopicPartition]] = {}
    for (fqfn, _), assignment in assignments.items():
        has.setdefault(fqfn, set()).update(assignment.partitions)
    return has


def _changes(before: Assignments, then: Assignments) -> Iterator[Record]:
    """Yield the records that turn the assignments `before` into `then`."""
    for name in before.keys() - then.keys():
        yield ASSIGNMENTS, instance_key(name), None
    for name, assignment in then.items():
        if before.get(name) != assignment:
            yield ASSIGNMENTS, instance_key(name), assignment.to_json()


def produce(
    client: WriteClient, producer: Identity, records: Sequence[Record], sequences: dict[TopicPartition, int]
) -> None:
    """Write records in their order, topic by topic, to partition 0 of each; returns once they are durable. `sequences`
    are the producer's next sequence numbers, which are moved on.
    """
    by_topic: dict[str, list[NewRecord]] = {}
    for topic, key, value in records:
        by_topic.setdefault(topic, []).append((key, value, (), None))
    for topic, rows in by_topic.items():
        place = topic, 0
        for batch, count in build(rows, producer, sequences.get(place, 0), now=clock.wall_ms(), codec=Codec.NONE):
            client.produce(producer, {place: batch})
            sequences[place] = add_sequence(sequences.get(place, 0), count)
