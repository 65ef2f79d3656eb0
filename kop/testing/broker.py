"""A broker in the process of the tests, on a thread and an event loop of its own.

Owns: the settings that suit tests, start and stop from synchronous and asynchronous code, what a test asks of a broker
and does to it.
Must not know: pytest, the protocol, storage.

Nothing of the process is changed: no signal handler, event loop policy, allocator or logging is touched. What the
broker logs goes to the loggers below `kop`. Several brokers may run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar

from kop.address import Address, NamedAddress
from kop.app import MemoryStore, Serving, start
from kop.config import Config
from kop.errors import ErrorCode, KopError
from kop.groups.classic.messages import Description
from kop.storage.base import PartitionLog, TopicInfo
from kop.storage.memory.engine import Memory, open_engine
from kop.testing import records, report
from kop.testing.entrance import Entrance
from kop.testing.loop_thread import LoopThread, Startable
from kop.testing.records import Given, KafkaRecord
from kop.testing.report import Group
from kop.testing.requests import SeenRequest, WatchedRequests
from kop.wire.transaction_state import TransactionStatus

P = ParamSpec("P")
T = TypeVar("T")

DEFAULTS: Mapping[str, str] = {
    "listen": "127.0.0.1:0",
    "store": "memory:",
    "http": "",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "kop.drain.timeout.ms": "0",
    "kop.cache.bytes": str(64 << 20),
}
"""The settings that differ from those of `kop serve`: any free port, records in memory, no waits that tests do not
need.
"""

_ENDING: Final = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_ENDS_SECONDS: Final = 5.0
_ENDS_PAUSE: Final = 0.001


class ClusterPlace(NamedTuple):
    """The place of a broker in a test's cluster: the cluster's thread, and the memory that all its brokers share."""

    thread: LoopThread
    memory: MemoryStore


class _Running(NamedTuple):
    stack: AsyncExitStack
    serving: Serving
    requests: WatchedRequests


class Broker(Startable):
    """A Kafka broker for tests: `with Broker() as broker`, or `async with Broker() as broker`.

    Settings go by Kafka's names with `_` for `.`: `Broker(num_partitions=3)`; `kop config` lists them. The environment
    and settings files are not read. Raises `kop.errors.ConfigError` for settings that there are not.

    What a test asks for fails with `kop.errors.KopError`, whose `code` is Kafka's; RuntimeError if the broker does not
    run.
    """

    def __init__(
        self,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        _place: ClusterPlace | None = None,
        **settings: Any,
    ) -> None:
        """`users`: names with passwords; clients have to log in as one of them, by SCRAM-SHA-256 or SCRAM-SHA-512.

        `tls`: clients have to speak TLS, and to trust the CA of `ca_file`, which the broker makes for itself.
        """
        chosen = {name.replace("_", "."): value for name, value in settings.items()}
        self._entrance = Entrance(users or {}, tls=tls) if users or tls else None
        if self._entrance is not None:
            chosen = {**self._entrance.settings, **chosen}
        defaults = {name: value for name, value in DEFAULTS.items() if name != "listen" or "listeners" not in chosen}
        self._config = Config.load(overrides={**defaults, **chosen}, environ={})
        self._listening: dict[str, Any] = {}
        """The addresses that the broker listens on once it has been started, by the settings' attributes."""
        self._place = _place
        self._thread: LoopThread | None = None
        self._memory: MemoryStore | None = None
        self._run: _Running | None = None

    @property
    def bootstrap(self) -> str:
        """The address `HOST:PORT` for `bootstrap_servers` and `bootstrap.servers`."""
        host, port = self._running().serving.listeners[0]
        return f"{host}:{port}"

    @property
    def ca_file(self) -> str:
        """The path of the certificate, in PEM, that clients of a broker with `tls` have to trust."""
        self._running()
        if self._entrance is None:
            raise RuntimeError("there is no CA: the broker was made without tls=True")
        return self._entrance.ca_file

    @property
    def node_id(self) -> int:
        """The broker's id."""
        return self._config.node_id

    @property
    def is_running(self) -> bool:
        """True if clients can connect."""
        return self._run is not None

    # --- what a test makes and reads without a client

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, object] | None = None
    ) -> None:
        """Make a topic. Returns when clients can use it. Topics that are not made so are made by their first use.

        `partitions`: num.partitions if it is not given. `configs`: Kafka's topic configs by their names, such as
        `{"cleanup.policy": "compact"}`.
        Raises `kop.errors.KopError`: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_CONFIG, ...
        """
        __tracebackhide__ = True
        self._call(self._create_topic(name, partitions, configs or {}))

    def produce(self, topic: str, values: Iterable[Given]) -> list[KafkaRecord]:
        """Append records to a topic, which is made if it is not there; returns them with their partitions and offsets.

        A record is its value, a pair of key and value, or a `kop.testing.KafkaRecord`; text is taken as UTF-8.
        """
        __tracebackhide__ = True
        return self._call(self._produce(topic, list(values)))

    def records(
        self, topic: str, partition: int | None = None, *, isolation_level: str = "read_uncommitted"
    ) -> list[KafkaRecord]:
        """Return the records of a topic, or of one partition: partition after partition, by their offsets.

        With the isolation level `read_committed` as such a consumer gets them, without those of open and of aborted
        transactions; the markers of those that a client has ended are waited for, five seconds at most.
        UNKNOWN_TOPIC_OR_PARTITION if there is no such topic or partition.
        """
        __tracebackhide__ = True
        if isolation_level not in {"read_uncommitted", "read_committed"}:
            raise ValueError(f"isolation_level is read_uncommitted or read_committed, not {isolation_level!r}")
        return self._call(self._records(topic, partition, committed=isolation_level == "read_committed"))

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, by name; internal topics are left out."""
        __tracebackhide__ = True
        return {topic.name: topic.partitions for topic in self._call(self._topics())}

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group by topic and partition; none if there is no such group.

        The markers of transactions that a client has ended are waited for.
        """
        __tracebackhide__ = True
        return self._call(self._committed(group_id))

    def groups(self) -> list[Group]:
        """Return the consumer groups, ordered by their ids. In a cluster: those that this broker coordinates."""
        __tracebackhide__ = True
        return self._call(self._groups())

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the id of the broker that leads a partition, as this one knows it. UNKNOWN_TOPIC_OR_PARTITION if there
        is no such topic or partition.
        """
        __tracebackhide__ = True
        return self._call(self._leader_of(topic, partition))

    def coordinator_of(self, group_id: str) -> int:
        """Return the id of the broker that coordinates a group, as this one knows it."""
        __tracebackhide__ = True
        return self._call(self._coordinator_of(group_id))

    def requests(self) -> list[SeenRequest]:
        """Return the last 20 requests, in the order in which they came."""
        __tracebackhide__ = True
        return self._do(self._running().requests.seen)

    # --- what a test does to it

    def restart(self) -> None:
        """Stop and start again, on the same port, with the records, groups and transactions that were there."""
        __tracebackhide__ = True
        self._running()
        assert self._thread is not None
        self._thread.call(self._close())
        self._thread.call(self._open())

    def fail(self, api: str, error: str, times: int | None = 1) -> None:
        """Answer the next `times` requests of an API with an error, and do nothing else for them; None: all of them.

        Both go by Kafka's names: `broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)`. `heal` ends it. Faults of
        one API come one after the other. ValueError for a name that Kafka does not have, and for `times` below 1.
        """
        __tracebackhide__ = True
        self._do(self._running().requests.fail, api, error, times)

    def delay(self, api: str, seconds: float, times: int | None = None) -> None:
        """Let requests of an API wait for `seconds` before anything is done for them: the next `times`, or all. See
        `fail`.
        """
        __tracebackhide__ = True
        self._do(self._running().requests.delay, api, seconds, times)

    def heal(self) -> None:
        """Drop all faults and delays that `fail` and `delay` have set."""
        __tracebackhide__ = True
        self._do(self._running().requests.heal)

    def pause(self) -> Paused:
        """Answer nothing until `resume`, or until the end of `with broker.pause():`. Connections stay open."""
        __tracebackhide__ = True
        self._do(self._running().requests.pause)
        return Paused(self)

    def resume(self) -> None:
        """Answer the requests that have waited since `pause`, and go on."""
        __tracebackhide__ = True
        self._do(self._running().requests.resume)

    def cut_connections(self) -> int:
        """Close the connections of all clients at once; returns how many there were. They may connect again."""
        __tracebackhide__ = True
        return self._do(self._running().serving.server.cut_connections)

    def expire_sessions(self, group_id: str) -> int:
        """End the session of each member of a group now, as if it had sent no heartbeat; returns how many ended.
        Members whose JoinGroup or SyncGroup waits stay.
        """
        __tracebackhide__ = True
        return self._do(self._running().serving.gateway.groups.expire_sessions, group_id)

    # --- start and stop

    def start(self) -> Self:
        """Start serving, and return this broker once clients can connect. OSError if `listen` cannot be bound,
        RuntimeError if the broker runs already.

        After `stop` it begins empty (`restart` keeps what was there). One of a cluster is on its port again, and finds
        what the others have.
        """
        __tracebackhide__ = True
        if self._run is not None:
            raise RuntimeError("the broker runs already")
        if self._place is None:
            self._thread, self._memory, self._listening = LoopThread(), partial(open_engine, Memory()), {}
        else:
            self._thread, self._memory = self._place
        try:
            if self._entrance is not None:
                self._entrance.open()
            self._thread.call(self._open())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Close the clients' connections and stop. What was produced is gone; in a cluster, only once all its brokers
        are stopped. Nothing if the broker does not run.
        """
        thread, self._thread = self._thread, None
        if self._entrance is not None:
            self._entrance.close()
        if thread is None:
            return
        try:
            thread.call(self._close())
        finally:
            if self._place is None:
                thread.stop()

    def __repr__(self) -> str:
        if self._run is None:
            return "<Broker, not running>"
        try:
            return self._call(self._described())
        except Exception as error:  # what is shown of a failing test must not fail
            return f"<Broker {self.bootstrap}: {error!r}>"

    def report(self) -> str:
        """Return a report for a person: topics with their ends, groups with offsets, the last requests."""
        return "not running" if self._run is None else self._call(self._reported())

    # --- on the broker's loop

    async def _open(self) -> None:
        stack = AsyncExitStack()
        try:
            config = self._config.model_copy(update=self._listening)
            serving = await start(config, stack, memory=self._memory)
            if self._entrance is not None and not self._listening:
                await self._entrance.admit(serving.gateway.security)
            # A broker that starts again is where its clients look for it.
            bound = tuple(Address(*place) for place in serving.listeners)
            names = [listener.name for listener in config.listeners]
            self._listening = (
                {"listeners": tuple(map(NamedAddress, names, bound))} if names else {"listen": tuple(bound)}
            )
            self._run = _Running(stack, serving, WatchedRequests(serving.gateway, serving.server))
        except BaseException:
            await stack.aclose()
            raise

    async def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.requests.resume()
            await run.stack.aclose()

    async def _create_topic(self, name: str, partitions: int | None, configs: Mapping[str, object]) -> TopicInfo:
        gateway = self._running().serving.gateway
        gateway.topics.check_name(name)
        checked = gateway.topic_configs.check({key: str(value) for key, value in configs.items()})
        count = gateway.broker_configs.num_partitions if partitions is None else partitions
        return await gateway.engine.topics.create(name, count, checked)

    async def _produce(self, name: str, given: list[Given]) -> list[KafkaRecord]:
        gateway = self._running().serving.gateway
        topic = gateway.topics.get(name) or await self._create_topic(name, None, {})
        appended: list[KafkaRecord] = []
        for partition, of_partition in records.by_partition(given, topic.partitions).items():
            appended += await records.append(self._log(topic, partition), of_partition)
        return appended

    async def _records(self, name: str, partition: int | None, *, committed: bool) -> list[KafkaRecord]:
        topic = await self._topic(name)
        if committed:
            await self._ends_written()
        read: list[KafkaRecord] = []
        for index in range(topic.partitions) if partition is None else (partition,):
            read += await records.read(self._log(topic, index), committed=committed)
        return read

    async def _leader_of(self, name: str, partition: int) -> int:
        topic = await self._topic(name)
        self._log(topic, partition)
        return self._running().serving.gateway.cluster.leader(topic.topic_id, partition)

    async def _coordinator_of(self, group_id: str) -> int:
        gateway = self._running().serving.gateway
        log = gateway.groups.state_log
        return gateway.cluster.leader(log.topic_id, log.partition_of(group_id))

    async def _topic(self, name: str) -> TopicInfo:
        topic = self._running().serving.gateway.topics.get(name)
        if topic is None:
            near = report.nearest(name, [topic.name for topic in await self._topics()])
            raise KopError(f"there is no topic {name!r}{near}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def _log(self, topic: TopicInfo, partition: int) -> PartitionLog:
        log = self._running().serving.gateway.topics.log(topic.topic_id, partition)
        if log is None:
            text = f"{topic.name} has no partition {partition}; it has {topic.partitions}"
            raise KopError(text, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return log

    async def _topics(self) -> list[TopicInfo]:
        return [topic for topic in self._running().serving.gateway.topics.all() if not topic.internal]

    async def _ends_written(self) -> None:
        """Wait, for five seconds at most, for the markers of transactions whose end a client was told: they are written
        behind that answer.
        """
        transactions = self._running().serving.gateway.transactions
        end = asyncio.get_running_loop().time() + _ENDS_SECONDS
        while any(transaction.status in _ENDING for _, transaction in transactions.all()):
            if asyncio.get_running_loop().time() > end:
                return
            await asyncio.sleep(_ENDS_PAUSE)

    async def _committed(self, group_id: str) -> dict[tuple[str, int], int]:
        await self._ends_written()
        offsets = self._running().serving.gateway.groups.offsets(group_id)
        return {} if offsets is None else {(topic, at): value.offset for topic, at, value in offsets}

    async def _groups(self) -> list[Group]:
        groups = self._running().serving.gateway.groups
        described = [groups.describe(listed.group_id) for listed in groups.list()]
        return sorted(
            Group(group.group_id, group.state, tuple(sorted(member.client_id for member in group.members)))
            for group in described
            if isinstance(group, Description)
        )

    async def _described(self) -> str:
        return report.line(self.bootstrap, await self._topics(), await self._groups())

    async def _reported(self) -> str:
        topics = [
            (topic.name, [self._log(topic, at) for at in range(topic.partitions)]) for topic in await self._topics()
        ]
        groups = [(group, await self._committed(group.group_id)) for group in await self._groups()]
        return report.text(topics, groups, self._running().requests.seen())

    def _running(self) -> _Running:
        __tracebackhide__ = True
        if self._run is None:
            raise RuntimeError("the broker does not run: use it in a `with` block, or call start()")
        return self._run

    def _do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on the broker's loop, and return its result."""
        __tracebackhide__ = True

        async def work() -> T:
            return call(*args, **kwargs)

        return self._call(work())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True
        if self._thread is None or self._run is None:
            work.close()
            self._running()
        assert self._thread is not None
        try:
            return self._thread.call(work)
        except (KopError, ValueError, TypeError, RuntimeError) as error:  # the test's own mistake: no frames of ours
            raise error.with_traceback(None) from None


class Paused:
    """A broker that answers nothing, until the end of a `with` block if it is used as one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __enter__(self) -> Paused:
        return self

    def __exit__(self, *_: object) -> None:
        if self._broker.is_running:
            self._broker.resume()
