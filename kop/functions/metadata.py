"""The metadata of functions, as the topics of workers tell it: definitions, assignments, open requests, packages.

Owns: the names and configs of these topics, keys that are no function's, and what each record changes.
Must not know: how topics are read and written, what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

from kop.functions.definitions import (
    Assignment,
    DamagedRecordError,
    Definition,
    InstanceName,
    LeaderAnswer,
    MeshDefinition,
    Request,
    from_log,
    instance_of,
    mesh_of,
    text_of,
)
from kop.functions.leader import KNOWN_REQUESTS
from kop.functions.packages import Assembler
from kop.functions.spec import SpecError

REQUESTS: Final = "__kop_functions_requests"
DEFINITIONS: Final = "__kop_functions"
ASSIGNMENTS: Final = "__kop_functions_assignments"
PACKAGES: Final = "__kop_functions_packages"
CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    REQUESTS: {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    **{topic: {"cleanup.policy": "compact"} for topic in (DEFINITIONS, ASSIGNMENTS, PACKAGES)},
}
UPLOAD: Final = "path:"
"""The beginning of the key of an uploaded file; its path follows, and the value names its package."""
WORKER: Final = "worker:"
"""The beginning of the key of a drained worker; the worker's id follows."""

K = TypeVar("K")
V = TypeVar("V")

Record: TypeAlias = tuple[str, bytes, bytes | None]
"""Topic, key and value of a record that is written."""


@dataclass
class FunctionsMetadata:
    """The content of the topics of workers as of now. One thread changes it; others may read single values."""

    packages: Assembler
    definitions: dict[str, Definition] = field(default_factory=dict)
    meshes: dict[str, MeshDefinition] = field(default_factory=dict)
    assignments: dict[InstanceName, Assignment] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    answers: dict[str, LeaderAnswer] = field(default_factory=dict)
    """The last ones, by their requests, in their order."""
    pending: dict[int, Request] = field(default_factory=dict)
    """Requests without an answer, by their offsets."""
    uploads: dict[str, str] = field(default_factory=dict)
    """Path to digest."""
    stored_at: dict[str, int] = field(default_factory=dict)
    """The time at which the last part of each package was written, in milliseconds since the epoch, by digest."""

    def take(self, topic: str, offset: int, at_ms: int, key: bytes | None, value: bytes | None) -> LeaderAnswer | None:
        """Put a record of a topic of functions into the tables; returns the answer if the record is one to a request,
        else None. DamagedRecordError if the record cannot be read.
        """
        name = text_of(key)
        if topic == REQUESTS:
            return self._take_log(offset, from_log(value))
        if topic == PACKAGES:
            self._take_package(name, at_ms, value)
        elif topic == DEFINITIONS and (mesh := mesh_of(name)) is not None:
            _take(self.meshes, mesh, value, MeshDefinition.from_json)
        elif topic == DEFINITIONS:
            _take(self.definitions, name, value, partial(_definition, name))
        elif name.startswith(WORKER):
            (self.drained.discard if value is None else self.drained.add)(name.removeprefix(WORKER))
        else:
            _take(self.assignments, instance_of(key), value, Assignment.from_json)
        return None

    def _take_log(self, offset: int, said: Request | LeaderAnswer) -> LeaderAnswer | None:
        if isinstance(said, Request):
            self.pending[offset] = said
            return None
        for asked in [o for o, request in self.pending.items() if request.id == said.request]:
            del self.pending[asked]
        if said.request not in self.answers:
            self.answers[said.request] = said
            if len(self.answers) > KNOWN_REQUESTS:
                del self.answers[next(iter(self.answers))]
        return said

    def _take_package(self, name: str, at_ms: int, value: bytes | None) -> None:
        if name.startswith(UPLOAD):
            path = name.removeprefix(UPLOAD)
            if value is None:
                self.uploads.pop(path, None)
            else:
                self.uploads[path] = text_of(value)
            return
        self.packages.add(name.encode(), value)
        digest = name.partition("/")[0]
        self.stored_at[digest] = at_ms
        if value is None and not self.packages.keys(digest):
            del self.stored_at[digest]

    def removable(self, digest: str) -> list[bytes]:
        """Return the keys of the records of a package that may be deleted once no definition names it: all that it has;
        none if an uploaded file is that package.
        """
        return [] if digest in self.uploads.values() else self.packages.keys(digest)


def _take(rows: dict[K, V], key: K, value: bytes | None, read: Callable[[bytes], V]) -> None:
    """Set the row of a key, or remove it if the value is None. A row whose new value is damaged is removed, too."""
    try:
        row = None if value is None else read(value)
    except DamagedRecordError:
        rows.pop(key, None)
        raise
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _definition(fqfn: str, value: bytes) -> Definition:
    definition = Definition.from_json(value)
    try:
        if definition.spec.fqfn != fqfn or definition.fqfn != fqfn:
            raise DamagedRecordError(f"the definition of {definition.fqfn} is under the key {fqfn}")
    except SpecError as error:
        raise DamagedRecordError(str(error)) from None
    return definition
