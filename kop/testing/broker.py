"""A broker in the process of the tests, on a thread and an event loop of its own.

Owns: the thread, the settings that suit tests, start and stop from synchronous and asynchronous code.
Must not know: pytest, the protocol, storage.

Nothing of the process is changed: no signal handler, event loop policy, allocator or logging is touched. What the
broker logs goes to the loggers below `kop`. Several brokers may run side by side.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from kop.app import Serving, start
from kop.config import Config

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
"""Settings that differ from those of `kop serve`: any free port, records in memory, no waits of no use to tests."""

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0


class Broker:
    """A Kafka broker for tests: `with Broker() as broker`, or `async with Broker() as broker`.

    Settings go by Kafka's names with `_` for `.`: `Broker(num_partitions=3)`; `kop config` lists them. The environment
    and settings files are not read. Raises `kop.errors.ConfigError` for settings that there are not.
    """

    def __init__(self, **settings: Any) -> None:
        chosen = {name.replace("_", "."): value for name, value in settings.items()}
        self._config = Config.load(overrides={**DEFAULTS, **chosen}, environ={})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._serving: Serving | None = None

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT` for `bootstrap_servers` and `bootstrap.servers`."""
        host, port = self._running().listeners[0]
        return f"{host}:{port}"

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, object] | None = None
    ) -> None:
        """Make a topic. Returns when clients can use it. Topics that are not made so are made by their first use.

        `partitions`: num.partitions where it is not given. `configs`: Kafka's topic configs by their names, such as
        `{"cleanup.policy": "compact"}`.
        Raises `kop.errors.KopError`: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_CONFIG, ...
        """
        gateway = self._running().gateway
        own = {key: str(value) for key, value in (configs or {}).items()}

        async def create() -> None:
            gateway.topics.check_name(name)
            checked = gateway.topic_configs.check(own)
            count = gateway.broker_configs.num_partitions if partitions is None else partitions
            await gateway.engine.topics.create(name, count, checked)

        self._call(create())

    # --- start and stop

    def start(self) -> Broker:
        """Start serving; returns this broker once clients can connect. OSError where `listen` cannot be bound."""
        if self._thread is not None:
            raise RuntimeError("the broker runs already")
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="kop-broker", daemon=True)
        self._thread.start()
        try:
            started.result(_START_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Close the clients' connections and stop. What was produced is gone. Nothing where it does not run."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._serving = None
        try:
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            pass  # it has ended by itself: it could not start
        thread.join(_STOP_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f"the broker did not stop within {_STOP_SECONDS:.0f} s")

    def _run(self, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: Future[None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                self._serving = await start(self._config, stack)
                started.set_result(None)
                await self._stopping.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    def _running(self) -> Serving:
        if self._serving is None:
            raise RuntimeError("the broker does not run: use it in a `with` block, or call start()")
        return self._serving

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
