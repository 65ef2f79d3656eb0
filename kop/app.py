"""The composition root: settings in, a serving gateway out. The only file that knows all the others.

Owns: the order in which the parts start and stop, signals, logging, the banner, which pages are served by HTTP.
Must not know: how any part does its work.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from os import _exit as exit_at_once
from pathlib import Path
from typing import Protocol, TypeVar

from kop import __version__, allocator, background, clock, compiled, event_loop, threads
from kop.address import Address, is_loopback
from kop.cluster.broker_configs import BrokerConfigs
from kop.cluster.client_topics import ClientTopics
from kop.cluster.cluster_view import ClusterView
from kop.cluster.liveness import answers
from kop.cluster.producer_ids import ProducerIds
from kop.cluster.topic_configs import TopicConfigs
from kop.config import Config
from kop.coordination.peers import Connect, Peers
from kop.errors import ConfigError, KopError
from kop.garbage_collector import collect_seldom
from kop.groups.runtime import GroupCoordinator
from kop.groups.settings import GroupSettings
from kop.handlers import registry
from kop.handlers.fetch_sessions import FetchSessions
from kop.handlers.gateway import Gateway
from kop.handlers.metadata_cache import MetadataCache
from kop.handlers.settings import HandlerSettings
from kop.log_format import LogFormat
from kop.metrics import Metrics
from kop.security.audit import Audit, AuditLines
from kop.security.listener import ListenerSecurity
from kop.security.login_turns import LoginTurns
from kop.security.passwords import CHECKS_AT_ONCE
from kop.security.sasl.oauthbearer import TokenCheck
from kop.security.settings import PULSAR_AUTHORIZER, SecuritySettings
from kop.security.state import SecurityState
from kop.security.tenant_membership import TenantMembership
from kop.security.throttling import Throttling
from kop.security.token_expiry import TokenExpiry
from kop.security.token_keys import KeySources
from kop.security.token_logins import Bearers
from kop.security.users_file import make_missing_users
from kop.server.endpoints import Endpoint, between_brokers, endpoints
from kop.server.listener import Server
from kop.server.request import RequestPipeline
from kop.server.securing import LoginParts, dialer, listener_security
from kop.server.settings import ListenerSettings, ServerSettings
from kop.server.supervisor import on_orphaned, supervise
from kop.storage.base import Engine, LiveBroker, LogPolicy, TopicInfo
from kop.storage.memory import engine as memory_engine
from kop.storage.memory.settings import MemorySettings
from kop.storage.pulsar.settings import SYSTEM_TENANT, PulsarSettings
from kop.storage.sqlite.settings import SqliteSettings
from kop.threads import Ended, Threads
from kop.transactions.coordinators import TransactionCoordinators
from kop.transactions.ends import TransactionEnds
from kop.transactions.runtime import TransactionCoordinator
from kop.transactions.settings import TransactionSettings
from kop.transactions.verification import TransactionVerifier

_SIDE_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""The number of threads for calls that would keep the event loop for long, such as decoding large requests: as many as
asyncio's own pool has.
"""
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

T = TypeVar("T")
log = logging.getLogger("kop")


class MemoryStore(Protocol):
    """A function that opens the engine of the store `memory:`."""

    async def __call__(self, *, policy: Callable[[TopicInfo], LogPolicy], settings: MemorySettings) -> Engine:
        """Open the engine that keeps all records in memory; see `kop.storage.memory.engine.open_engine`."""


