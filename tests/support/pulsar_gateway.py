"""A gateway over Pulsar in a thread of its own, so that clients that block can stand on both sides of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

import uvloop

from kop.app import Serving, start
from kop.config import Config
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.partition.log import PulsarLog
from support.gateway import FAST
from support.pulsar import Pulsar
from support.waiting import SECONDS

T = TypeVar("T")
_START_SECONDS = 100


class PulsarGateway:
    """Serves the topics of `pulsar.namespace` from `start` to `stop`; may be started again, on another port."""

    def __init__(self, pulsar: Pulsar, cluster: str = "kop", **settings: str) -> None:
        """Gateways of one `cluster` share coordinators and ids, those of several know nothing of one another."""
        ours = {
            "store": pulsar.service_url,
            "kop.pulsar.admin.url": pulsar.admin_url,
            "kop.pulsar.namespace": pulsar.namespace,
            "kop.pulsar.metadata.namespace": f"{pulsar.namespace}-{cluster}",
        }
        given = {name.replace("_", "."): value for name, value in settings.items()}
        chosen = FAST | ours | given
        if "listeners" in chosen:
            del chosen["listen"]
        self._config = Config.load(overrides=chosen, environ={})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.serving: Serving | None = None

    def start(self) -> PulsarGateway:
        """Returns when clients may come."""
        self._ready.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._thread.start()
        assert self._ready.wait(_START_SECONDS), "the gateway did not start in time"
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        """In an orderly way; returns when all is closed."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set if self._ready.is_set() else self._task.cancel)
        self._thread.join(_START_SECONDS)
        assert not self._thread.is_alive(), "the gateway did not stop in time"
        self._thread = None
        if self._error is not None:
            raise self._error

    def restart(self) -> None:
        """A new process would know no more than this one does afterwards."""
        self.stop()
        self.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self.serving is not None
        return self.serving.listeners[0]

    @property
    def bootstrap(self) -> str:
        """The same as Kafka clients want it."""
        host, port = self.address
        return f"{host}:{port}"

    @property
    def engine(self) -> PulsarEngine:
        """For looks into it; what changes it goes through `call`."""
        assert self.serving is not None
        return cast(PulsarEngine, self.serving.gateway.engine)

    def call(self, work: Coroutine[Any, Any, T], seconds: float = SECONDS) -> T:
        """Run on the gateway's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def log(self, topic: str, partition: int = 0) -> PulsarLog:
        """The log of a partition that is there."""
        info = self.engine.topics.get(topic)
        assert info is not None, f"the gateway does not know {topic}"
        log = self.engine.log(info.topic_id, partition)
        assert log is not None
        return log

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._task = asyncio.current_task()
        async with AsyncExitStack() as stack:
            self.serving = await start(self._config, stack)
            self._ready.set()
            await self._stop.wait()
