"""The data that workers tell each other through topics: definitions, assignments, requests, answers; and their JSON.

Owns: these data, their keys and values in records, what a worker's client id says.
Must not know: topics, who writes, what a request does.

Every reader takes fields that it does not know, since a newer worker may have written them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final, Literal, Self, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from kop.address import Address, is_loopback
from kop.client.offsets import TopicPartition
from kop.functions.config_reading import read as read_spec
from kop.functions.spec import FunctionSpec
from kop.functions.topics import HOME, TopicNames

InstanceName: TypeAlias = tuple[str, int]
"""The full name of a function, and the number of one of its instances."""
Kind: TypeAlias = Literal["create", "update", "delete", "start", "stop", "restart", "rebalance", "drain", "undrain"]
NOT_YET: Final = -1
"""In the place of a revision: there is none."""
_WORKER_ID: Final = re.compile(r"[\w.-]+", re.ASCII)
_CLIENT_ID: Final = re.compile(r"([\w.-]+)@(.+):(\d+)", re.ASCII)
_adapter: Final[Callable[[Any], TypeAdapter[Any]]] = cache(TypeAdapter)


class DamagedRecordError(Exception):
    """A record that cannot be read; the text says what is wrong with it."""


class _RecordJson:
    """Something that is the value of a record."""

    def to_json(self) -> bytes:
        """Return the record's value as JSON."""
        return _adapter(type(self)).dump_json(self)

    @classmethod
    def from_json(cls, value: bytes | None) -> Self:
        """Return the object that a record's value holds as JSON. DamagedRecordError if it is something else."""
        try:
            read: Self = _adapter(cls).validate_json(value or b"")
        except ValidationError as error:
            raise DamagedRecordError(_mistake(error)) from None
        return read


def _mistake(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])


@dataclass(frozen=True, kw_only=True)
class Definition(_RecordJson):
    """A function as it is wanted."""

    fqfn: str
    config: Mapping[str, Any]
    """Pulsar's FunctionConfig."""
    revision: int
    """Offset of the request that made it what it is. It grows, and no other definition ever has it."""
    version: int
    """Revision of the last request that changed configuration or code: what its instances run."""
    version_ms: int = 0
    """The time of the request of `version`, in milliseconds since the epoch; 0 if a worker did not note it."""
    package: str = ""
    """The SHA-256 of its code."""
    package_name: str = ""
    """The name of the file with its code."""
    stopped: frozenset[int] = frozenset()
    """Instances that do not run because somebody stopped them."""
    restarts: Mapping[int, int] = field(default_factory=dict)
    """Instance to the revision of the last request that it be started anew, where it is of this version."""
    topic_names: TopicNames = HOME
    """The meaning on this cluster of the names of topics in the configuration."""
    mesh: str = ""
    """The full name of the mesh whose drivers run it; workers leave it alone then."""
    kind: str = ""
    by: str = ""
    at_ms: int = 0
    """The request that made it what it is: what it wanted, of whom it came, when."""

    @cached_property
    def spec(self) -> FunctionSpec:
        """The function, checked. SpecError if its configuration is wrong."""
        return spec_of(self.config, self.topic_names)

    def runs(self, instance: int) -> int:
        """Return the revision that an instance runs: the later one of the last change of the function and of the
        instance's last restart. If it grows, the instance is started anew.
        """
        return max(self.version, self.restarts.get(instance, NOT_YET))


@dataclass(frozen=True, kw_only=True)
class WantedFunction:
    """A function of a mesh, as a request has it."""

    config: Mapping[str, Any]
    """Pulsar's FunctionConfig."""
    package: str
    """The SHA-256 of its code."""
    package_name: str


@dataclass(frozen=True, kw_only=True)
class WantedMesh:
    """A mesh, as a request has it."""

    text: str
    """Its file."""
    functions: Mapping[str, WantedFunction] = field(default_factory=dict)
    """By their full names."""
    others: tuple[str, ...] = ()
    """The full names of its sources, sinks and queries."""