def run(config: Config, *, worker: int | None = None, serves: Callable[[Config, Serving], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; returns when everything is stopped and synced. `serves` is called once the broker
    serves; without it the banner is printed. Logs to stderr, and raises the process's limit of open files.

    `worker`: the number of this process among several that share the listeners. KopError if storage cannot be opened,
    OSError if an address cannot be bound.
    """
    _log_to_stderr(config)
    allocator.keep_large_buffers(max(config.kop_cache_bytes, 64 << 20))
    allocator.share_arenas()
    _raise_file_limit()
    if worker is None:
        _tell_of_slower_parts()
    with asyncio.Runner(loop_factory=event_loop.new) as runner:
        runner.run(_serve(config, worker, serves or _banner))


def run_workers(config: Config) -> None:
    """Serve with `kop.workers` processes until SIGINT or SIGTERM."""
    _log_to_stderr(config)
    _tell_of_slower_parts()
    shared = endpoints(config.of(ServerSettings))
    first = shared[0].port + 1
    log.info(
        "%d workers: brokers %d to %d on ports %d to %d, bootstrap on %s",
        config.kop_workers, config.node_id, config.node_id + config.kop_workers - 1,
        first, first + config.kop_workers - 1, ", ".join(str(endpoint.address) for endpoint in shared),
    )  # fmt: skip
    served = multiprocessing.get_context("spawn").Value("i", 0)
    supervise(config.kop_workers, partial(_run_worker, config, served))


def _log_to_stderr(config: Config) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormat(_LOG_FORMAT))
    logging.basicConfig(level=config.kop_log_level.upper(), handlers=[handler])


def _tell_of_slower_parts() -> None:
    if not event_loop.is_fast():
        log.warning("asyncio's own event loop runs, which costs up to twice the CPU: uvloop is not installed here")
    if (why := compiled.missing()) is not None:
        log.warning(
            "the plain Python build runs: nothing is left out, but a record costs 1.6 to 5 times the CPU, over Pulsar "
            "more; %s",
            why,
        )


def _run_worker(config: Config, served: Synchronized[int], index: int) -> None:
    """Serve as one worker, on the shared listeners and on those of its own that clients are told of. An error of the
    start is logged and ends the process with status 1.

    `served` counts the workers that have come to serve: the one that completes them prints the banner of all.
    """
    changes: dict[str, object] = {"node_id": config.node_id + index}
    if config.http is not None:
        changes["http"] = Address(config.http.host, config.http.port + index)

    def serves(_: Config, serving: Serving) -> None:
        with served.get_lock():
            served.value += 1
            last = served.value == config.kop_workers
        if last:
            _banner(config, serving)

    try:
        run(config.model_copy(update=changes), worker=index, serves=serves)
    except (KopError, ConfigError, OSError) as error:
        log.error("worker %d: %s", index, getattr(error, "message", error))
        raise SystemExit(1) from None


def _leave_alone_what_is_there() -> None:
    """Collect garbage once, then exclude all present objects from Python's garbage collection, since they stay, and let
    it look at later ones less often.
    """
    gc.collect()
    gc.freeze()
    collect_seldom()


def _end_process(name: str, error: BaseException) -> None:
    """End the process at once, with an error: a thread of it has ended, and what waits for that would wait for ever.

    What was acknowledged is stored, as after a crash. An orderly stop may need the thread, or memory that is not there.
    """
    try:
        log.critical(
            "the thread %s has ended unexpectedly, so that this process ends with an error; what was acknowledged is "
            "stored: %r", name, error, exc_info=error,
        )  # fmt: skip
    finally:
        exit_at_once(1)


async def _serve(config: Config, worker: int | None, serves: Callable[[Config, Serving], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The threads of `to_thread`: the loop's own pool would begin each of them when it is needed.
    loop.set_default_executor(Threads(_SIDE_THREADS, "kop-side", _end_process))
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    if worker is not None:
        on_orphaned(stop.set)
    async with AsyncExitStack() as stack:
        starting, stopping = (
            loop.create_task(start(config, stack, worker=worker, ended=_end_process)),
            loop.create_task(stop.wait()),
        )
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # it may wait for Pulsar for long
            starting.cancel()
            await asyncio.wait({starting})
            log.info("stopped while it was starting")
            return
        serving = starting.result()
        _leave_alone_what_is_there()
        serves(config, serving)
        await stop.wait()
        log.info("stopping: requests under way may end, then data is synced")
    log.info("stopped")


@dataclass(eq=False)
class Serving:
    """A broker that serves: its parts and the addresses on which it listens, for the banner and for tests in whose
    process it runs.
    """

    gateway: Gateway
    engine: Engine
    server: Server
    listeners: list[tuple[str, int]]
    http_port: int | None


class _Readiness:
    """The answer of the page /readyz, also while the broker is starting: ready, or the reason why not."""

    def __init__(self) -> None:
        self._starting = "the storage engine is being opened"
        self._engine: Engine | None = None
        self._coordinators: tuple[GroupCoordinator | TransactionCoordinator, ...] = ()

    def waits(self, text: str) -> None:
        """Show this text as the reason for which the start is not done yet."""
        self._starting = text

    def serves(self, engine: Engine, *coordinators: GroupCoordinator | TransactionCoordinator) -> None:
        """Answer from now on by the state of the engine and the coordinators: the broker has started."""
        self._engine, self._coordinators = engine, coordinators

    def not_ready(self) -> str | None:
        """Return why no records can be written now; None if they can."""
        return f"starting: {self._starting}" if self._engine is None else self._engine.healthy

    def waiting_for(self) -> str | None:
        """Return one line about groups and transactional ids that are not served, and records that were lost, while all
        else is served; None if there is nothing to say.
        """
        losses = None if self._engine is None else self._engine.losses
        return "; ".join(filter(None, (*(part.waiting_for for part in self._coordinators), losses))) or None


async def start(
    config: Config,
    stack: AsyncExitStack,
    *,
    worker: int | None = None,
    memory: MemoryStore | None = None,
    ended: Ended = threads.tell,
) -> Serving:
    """Start every part; `stack` stops them in the reverse order: listeners drain, groups, storage.

    A `worker`, by its number, has listeners of its own, which clients are told of, and shares as many others. `memory`
    opens the engine of the store `memory:`; without it that engine is empty. `ended` is called if a thread ends
    unexpectedly; if it returns, storage refuses batches from then on.
    """
    broker_configs = BrokerConfigs(config.table())
    topic_configs = TopicConfigs(broker_configs)
    metrics = Metrics()
    readiness = _Readiness()
    http_port = None
    if config.http is not None:  # first: it says what the start waits for
        from kop.server import http  # noqa: PLC0415 - see _open_engine

        routes = {
            "/metrics": http.metrics_page(metrics.registry),
            "/healthz": http.health_page,
            "/readyz": http.readiness_page(readiness.not_ready, readiness.waiting_for),
        }
        runner, http_port = await http.serve_http(config.http.host, config.http.port, routes)
        stack.push_async_callback(runner.cleanup)
        if config.authorizer_class_name and not is_loopback(config.http.host):
            log.warning("/metrics names topics and groups to all who reach %s: no login is asked there", config.http)
    listening = endpoints(config.of(ServerSettings), worker)
    caller = listening[between_brokers(config.of(ServerSettings), listening)]
    by = config.of(ListenerSettings, listener=caller.key).sasl_mechanism_inter_broker_protocol
    calling = config.of_mechanism(ListenerSettings, caller.key, by)
    dial = dialer(caller, calling, alone=not config.store.startswith("pulsar"))
    engine = await _open_engine(config, broker_configs, topic_configs, readiness.waits, memory, ended, dial.connect)
    stack.push_async_callback(engine.close)
    await broker_configs.load(engine)
    broker_configs.on_change(engine.policies_changed)
    engine.policies_changed()

    settings = config.of(SecuritySettings)
    audit = Audit(AuditLines(settings.kop_audit_file), config.node_id, tells_allowed=settings.kop_audit_allowed)
    stack.callback(audit.close)
    security = SecurityState(engine, clock.wall_ms)
    stack.push_async_callback(security.close)
    await security.open(readiness.waits)
    if config.authorizer_class_name == PULSAR_AUTHORIZER and (grants := engine.grants) is not None:
        await grants.open()
    if config.kop_security_users_file:
        await make_missing_users(config.kop_security_users_file, security, config.kop_security_max_users)
    throttling = Throttling(security.quotas, asyncio.get_running_loop().time)
    topics = ClientTopics(engine, has_spaces=config.of(SecuritySettings).has_tenants)
    cluster = ClusterView(engine, config.node_id)
    groups = GroupCoordinator(engine, config.of(GroupSettings), leader_choice=cluster)
    producer_ids = ProducerIds(engine)
    peers = Peers(config.node_id, cluster.peer_address, dial.open)
    stack.push_async_callback(peers.close)
    ends = TransactionEnds(engine.transactions, groups, cluster, peers)
    transactions = TransactionCoordinator(
        engine, producer_ids, ends, config.of(TransactionSettings), leader_choice=cluster
    )
    coordinators = TransactionCoordinators(transactions, cluster, peers)
    ends.verifier = verifier = TransactionVerifier(coordinators)
    gateway = Gateway(
        settings=config.of(HandlerSettings),
        engine=engine,
        topics=topics,
        broker_configs=broker_configs,
        topic_configs=topic_configs,
        groups=groups,
        transactions=transactions,
        verifier=verifier,
        ends=ends,
        cluster=cluster,
        peers=peers,
        metrics=metrics,
        metadata_cache=MetadataCache(),
        fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots, metrics),
        producer_ids=producer_ids,
        security=security,
        security_settings=settings,
        throttling=throttling,
        audit=audit,
        apis=registry.build(),
    )
    server = Server(RequestPipeline(gateway), metrics, config.of(ServerSettings))
    for part in (groups, transactions, topics, engine, security, throttling, audit, server, background):
        metrics.collect_with(part.collect)

    security.on_user_change(lambda _: server.users_changed())
    tokens = gateway.tokens
    if tokens.is_enabled:
        every_ms = settings.delegation_token_expiry_check_interval_ms
        expiry = TokenExpiry(security, server.users_changed, clock.wall_ms, every_ms)
        stack.push_async_callback(expiry.close)
        expiry.open()

    def limit_connections() -> None:
        server.settings = config.of(
            ServerSettings,
            max_connections=int(broker_configs.text("max.connections")),
            max_connections_per_ip=int(broker_configs.text("max.connections.per.ip")),
        )

    broker_configs.on_change(limit_connections)
    limit_connections()  # what was altered before the last stop
    # The others are told where this one listens, so it listens first; until the groups are loaded clients are told to
    # wait. On the way down it is the other way round: requests end, then groups, then storage.
    token_keys = KeySources()
    turns = LoginTurns(CHECKS_AT_ONCE)
    bearers = Bearers(tokens, turns, clock.wall_ms) if tokens.is_enabled else None
    membership = _membership(config, gateway, has_namespaces=topics.has_namespaces)
    check_token = _pulsar_token_check(config, engine, token_keys)
    logins = LoginParts(security, turns, token_keys, check_token, bearers, membership, config.kop_tenant_claim)
    securities = [
        listener_security(
            endpoint,
            config.of(ListenerSettings, listener=endpoint.key),
            config.of(ServerSettings, listener=endpoint.key),
            logins,
            partial(config.of_mechanism, ListenerSettings, endpoint.key),
        )
        for endpoint in listening
    ]
    stack.push_async_callback(token_keys.close)
    await token_keys.open()
    metrics.collect_with(token_keys.collect)
    if dial.tls is not None:
        server.watch(dial.tls)
    bound = await _listen(server, listening, securities)
    try:
        await engine.join(_this_broker(config.node_id, bound, caller))
    except BaseException:
        await server.drain(0)
        raise
    stack.push_async_callback(gateway.close)
    stack.push_async_callback(_stop_all, groups, transactions)
    stack.push_async_callback(server.drain, config.kop_drain_timeout_ms)
    readiness.serves(engine, groups, transactions)
    await asyncio.gather(groups.start(), transactions.start())
    return Serving(gateway, engine, server, [address for _, address in bound], http_port)


async def with_security(config: Config, work: Callable[[SecurityState], Awaitable[T] | T]) -> T:
    """Open the store, and return the result of `work` on its users and ACLs; the store is closed then. KopError if it
    cannot be opened, as when a broker has it open.
    """
    broker_configs = BrokerConfigs(config.table())
    topic_configs = TopicConfigs(broker_configs)
    async with AsyncExitStack() as stack:
        engine = await _open_engine(config, broker_configs, topic_configs, log.info, None, threads.tell)
        stack.push_async_callback(engine.close)
        await broker_configs.load(engine)
        engine.policies_changed()
        security = SecurityState(engine, clock.wall_ms)
        stack.push_async_callback(security.close)
        await security.open()
        result = work(security)
        return await result if isinstance(result, Awaitable) else result


async def _stop_all(*coordinators: GroupCoordinator | TransactionCoordinator) -> None:
    """Stop the group and the transaction coordinator side by side, since over Pulsar each lets go of many
    partitions.
    """
    await asyncio.gather(*(coordinator.stop() for coordinator in coordinators))


async def _open_engine(
    config: Config,
    broker_configs: BrokerConfigs,
    topic_configs: TopicConfigs,
    waits: Callable[[str], None],
    memory: MemoryStore | None,
    ended: Ended,
    connect: Connect = asyncio.open_connection,
) -> Engine:
    # An engine is imported where it is chosen: Pulsar's client and the HTTP server are half of all that there is to
    # import, and a broker for a test needs neither.
    if config.store.startswith("pulsar"):
        from kop.storage.pulsar import engine as pulsar  # noqa: PLC0415

        return await pulsar.open_engine(
            config.store,
            config.kop_pulsar_admin_url,
            policy=topic_configs.policy,
            settings=config.of(PulsarSettings),
            answers=partial(answers, connect=connect),
            waiting=waits,
        )

    def cleaner_interval_ms() -> int:
        return int(broker_configs.text("log.cleaner.backoff.ms"))

    if config.store == "memory:":
        settings = config.of(MemorySettings, cleaner_interval_ms=cleaner_interval_ms)
        return await (memory or memory_engine.open_engine)(policy=topic_configs.policy, settings=settings)
    from kop.storage.sqlite import engine as sqlite  # noqa: PLC0415

    return await sqlite.open_engine(
        _store_path(config),
        policy=topic_configs.policy,
        ended=ended,
        settings=config.of(SqliteSettings, cleaner_interval_ms=cleaner_interval_ms),
    )


def _pulsar_token_check(config: Config, engine: Engine, keys: KeySources) -> TokenCheck | None:
    """Return the check that finds the identity in a token of Pulsar; None if clients may not log in with such
    tokens.
    """
    if not config.kop_pulsar_tokens:
        return None
    from kop.security.pulsar_tokens import pulsar_tokens  # noqa: PLC0415 - cryptography, for those who want it

    return pulsar_tokens(config.of(SecuritySettings), engine.token_authority, keys).check


def _membership(config: Config, gateway: Gateway, *, has_namespaces: bool) -> TenantMembership | None:
    """Return the object that tells to which tenant clients belong; None if there are no tenants. ConfigError if the
    rules are wrong.
    """
    if not config.of(SecuritySettings).has_tenants:
        return None
    home, reserved = "", list[str]()
    if has_namespaces:
        home = config.kop_pulsar_namespace
        reserved = [config.kop_pulsar_metadata_namespace, SYSTEM_TENANT]
    return TenantMembership(config.kop_tenant_rules, gateway.super_users, home, reserved, gateway.access)


def _store_path(config: Config) -> Path:
    path = Path(config.store.removeprefix("sqlite:")).expanduser()
    os.makedirs(path.parent, exist_ok=True)
    return path


async def _listen(
    server: Server, listening: Sequence[Endpoint], securities: Sequence[ListenerSecurity]
) -> list[tuple[Endpoint, tuple[str, int]]]:
    """Open the sockets of the listeners; return those that are open, with their addresses. A listener without a name on
    an address that this machine does not have is logged and left out, if there is another one. OSError if one cannot be
    bound.
    """
    bound: list[tuple[Endpoint, tuple[str, int]]] = []
    for endpoint, security in zip(listening, securities, strict=True):
        address, advertised = endpoint.address, endpoint.advertised
        told = None if advertised is None else (advertised.host, advertised.port)
        try:
            place = await server.listen(address.host, address.port, told, shared=endpoint.shared, security=security)
        except OSError as error:
            # A machine without IPv6 still serves on its IPv4 address, and the other way round.
            last = endpoint is listening[-1]
            named = bool(endpoint.name)
            if named or error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT} or (last and not bound):
                raise
            log.warning("not listening on %s: this machine has no such address", address)
        else:
            bound.append((endpoint, place))
    return bound


def _this_broker(node_id: int, bound: Sequence[tuple[Endpoint, tuple[str, int]]], caller: Endpoint) -> LiveBroker:
    """Return this broker as the others name it to their clients. `bound` are the open listeners with their addresses,
    `caller` is the one by which brokers call one another; if it is not open, the first one stands for it.
    """

    def told(endpoint: Endpoint, address: tuple[str, int]) -> tuple[str, int]:
        host, port = endpoint.advertised or address
        return socket.getfqdn() if host in {"0.0.0.0", "::"} else host, port

    between = next((pair for pair in bound if pair[0] is caller), bound[0])
    named = [pair for pair in bound if pair[0].name and not pair[0].shared]
    return LiveBroker(node_id, *told(*between), tuple((pair[0].name, *told(*pair)) for pair in named))


def _raise_file_limit() -> None:
    """Raise the limit on open files as far as the system allows: a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            log.warning("only %d connections are possible: the limit of open files could not be raised", soft)


def _banner(config: Config, serving: Serving) -> None:
    workers = config.kop_workers
    addresses = [Address(*listener) for listener in serving.listeners]
    listening = endpoints(config.of(ServerSettings))
    if workers > 1:  # `serving` has the listeners of one worker: its own ones, then as many shared ones
        addresses = addresses[len(addresses) // 2 :]
        addresses += [addresses[0]._replace(port=addresses[0].port + 1 + index) for index in range(workers)]
    first = addresses[0]
    reachable = first._replace(host="127.0.0.1") if first.host in {"0.0.0.0", "::"} else first
    lines = [
        f"kop {__version__} serves Kafka clients{f' with {workers} workers' if workers > 1 else ''}.",
        "",
        f"  listening   {', '.join(map(str, addresses))}",
        f"  data        {config.store}",
    ]
    engine = serving.engine
    if (about := engine.about) is not None:
        lines.append(f"  pulsar      {about}")
    lines.append(f"  cache       {config.kop_cache_bytes >> 20} MiB (kop.cache.bytes)")
    if serving.http_port is not None and config.http is not None:
        ports = [config.http.port + index for index in range(workers)] if workers > 1 else [serving.http_port]
        pages = [f"http://{config.http._replace(port=port)}/metrics" for port in ports]
        lines.append(f"  metrics     {', '.join(pages)}")
    promises = engine.promises
    to_try = [f"  kop check --bootstrap {reachable}", f"  kcat -b {reachable} -L"]
    if listening[0].has_tls or listening[0].has_sasl or config.authorizer_class_name:
        to_try = [f"{to_try[0]} --client-config FILE", "  (FILE says how to log in: docs/security.md)"]
    lines += [
        "",
        "Try, in another terminal:",
        *to_try,
        "",
        "Ctrl-C stops the broker. " + ("Data stays." if promises.durable else "Its records are gone then."),
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 - for the person at the terminal
