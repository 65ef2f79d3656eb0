"""The topics that workers of functions share: followed, asked, and written to by users' requests and packages.

Owns: the tail of the topics, which keeps what they say (`FunctionsMetadata`) as of now; the membership in
the group of workers.
Must not know: processes, REST, what is decided and how that is written (`leading`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from kop import clock
from kop.client.batches import StoredRecords
from kop.client.connection import TEMPORARY
from kop.client.errors import ClientError, NoTransactionsError, UnreachableError
from kop.client.fixed_topics import ensure_topics
from kop.client.membership import Membership
from kop.client.offsets import EARLIEST, LATEST, Offsets
from kop.client.read_client import OUT_OF_RANGE, FetchSettings, ReadClient
from kop.client.write_client import WriteClient
from kop.functions.definitions import DamagedRecordError, LeaderAnswer, Request, WorkerInfo, to_log
from kop.functions.history import read_history
from kop.functions.instance import ID_PREFIX
from kop.functions.leader import KNOWN_REQUESTS
from kop.functions.leading import GROUP, Leading, produce
from kop.functions.metadata import CONFIGS, PACKAGES, REQUESTS, UPLOAD, FunctionsMetadata, Record
from kop.functions.packages import Assembler, Package, chunks
from kop.functions.reading import READ_COMMITTED
from kop.functions.scheduler import Scheduler, schedule
from kop.functions.spec import FunctionSpec
from kop.functions.topics import HOME, TopicNames

log = logging.getLogger(__name__)

SESSION_SECONDS: Final = 6.0
"""The seconds that nobody leads after a leader was killed: as few as Kafka's default allows."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
PATIENCE_SECONDS: Final = 30.0
WAIT_MS: Final = 250
"""The milliseconds that a Fetch of the tail waits at most: what comes is known at once, but for what another server
leads."""
JOINING_WAIT_MS: Final = 20
"""The milliseconds that it waits while the group has not dealt who leads: it may be this worker, who then begins."""
WINDOW: Final = 5 * KNOWN_REQUESTS
"""The number of offsets of the topic of requests, before its end, that are read: a request takes about three."""
PAUSE_SECONDS: Final = 1.0
TAIL_SECONDS: Final = 3.0
"""The seconds for which a failure of the tail is taken to be a short one."""
TAIL_TIMEOUT_MS: Final = 10_000
"""The milliseconds that the tail waits for an answer."""
SILENT_SECONDS: Final = 5.0
"""The seconds that the tail may wait for an answer until `trouble` tells of it."""
CLOSE_SECONDS: Final = 5.0
HURRY_SECONDS: Final = 1.0
"""The seconds, from the call of `close` on, for which an operation that fails for a time is tried again."""
_FETCH: Final = FetchSettings(isolation=READ_COMMITTED)