@dataclass(frozen=True, kw_only=True)
class MeshDefinition(_RecordJson):
    """A mesh as it is wanted; each of its functions has a definition of its own, which names it."""

    name: str
    """TENANT/NAMESPACE/NAME."""
    text: str
    """Its file."""
    functions: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Both are full names; the others are sources, sinks and queries."""
    revision: int
    """Offset of the request that made it what it is."""
    version: int
    """Revision of the last request that changed its file or code."""
    is_stopped: bool = False
    """True if no driver runs it until somebody starts it."""
    stopped: frozenset[str] = frozenset()
    """Parts, by their names, that stand still while the others run."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Part, by its name, to the revision of the last request that it be started anew; all parts are empty."""
    topic_names: TopicNames = HOME
    """The meaning on this cluster of the names of topics in the file."""
    kind: str = ""
    by: str = ""
    at_ms: int = 0
    """The request that made it what it is: what it wanted, of whom it came, when."""

    @property
    def key(self) -> str:
        """The name of the mesh in requests for it, which is the key of its record, too."""
        return mesh_key(self.name)

    @property
    def parts(self) -> tuple[str, ...]:
        """The full names of all its functions, sources, sinks and queries."""
        return (*self.functions, *self.others)


_MESH: Final = "mesh/"


def mesh_key(name: str) -> str:
    """Return the key that stands for a mesh in the places of functions' full names; it has one slash more than
    those.
    """
    return f"{_MESH}{name}"


def mesh_of(key: str) -> str | None:
    """Return the full name of the mesh that a key stands for; None if it is that of a function."""
    return key.removeprefix(_MESH) if key.startswith(_MESH) and key.count("/") == 3 else None


def spec_of(config: Mapping[str, Any], topic_names: TopicNames) -> FunctionSpec:
    """Return the function of a FunctionConfig. SpecError with all mistakes, if there are any."""
    return read_spec(to_json(dict(config)).decode(), "functionConfig", topic_names)[0]


_BY_FIELD: Final = frozenset(
    {"resources", "windowConfig", "inputSpecs", "customSerdeInputs", "customSchemaInputs", "customSchemaOutputs"}
)
"""Fields whose own fields an update changes one by one."""
_OF_COUNT: Final = ("windowLengthCount", "slidingIntervalCount")
_OF_TIME: Final = ("windowLengthDurationMs", "slidingIntervalDurationMs")


