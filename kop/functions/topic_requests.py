"""Requests to the leader of a process that is no worker: written to the topics, and answered there.

Owns: how an answer is waited for, and who leads meanwhile if nobody does: this process.
Must not know: what requests do, what is in a mesh.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

from kop import clock
from kop.client.batches import StoredRecords
from kop.client.fixed_topics import ensure_topics
from kop.client.keyed_topic import KeyedTopic
from kop.client.membership import has_members
from kop.client.offsets import LATEST
from kop.client.read_client import FetchSettings, ReadClient
from kop.client.write_client import WriteClient
from kop.functions.definitions import (
    DamagedRecordError,
    Definition,
    LeaderAnswer,
    MeshDefinition,
    Request,
    WantedMesh,
    WorkerInfo,
    from_log,
    mesh_key,
    mesh_of,
    to_log,
)
from kop.functions.leading import GROUP, produce
from kop.functions.metadata import CONFIGS, DEFINITIONS, PACKAGES, REQUESTS, Record
from kop.functions.packages import Assembler, Package, chunks
from kop.functions.reading import READ_COMMITTED
from kop.functions.registry import Registry, membership_of
from kop.functions.request_effects import LOST, NO_PACKAGE, NOT_THERE, OK
from kop.functions.topics import TopicNames

ANSWER_SECONDS: Final = 60.0
"""The seconds to wait for an answer: longer than it takes until somebody else leads."""
LOOK_SECONDS: Final = 2.0
"""The seconds between two looks for a process that leads, during the wait for an answer."""
WAIT_MS: Final = 200
NOBODY: Final = 503
_PLACE: Final = REQUESTS, 0
_FETCH: Final = FetchSettings(isolation=READ_COMMITTED, wait_ms=WAIT_MS)


def driver_info() -> WorkerInfo:
    """Return the description of this process as one that may lead and runs no instances, with a new id."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII) or "host"
    return WorkerInfo(f"kop-mesh-{host}-{os.getpid()}-{clock.token_hex(2)}", host, 0)


def new_registry(
    settings: Mapping[str, Any], folder: str, topic_names: TopicNames, patience: float, **told: Any
) -> Registry:
    """Return the topics for a process that may lead, and runs no instances; they are not followed yet. `folder` keeps
    packages, `told` are further options of Registry.
    """
    me = driver_info()
    changed = told.get("changed", lambda: None)
    return Registry(
        settings,
        me,
        Assembler(folder),
        membership_of(settings, me, changed),
        topic_names=topic_names,
        patience=patience,
        **told,
    )


