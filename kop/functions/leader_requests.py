"""Requests to the leader, on their way from a user and back: here the code is tried, and what it needs is made.

Owns: what is checked and made before a request is sent; which answer is waited for, and how long.
Must not know: HTTP, what a leader decides, how requests are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from kop import clock
from kop.functions.code_check import check
from kop.functions.definitions import NOT_YET, Definition, Kind, LeaderAnswer, Request, spec_of, updated
from kop.functions.packages import Package, PackageError, unpack
from kop.functions.refusals import RefusedFunctionError, concerning
from kop.functions.registry import Registry
from kop.functions.request_effects import NO_PACKAGE, WRONG
from kop.functions.spec import SpecError
from kop.functions.topics import TopicNames
from kop.functions.waiting import SEEN_SECONDS, until

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 30.0
"""The seconds that a request waits for its answer: longer than it takes until another worker leads."""
NOBODY: Final = 503


class LeaderRequests:
    """The requests of one worker's users, on its event loop. `folder` is where code is unpacked."""

    def __init__(self, registry: Registry, topic_names: TopicNames, folder: Path, *, allow_index: bool) -> None:
        self._registry = registry
        self._topic_names = topic_names
        self._folder = folder
        self._allow_index = allow_index
        self._waiting: dict[str, asyncio.Future[LeaderAnswer]] = {}

    def take_answer(self, answer: LeaderAnswer) -> None:
        """Give an answer of the leader to the task that waits for it, if one does. For the event loop alone."""
        future = self._waiting.pop(answer.request, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def definition(self, fqfn: str) -> Definition | None:
        """Return the definition of a function; None if there is none."""
        return self._registry.metadata.definitions.get(fqfn)

    async def request(
        self,
        kind: str,
        fqfn: str,
        *,
        expects: int | None = None,
        config: dict[str, Any] | None = None,
        package: Package | None = None,
        instance: int | None = None,
        by: str,
    ) -> LeaderAnswer:
        """Send a request to the leader, and return its answer, once its changes are seen here, too. For create and
        update, first the code is tried, and topics and package are made; if something is wrong with them, the answer is
        made here. Status 503 if nobody has answered within 30 s.
        """
        if expects is not None:  # another worker may have told of it, a moment before it is seen here
            await until(lambda: self._revision(fqfn) >= expects, SEEN_SECONDS)
        there = self.definition(fqfn)
        made = Request(
            id=clock.uuid4().hex,
            kind=cast(Kind, kind),
            fqfn=fqfn,
            expects=expects,
            package="" if package is None else package.digest,
            package_name="" if package is None else package.name,
            instance=instance,
            by=by,
            at_ms=clock.wall_ms(),
        )
        if kind in {"create", "update"}:
            tenant, namespace, name = fqfn.split("/")
            given = {field: value for field, value in (config or {}).items() if field != "fqfn"}
            given |= {"tenant": tenant, "namespace": namespace, "name": name}
            made = replace(made, config=given)
            if (kind == "create") is (there is None):  # else the leader says who was first
                wrong = await asyncio.to_thread(self._prepare, given, there, package)
                if wrong is not None:
                    return LeaderAnswer(request=made.id, status=wrong[0], reason=wrong[1])
        answer = await self._ask_leader(made)
        if answer.status == NO_PACKAGE and package is not None:  # it was deleted meanwhile, since nobody named it
            await asyncio.to_thread(self._registry.upload, package)
            answer = await self._ask_leader(replace(made, id=clock.uuid4().hex))
        return answer

    def _prepare(
        self, given: Mapping[str, Any], there: Definition | None, package: Package | None
    ) -> tuple[int, str] | None:
        """Unpack and try the code, and make the topics and upload the package that the function needs. Returns None, or
        the status and the reason if something is wrong with the function, or the server refuses it something.
        """
        registry = self._registry
        config = updated({} if there is None else there.config, given)
        try:
            spec = spec_of(config, self._topic_names)
            if package is None and there is not None:
                package = registry.packages.package(there.package, there.package_name)
            if package is None:
                return WRONG, "the package is missing: send the file with the function"
            place = unpack(package, self._folder, self._allow_index)
        except (SpecError, PackageError) as error:
            return WRONG, str(error)
        mistakes = check(spec, place)
        if mistakes:
            return WRONG, "\n".join(mistakes)
        try:
            with concerning(spec.fqfn):
                made = registry.make_topics(spec)
        except RefusedFunctionError as refusal:
            return refusal.status, refusal.reason
        for topic in made:
            log.info("made the topic %s for %s", topic, spec.fqfn)
        if not registry.packages.is_whole(package.digest):
            registry.upload(package)
        return None

    async def _ask_leader(self, request: Request) -> LeaderAnswer:
        registry = self._registry
        future: asyncio.Future[LeaderAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        try:
            await asyncio.to_thread(registry.send, request)
            answer = await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            reason = (
                f"no worker that leads has answered within {ANSWER_SECONDS:g} s. What was asked for may still be done: "
                "look before you ask again"
            )
            return LeaderAnswer(request=request.id, status=NOBODY, reason=reason)
        finally:
            self._waiting.pop(request.id, None)
        if answer.won:  # until that is seen here, too: the topics are read side by side
            after = answer.revision
            await until(
                lambda: (
                    self.definition(request.fqfn) is None if after is None else self._revision(request.fqfn) >= after
                ),
                SEEN_SECONDS,
            )
        return answer

    def _revision(self, fqfn: str) -> int:
        there = self.definition(fqfn)
        return NOT_YET if there is None else there.revision

    async def rebalance(self) -> LeaderAnswer:
        """Ask the leader to deal all instances to the workers anew, and return its answer; status 503 if none came
        within 30 s.
        """
        return await self._ask_leader(Request(id=clock.uuid4().hex, kind="rebalance", at_ms=clock.wall_ms()))

    async def drain(self, worker_id: str, *, drained: bool = True) -> LeaderAnswer:
        """Ask the leader to give the instances of a worker to others; with `drained` False to let it have some again.
        Returns the answer; status 503 if none came within 30 s.
        """
        kind: Kind = "drain" if drained else "undrain"
        made = Request(id=clock.uuid4().hex, kind=kind, worker=worker_id, at_ms=clock.wall_ms())
        answer = await self._ask_leader(made)
        if answer.won:
            await until(lambda: (worker_id in self._registry.metadata.drained) is drained, SEEN_SECONDS)
        return answer
