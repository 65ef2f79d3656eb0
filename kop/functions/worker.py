"""A worker: the parts that run functions and answer for them, put together.

Owns: the order in which the parts begin and end.
Must not know: paths of HTTP, how instances run, what a leader decides, how a request is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from kop.functions.assigned_instances import AssignedInstances
from kop.functions.instance_questions import InstanceQuestions
from kop.functions.leader_requests import LeaderRequests
from kop.functions.localrun import names_of
from kop.functions.other_workers import OtherWorkers
from kop.functions.packages import Assembler
from kop.functions.registry import Registry, membership_of
from kop.functions.rest import serve
from kop.functions.worker_options import WorkerOptions, scheduler_named
from kop.functions.worker_service import Parts, Service

log = logging.getLogger(__name__)


class Worker(Service):
    """A worker, on the event loop that `start` is called on. `settings` are kafka-python's."""

    def __init__(self, settings: Mapping[str, Any], patience: float, options: WorkerOptions) -> None:
        super().__init__(options)
        self._settings = dict(settings)
        self._patience = patience
        self._scheduler = scheduler_named(options.scheduler)
        self._others = OtherWorkers(options.token)
        self._stop_serving: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._changed = asyncio.Event()
        self._told_wrong: str | None = None

    # -- its life

    async def start(self) -> None:
        """Listen, join the other workers, and begin to run the assigned instances. ClientError if the worker cannot
        start, with the reason.
        """
        options, loop = self._options, asyncio.get_running_loop()

        def call(do: Callable[..., object], *args: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(do, *args)

        def changed() -> None:
            call(self._changed.set)

        code, packages = options.folder / "code", Assembler(options.folder / "parts")
        try:
            instances = self._instances = AssignedInstances(
                self._settings,
                self._patience,
                options.worker_id,
                packages,
                code,
                allow_index=options.allow_index,
                changed=changed,
            )
            port, self._stop_serving = await serve(self, options.host, options.port, options.token)
            self._me = options.announced(port)
            names = await asyncio.to_thread(names_of, self._settings, self._patience, options.topic_namespace)
            registry = Registry(
                self._settings,
                self._me,
                packages,
                membership_of(self._settings, self._me, changed, options.session_seconds),
                changed=changed,
                answered=lambda answer: call(requests.take_answer, answer),
                topic_names=names,
                scheduler=self._scheduler,
                patience=self._patience,
            )
            requests = LeaderRequests(registry, names, code, allow_index=options.allow_index)
            questions = InstanceQuestions(
                self._settings, options.worker_id, registry.metadata, instances, self._others, registry.workers
            )
            self._parts = Parts(registry, requests, questions)
            await asyncio.to_thread(registry.start)
        except BaseException:
            await self.close()
            raise
        self._follower = asyncio.create_task(self._follow(instances, registry))

    async def close(self) -> None:
        """Stop: first end the instances, so that other workers go on where they have stopped, then leave the others."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        if self._instances is not None:
            await asyncio.to_thread(self._instances.close)
        if self._parts is not None:
            await asyncio.to_thread(self._parts.registry.close)
        await self._others.close()
        if self._stop_serving is not None:
            await self._stop_serving()

    async def _follow(self, instances: AssignedInstances, registry: Registry) -> None:
        """Run the instances that the topics of functions assign to this worker, and end others; never returns."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), instances.next_run())
            self._changed.clear()
            try:
                await asyncio.to_thread(self._run_assigned, instances, registry)
            except Exception:
                log.exception("what is assigned to this worker cannot be run")
                await asyncio.sleep(1.0)
                self._changed.set()

    def _run_assigned(self, instances: AssignedInstances, registry: Registry) -> None:
        wrong = self._out_of_place(registry)
        if wrong not in {None, self._told_wrong}:
            log.error("%s", wrong)
        self._told_wrong = wrong
        assignments = {} if registry.twin() is not None else dict(registry.metadata.assignments)
        instances.run(assignments, registry.metadata.definitions)