def membership_of(
    settings: Mapping[str, Any],
    me: WorkerInfo,
    changed: Callable[[], None] = lambda: None,
    session_seconds: float = SESSION_SECONDS,
) -> Membership:
    """Return a worker's membership in the group of all workers, not begun yet; `changed` is called if somebody came or
    went. A member that is silent for `session_seconds` is gone.
    """
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
        self.metadata = FunctionsMetadata(packages)
        self.packages = packages
        self._settings = dict(settings)
        self._me = me
        self._changed = changed
        self._answered = answered
        self._patience = patience
        self._membership = membership
        self._failure: str | None = None
        """The reason that the topics cannot be read at the moment; None if there is none."""
        self._hopeless = False
        """True if that does not pass by itself."""
        self._read_at = clock.monotonic()
        self._writing = threading.Lock()
        self._writer: WriteClient | None = None
        self._ready = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kop-functions-tail", daemon=True)
        self._leading = Leading(
            self._settings,
            me.worker_id,
            self.metadata,
            membership,
            members=self.members,
            read_to_end=self._read_to_end,
            read_requests=self._read_requests,
            topic_names=topic_names,
            scheduler=scheduler,
            patience=patience,
        )
        # of the thread of the tail
        self._reader: ReadClient | None = None
        self._positions: Offsets = {}
        self._requests_from = 0
        """The first offset of the requests that was read."""

    # -- for any thread

    def start(self) -> None:
        """Make the topics, or check them, join the group of workers, and begin to follow the topics. Returns once they
        are read to their ends. ClientError if they cannot be made or read, or the server has no transactions.
        """
        end = clock.monotonic() + self._patience
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
            if self._failure is not None and (self._hopeless or clock.monotonic() > end):
                raise ClientError(self._failure)

    def close(self) -> None:
        """Leave the group of workers, and stop following: within 5 s, even if no server answers."""
        end = clock.monotonic() + CLOSE_SECONDS
        self._over.set()
        for client in (self._reader, self._writer):
            if client is not None:
                client.hurry(HURRY_SECONDS)
        self._leading.hurry(HURRY_SECONDS)
        if self._thread.is_alive():
            self._membership.leave()  # first, so that the next leader does not wait for the last Fetch of the tail
            self._thread.join(HURRY_SECONDS)
            self._membership.close(max(0.0, end - clock.monotonic()))
            self._thread.join(max(0.0, end - clock.monotonic()))
        if self._writer is not None and self._writing.acquire(timeout=max(0.0, end - clock.monotonic())):
            self._writer.close()
            self._writing.release()

    def trouble(self) -> str | None:
        """Return why this worker does not know what the topics say, cannot lead though it has to, or is not in the
        group; None if nothing is wrong.
        """
        if self._failure is not None:
            return self._failure
        silent = clock.monotonic() - self._read_at
        if silent > SILENT_SECONDS:
            return f"the topics of functions could not be read for {silent:.0f} s"
        return self._leading.failure or self._membership.failure

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return the workers that live and run instances."""
        return tuple(member for member in self.members() if member.runs_instances)

    def members(self) -> tuple[WorkerInfo, ...]:
        """Return the workers that live and may lead, drivers of meshes among them, and which of them leads, as of a
        second ago.
        """
        by_id: dict[str, WorkerInfo] = {}
        for peer in self._membership.peers():
            worker = WorkerInfo.of_client_id(peer.client_id, is_leader=peer.holds, machine=peer.host)
            if worker is not None and (peer.holds or worker.worker_id not in by_id):
                by_id[worker.worker_id] = worker
        return tuple(by_id.values())

    def twin(self) -> str | None:
        """Return the address of another worker with the id of this one, if that one takes precedence, by its address
        and member id; else None.
        """
        mine = self._me.client_id(), self._membership.member_id
        peers = self._membership.peers()
        here = {peer.host for peer in peers if peer.member_id == mine[1]}
        for peer in peers:
            other = WorkerInfo.of_client_id(peer.client_id)
            if other is None or other.worker_id != self._me.worker_id or (peer.client_id, peer.member_id) >= mine:
                continue
            # What had this address on this machine is the worker itself, before it was started again.
            if peer.client_id != mine[0] or (here and peer.host not in here):
                return other.address
        return None

    @property
    def leads(self) -> bool:
        """True if this worker leads."""
        return self._leading.leads

    def write(self, records: Sequence[Record]) -> None:
        """Write records of requests or packages; returns once they are durable."""
        with self._writing:
            assert self._writer is not None
            produce(self._writer, self._writer.init_producer(None, -1), records, {})

    def send(self, request: Request) -> None:
        """Write a request to its topic, and return once it is durable; the callback `answered` of this object gets the
        answer later.
        """
        self.write([(REQUESTS, request.fqfn.encode(), to_log(request))])

    def upload(self, package: Package, path: str | None = None) -> None:
        """Write a package to its topic; returns once it is durable. `path` makes it an uploaded file of that path."""
        named = [] if path is None else [(PACKAGES, f"{UPLOAD}{path}".encode(), package.digest.encode())]
        self.write([(PACKAGES, key, value) for key, value in chunks(package)] + named)

    def make_topics(self, spec: FunctionSpec) -> list[str]:
        """Make the topics that a function names as inputs or output and that are missing, with the servers' defaults;
        returns the names of those made.
        """
        with self._writing:
            assert self._writer is not None
            topics = filter(None, [*spec.named_inputs, spec.output])
            return [topic for topic in topics if self._writer.make_topic(topic)]

    def history(self, fqfn: str, limit: int) -> list[tuple[Request, LeaderAnswer | None]]:
        """Return the last `limit` requests for a function, the oldest of them first, each with its answer, or None if
        there is none yet.
        """
        there = self.metadata.definitions.get(fqfn)
        return read_history(self._settings, self._patience, fqfn, None if there is None else there.revision, limit)

    # -- the tail

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._open()
                while not self._over.is_set():
                    self._step(WAIT_MS if self._knows_leader else JOINING_WAIT_MS)
                    if not self._over.is_set():  # else another worker may lead already
                        self._leading.step()
            except Exception as error:
                reason = str(error) or repr(error)
                if reason != self._failure:
                    log.warning("the topics of functions cannot be followed: %s", reason)
                self._hopeless = not isinstance(error, (*TEMPORARY, UnreachableError))
                self._failure = reason
                self._over.wait(PAUSE_SECONDS)
            finally:
                self._leading.close()
                if self._reader is not None:
                    with suppress(Exception):
                        self._reader.close()
                self._reader = None

    @property
    def _knows_leader(self) -> bool:
        """True if the list of members names a leader: another worker, or this one, which then leads already. True, too,
        if this worker cannot join the group at the moment, because no leader is known soon then.
        """
        if self._membership.failure is not None:
            return True
        leader = next((member.worker_id for member in self.members() if member.is_leader), None)
        if self._membership.holding() is not None:
            return self._leading.leads and leader == self._me.worker_id
        return leader is not None

    def _open(self) -> None:
        """Begin to follow the topics, or go on where it was left, and read them to their ends; from then on they are
        known.
        """
        settings = self._settings | {
            "request_timeout_ms": min(self._settings.get("request_timeout_ms", TAIL_TIMEOUT_MS), TAIL_TIMEOUT_MS)
        }
        reader = self._reader = ReadClient(settings, int(min(self._patience, TAIL_SECONDS) * 1000))
        if not self._positions:
            first = reader.list_offsets({(topic, 0): EARLIEST for topic in CONFIGS}, READ_COMMITTED)
            last = reader.list_offsets({(REQUESTS, 0): LATEST}, READ_COMMITTED)[REQUESTS, 0]
            self._requests_from = max(first[REQUESTS, 0], last - WINDOW)
            self._positions = first | {(REQUESTS, 0): self._requests_from}
        self._read_to_end(CONFIGS)
        self._failure = None
        self._ready.set()

    def _read_requests(self, offset: int) -> None:
        """Read the requests from `offset` to the topic's end, now, if reading had begun behind `offset`; else do
        nothing.
        """
        if offset < self._requests_from:
            self._positions[REQUESTS, 0] = self._requests_from = offset
            self._read_to_end([REQUESTS])

    def _read_to_end(self, topics: Collection[str]) -> None:
        assert self._reader is not None
        ends = self._reader.list_offsets({(topic, 0): LATEST for topic in topics}, READ_COMMITTED)
        while any(self._positions[place] < end for place, end in ends.items()):
            self._step(0)

    def _step(self, wait_ms: int) -> None:
        """Read the next records of the topics, waiting up to `wait_ms` for some, and put them into the metadata; tell
        `answered` of each answer, and `changed` once if there were any.
        """
        assert self._reader is not None
        fetch = FetchSettings(isolation=READ_COMMITTED, wait_ms=wait_ms)
        changed = False
        fetched = self._reader.fetch_many(dict(self._positions), fetch)
        self._read_at = clock.monotonic()
        for place, got in fetched.items():
            if isinstance(got, OUT_OF_RANGE):
                log.warning("the topic %s was made again: it is read from its beginning", place[0])
                self._positions |= self._reader.list_offsets({place: EARLIEST}, READ_COMMITTED)
                continue
            if isinstance(got, TEMPORARY):
                continue
            if isinstance(got, Exception):
                raise got
            stored = StoredRecords(got, place, self._positions[place])
            for records in stored:
                for offset, at_ms, key, value, _ in records:
                    changed = True
                    try:
                        answer = self.metadata.take(place[0], offset, at_ms, key, value)
                        if answer is not None:
                            self._answered(answer)
                    except DamagedRecordError as error:
                        log.warning("the record at offset %d of %s is left out: %s", offset, place[0], error)
            self._positions[place] = stored.next_offset
        if changed:
            self._changed()