def updated(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a FunctionConfig with the fields that an update gives: None takes a field away, all else replaces it.

    Of `resources`, `windowConfig`, `inputSpecs`, `customSerdeInputs`, `customSchemaInputs` and `customSchemaOutputs`
    only the fields within are replaced. A new length of windows by count takes the fields of windows by time away, and
    the other way round.
    """
    merged = {**config, **given}
    for name in _BY_FIELD & given.keys():
        if isinstance(merged[name], Mapping):
            merged[name] = _within(config.get(name), merged[name])
    return {name: value for name, value in merged.items() if value is not None}


def _within(there: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    inner = dict(there) if isinstance(there, Mapping) else {}
    for length, others in ((_OF_COUNT[0], _OF_TIME), (_OF_TIME[0], _OF_COUNT)):
        if given.get(length) is not None:
            inner = {name: value for name, value in inner.items() if name not in others}
    return {name: value for name, value in {**inner, **given}.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Assignment(_RecordJson):
    """The worker that runs an instance, and the partitions on which the instance runs."""

    worker: str
    revision: int
    """The revision that `Definition.runs` returns for the instance."""
    partitions: tuple[TopicPartition, ...]
    number: int
    """That of the instance."""


@dataclass(frozen=True, kw_only=True)
class Request(_RecordJson):
    """A request of somebody to the leader."""

    id: str
    kind: Kind
    fqfn: str = ""
    """The subject of the request: the full name of a function, or the result of `mesh_key` for a mesh."""
    expects: int | None = None
    """The revision that the definition has by then; None if there is none."""
    config: Mapping[str, Any] | None = None
    package: str = ""
    package_name: str = ""
    instance: int | None = None
    """None means all."""
    mesh: WantedMesh | None = None
    part: str = ""
    """For a mesh: what it is to be, and which part is to start anew; no part means all."""
    worker: str = ""
    """The worker that is to be drained, or to be drained no more."""
    by: str = ""
    at_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class LeaderAnswer(_RecordJson):
    """The outcome of a request. `status` is one of HTTP: below 300 the request won."""

    request: str
    status: int
    reason: str = ""
    revision: int | None = None
    """That of the definition from then on; None if there is none."""
    offset: int = NOT_YET
    """That of the request."""

    @property
    def won(self) -> bool:
        """True if the leader has granted the request, so that it took effect."""
        return self.status < 300


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that lives."""

    worker_id: str
    host: str
    port: int
    """Host and port are where it says that it is asked."""
    is_leader: bool = False
    machine: str = ""
    """The host from which the worker is connected, as the server sees it; empty if that is not known."""

    @property
    def runs_instances(self) -> bool:
        """True if the process runs instances. One that may only lead has no port, and is not asked."""
        return self.port != 0

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return str(Address(self.host, self.port))

    def client_id(self) -> str:
        """Return the client id by which the other workers know this one."""
        return f"{self.worker_id}@{self.host}:{self.port}"

    @classmethod
    def of_client_id(cls, client_id: str, *, is_leader: bool = False, machine: str = "") -> WorkerInfo | None:
        """Return the worker that has a client id; None if it is no worker's."""
        match = _CLIENT_ID.fullmatch(client_id)
        return None if match is None else cls(match[1], match[2], int(match[3]), is_leader, machine)


def out_of_reach(me: WorkerInfo, workers: Iterable[WorkerInfo]) -> str | None:
    """Return why others cannot ask a worker at the address that it announces: it is this machine's alone, or another
    worker's, too. None if nothing speaks against it.
    """
    workers = tuple(workers)
    here = {worker.machine for worker in workers if worker.worker_id == me.worker_id}
    for other in workers:
        if other.worker_id == me.worker_id:
            continue
        if is_loopback(me.host) and here and other.machine and other.machine not in here:
            return (
                f"let the others reach this worker, by --listen, --token-file and --advertise HOST:PORT: it announces "
                f"{me.address}, and {other.worker_id} is on another machine ({other.machine})"
            )
        if (other.host, other.port) == (me.host, me.port):
            return f"announce another address, by --advertise HOST:PORT: {other.worker_id} announces {me.address}, too"
    return None


def is_worker_id(text: str) -> bool:
    """Return if a text may be the id of a worker."""
    return _WORKER_ID.fullmatch(text) is not None


# -- records: keys, and the two kinds of values that the topic of requests has


def instance_key(name: InstanceName) -> bytes:
    """Return the key of an assignment: TENANT/NAMESPACE/NAME/INSTANCE."""
    return f"{name[0]}/{name[1]}".encode()


def instance_of(key: bytes | None) -> InstanceName:
    """Return the instance that a key of an assignment names. DamagedRecordError if it names none."""
    fqfn, _, number = text_of(key).rpartition("/")
    if not fqfn or not number.isdecimal():
        raise DamagedRecordError(f"the key {key!r} is not TENANT/NAMESPACE/NAME/INSTANCE")
    return fqfn, int(number)


def text_of(key: bytes | None) -> str:
    """Return a key as text, empty for None. DamagedRecordError if it is no UTF-8."""
    try:
        return (key or b"").decode()
    except UnicodeDecodeError:
        raise DamagedRecordError(f"the key {key!r} is no text") from None


def to_log(said: Request | LeaderAnswer) -> bytes:
    """Return the value that a request or an answer has in the topic of requests."""
    name = b"request" if isinstance(said, Request) else b"answer"
    return b'{"%s":%s}' % (name, said.to_json())


def from_log(value: bytes | None) -> Request | LeaderAnswer:
    """Return the request or the answer that a record's value holds. DamagedRecordError if it is neither."""
    try:
        read = from_json(value or b"")
    except ValueError as error:
        raise DamagedRecordError(f"no JSON: {error}") from None
    kinds: dict[str, type[Request | LeaderAnswer]] = {"request": Request, "answer": LeaderAnswer}
    for name, kind in kinds.items():
        if isinstance(read, dict) and name in read:
            try:
                said: Request | LeaderAnswer = _adapter(kind).validate_python(read[name])
            except ValidationError as error:
                raise DamagedRecordError(f"{name}.{_mistake(error)}") from None
            return said
    raise DamagedRecordError("neither a request nor an answer")
