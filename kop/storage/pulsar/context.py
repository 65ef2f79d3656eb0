"""The context that parts of the engine over Pulsar are given; they do not know the engine itself.

Owns: background work of the parts, which ends before the engine is closed.
Must not know: topics, logs, what the work is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from kop.errors import BackendError, KopError
from kop.pulsar_client import Client, PulsarError
from kop.pulsar_client.admin import Admin
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.layout import TopicNaming
from kop.storage.pulsar.settings import PulsarSettings

T = TypeVar("T")

log = logging.getLogger(__name__)


class PulsarContext:
    """The clients of Pulsar, settings, names and faults of one engine, for its parts."""

    def __init__(self, client: Client, admin: Admin, settings: PulsarSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.admin = admin
        self.settings = settings
        self.naming = TopicNaming(settings.kop_pulsar_namespace, settings.kop_pulsar_metadata_namespace)
        self.faults = Faults(self.loop.time, client.outage)
        self.closed = False
        """True if the engine is being closed. No new work is taken from then on."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the background; the engine's close waits for it. An unexpected failure of it is logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.DEBUG if isinstance(error, PulsarError | KopError) else logging.ERROR
            log.log(level, "background work failed: %r", error, exc_info=error)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end even if the caller is cancelled, and return its result or raise its error; a failure
        after that is logged. BackendError, without beginning, if the engine is closed or being closed.
        """
        if self.closed:
            work.close()
            raise BackendError("the storage engine is closed")
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._spawned)  # nobody awaits the task any more, so a failure is logged
            raise

    async def wait_for_work(self) -> None:
        """Wait until no background work runs any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)