class TopicRequests:
    """Asks the leader for changes of meshes, for one thread; to be closed. `settings` are kafka-python's.

    Raises ClientError, UnreachableError, kafka-python's errors.
    """

    def __init__(
        self, settings: Mapping[str, Any], patience: float, topic_names: TopicNames, by: str, *, may_lead: bool = True
    ) -> None:
        """`by` names who asks, for people to read. `may_lead` is False if another process is there to lead."""
        self._may_lead = may_lead
        self._settings = dict(settings)
        self._patience = patience
        self._topic_names = topic_names
        self._by = by
        self._writer = WriteClient(settings, patience)
        self._reader = ReadClient(settings, int(patience * 1000))
        self._registry: Registry | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> TopicRequests:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lead no more, if this process does, and close the connections."""
        if self._registry is not None:
            self._registry.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._reader.close()
        self._writer.close()

    # -- what there is

    def mesh(self, name: str) -> MeshDefinition | None:
        """Return the definition of a mesh; None if there is none."""
        return read_definitions(self._settings, self._patience)[0].get(name)

    # -- requests

    def apply(
        self, name: str, wanted: WantedMesh, packages: Collection[Package], there: MeshDefinition | None
    ) -> LeaderAnswer:
        """Ask to create a mesh, or to change the mesh `there`, as it was read before, into the wanted one; returns the
        leader's answer. The packages are written if the leader does not have them.
        """
        kind: Any = "create" if there is None else "update"
        request = self._request(kind, name, _revision(there))
        return self._ask(replace(request, mesh=wanted), packages)

    def ensure(self, name: str, wanted: WantedMesh, packages: Collection[Package], seen: int | None) -> LeaderAnswer:
        """Make a mesh as it is wanted, and started; asks for nothing if it is. Returns the answer.

        `seen` is the revision of the mesh when its user decided that; None if there was none. What others have changed
        since stays: the answer is a refusal if the mesh is another one, or was deleted, and a mesh that was stopped
        since is left stopped.
        """
        is_applied = False
        while True:
            meshes, functions = read_definitions(self._settings, self._patience)
            there = meshes.get(name)
            if there is None and (is_applied or seen is not None):
                return LeaderAnswer(request="", status=NOT_THERE, reason="it was deleted meanwhile")
            if there is None or not (is_applied or is_same(wanted, there, functions)):
                if there is not None and (seen is None or there.version > seen):
                    told = f"{there.by} has sent another definition meanwhile (revision {there.revision})"
                    return LeaderAnswer(request="", status=LOST, reason=told, revision=there.revision)
                answer = self.apply(name, wanted, packages, there)
                is_applied = answer.won
                seen = answer.revision if answer.won else seen
            elif there.is_stopped and there.revision == seen:
                answer = self.change("start", name, there.revision)
            else:
                return LeaderAnswer(request="", status=OK, revision=there.revision)
            if not answer.won and (answer.status not in {LOST, NOT_THERE} or answer.revision == _revision(there)):
                return answer

    def change(self, kind: Any, name: str, expects: int | None, part: str = "") -> LeaderAnswer:
        """Ask to start, stop, restart or delete (`kind`) a mesh, or to start, stop or restart `part` of it, and return
        the answer. It is refused if the mesh has not the revision `expects`.
        """
        return self._ask(replace(self._request(kind, name, expects), part=part), ())

    def _request(self, kind: Any, name: str, expects: int | None) -> Request:
        return Request(
            id=clock.uuid4().hex,
            kind=kind,
            fqfn=mesh_key(name),
            expects=expects,
            by=self._by,
            at_ms=clock.wall_ms(),
        )

    def _ask(self, request: Request, packages: Collection[Package]) -> LeaderAnswer:
        if self._may_lead:  # else those who lead have made them
            ensure_topics(self._settings, CONFIGS)
        answer = self._answered(request)
        if answer.status == NO_PACKAGE:
            self._write([(PACKAGES, key, value) for package in packages for key, value in chunks(package)])
            answer = self._answered(replace(request, id=clock.uuid4().hex))
        return answer

    def _write(self, records: Collection[Record]) -> None:
        produce(self._writer, self._writer.init_producer(None, -1), list(records), {})

    def _answered(self, request: Request) -> LeaderAnswer:
        """Send a request, and return its answer; if nobody leads meanwhile, lead, if this process may. Status 503 if
        none came within 60 s.
        """
        position = self._reader.list_offsets({_PLACE: LATEST}, READ_COMMITTED)[_PLACE]
        self._write([(REQUESTS, request.fqfn.encode(), to_log(request))])
        end = clock.monotonic() + ANSWER_SECONDS
        look = 0.0
        while clock.monotonic() < end:
            if self._may_lead and self._registry is None and clock.monotonic() >= look:
                look = clock.monotonic() + LOOK_SECONDS
                if not has_members(self._settings, GROUP):
                    self._lead()
            stored = StoredRecords(self._reader.fetch(_PLACE, None, position, _FETCH), _PLACE, position)
            for records in stored:
                for _, _, _, value, _ in records:
                    with suppress(DamagedRecordError):
                        said = from_log(value)
                        if isinstance(said, LeaderAnswer) and said.request == request.id:
                            return said
            position = stored.next_offset
        reason = f"nobody who leads has answered within {ANSWER_SECONDS:g} s; it may still be done: look first"
        return LeaderAnswer(request=request.id, status=NOBODY, reason=reason)

    def _lead(self) -> None:
        """Begin to follow the topics as one that may lead, since a request needs a leader and nobody is there to be
        one.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="kop-packages-")
        self._registry = new_registry(self._settings, self._folder.name, self._topic_names, self._patience)
        self._registry.start()


def is_same(wanted: WantedMesh, there: MeshDefinition, functions: Mapping[str, Definition]) -> bool:
    """Return True if the mesh `there` and its functions, whose definitions are in `functions`, are as wanted."""
    if (wanted.text, tuple(wanted.functions), wanted.others) != (there.text, there.functions, there.others):
        return False
    return all(
        fqfn in functions
        and (dict(function.config), function.package) == (dict(functions[fqfn].config), functions[fqfn].package)
        for fqfn, function in wanted.functions.items()
    )


def _revision(there: MeshDefinition | None) -> int | None:
    return None if there is None else there.revision


def read_definitions(
    settings: Mapping[str, Any], patience: float
) -> tuple[dict[str, MeshDefinition], dict[str, Definition]]:
    """Return the meshes and the functions that are defined, by their full names, as their topic has them now; damaged
    ones are left out.
    """
    meshes: dict[str, MeshDefinition] = {}
    functions: dict[str, Definition] = {}
    with closing(KeyedTopic(settings, DEFINITIONS, patience)) as topic:
        for key, value in topic.read().items():
            with suppress(DamagedRecordError):
                name = mesh_of(key)
                if name is not None:
                    meshes[name] = MeshDefinition.from_json(value)
                else:
                    functions[key] = Definition.from_json(value)
    return meshes, functions
