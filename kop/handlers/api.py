"""The declaration of a served API, and the context that its handler gets with each request.

Owns: `Api` with its traits, the request's `Context`, the client's `ConnectionInfo`, and the two ways of a handler to
answer. A handler module holds functions `name(gw, ctx, request)` that check, ask and shape, and a tuple `APIS` of
`Api`. A handler returns the response, or an `Answer` if it has to wait. A coroutine function is one that always waits:
the pipeline wraps it once, where its API is registered.
Must not know: sockets, engines, the gateway that handlers ask (`gateway.py`).

The traits are all that the request pipeline (`kop.server.request`) and the connection know of an API: neither of them
compares API keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from kop.coordination.peers import broker_of
from kop.errors import ErrorCode, KopError, PeerError
from kop.handlers.access import ANONYMOUS, AccessControl, Need
from kop.handlers.cold_reads import ColdReads
from kop.metrics import Latencies
from kop.security.login import Login
from kop.security.rights import CLUSTER_NAME, AclOperation, ResourceType
from kop.security.tenants import HOME, Space
from kop.security.throttling import Meter
from kop.storage.base import TopicInfo
from kop.wire.primitives import NO_TAGS
from kop.wire.rows import Response

NONE: Final = ErrorCode.NONE
CLUSTER_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
LARGEST_REQUEST: Final = 16 * 1024 * 1024
"""The largest size, in bytes, of a request whose API declares no other limit. Decoding one costs many times its size;
no client comes near.
"""
UNLIMITED: Final = 2**63 - 1
"""The value of `Api.largest` that leaves socket.request.max.bytes as the only limit of a request's size."""


@dataclass(slots=True)
class ConnectionInfo:
    """The client of a connection as handlers know it: addresses, principal, software."""

    client_host: str
    """The peer's address, without its port."""
    local_host: str
    """The address of this machine that the client connected to, which a listener on all addresses advertises."""
    local_port: int
    advertised: tuple[str, int] | None = None
    """The host and port by which `--advertise` names this listener to clients, or None; with an empty host only the
    port.
    """
    principal: str = ANONYMOUS
    """The client's name for rights, as `User:NAME`."""
    software_name: str = ""
    """The name of the client's software as the client tells it, from ApiVersions 3 on (KIP-511)."""
    software_version: str = ""
    listener: str = ""
    """The name of the listener that the client came by; empty in the short form of listeners."""
    login: Login | None = None
    """The client's login while it has not ended; None if the client may ask for everything else."""
    session: Login | None = None
    """The login of a client that has logged in and has to do so again in time; None if it need not."""
    needed_login: bool = False
    """True if the listener asks its clients to log in."""
    is_by_token: bool = False
    """True if the client has logged in by a delegation token."""
    space: Space = HOME
    """The space of names in which the client works."""
    is_by_claim: bool = False
    """True if the client is of its space by more than its principal."""
    is_valid: Callable[[], bool] | None = None
    """Returns false once the login would not succeed any more; None if there was none."""
    cold_reads: ColdReads | None = None
    """The reads from storage that the connection's Fetches began; None before the first."""
    meter: Meter | None = None
    """The quota use of the request that is being started; None if its client has no quotas."""

    @property
    def broker_address(self) -> tuple[str, int]:
        """The host and port under which this client is told of this broker."""
        if self.advertised is None:
            return self.local_host, self.local_port
        host, port = self.advertised
        return host or self.local_host, port


@dataclass(slots=True)
class Context:
    """The context of one request: its client, version and time, and the ways to resolve names and rights."""

    api_key: int
    version: int
    client_id: str | None
    now_ms: int
    """The wall clock's time at the request's arrival, in ms since the epoch."""
    conn: ConnectionInfo
    access: AccessControl
    """The access control, which resolves the names in the request and decides what its client may do."""
    correlation_id: int = 0
    """The request's correlation id, for handlers that encode their own frames."""
    owned: bool = False
    """True if the request's memory is its own and may be kept; else what is kept of it must be copied."""
    request_tags: Mapping[int, bytes] | None = None
    """Tagged fields of the request's header, for APIs that read them (`Api.reads_tags`); None for all others."""
    meter: Meter | None = None
    """The request's use of the quotas that hold for its client; None if none do."""
    header_tags: bytes = NO_TAGS
    """Tagged fields for the header of the answer, encoded: what brokers tell one another beyond Kafka's schemas."""

    def change_partitions(self, count: int, strict_from: int | None = None) -> None:
        """Count partitions that the request makes or deletes in the client's quota of them, if it has one; a client
        that takes too many is held after the answer. From version `strict_from` of the API on, raise PeerError
        (THROTTLING_QUOTA_EXCEEDED) instead, with nothing counted, if it has taken too many before.
        """
        strict = strict_from is not None and self.version >= strict_from
        if self.meter is not None and not self.meter.mutate(count, strict=strict):
            raise PeerError("The throttling quota has been exceeded.", ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    def response(self, **fields: Any) -> Response:
        """Return a response to the request's API in its version with these fields, by the schema's names; nested rows
        are dicts.
        """
        return Response(self.api_key, self.version, fields)

    def topic(self, name_or_id: str | UUID | None, operation: AclOperation | None) -> TopicInfo | ErrorCode:
        """Return the topic that a request names, or Kafka's error: not authorized, which is audited, or no such topic.

        A `name_or_id` of None is the id of zeros, which no topic has. `operation` is None if another right than one to
        the topic decides.
        """
        if name_or_id is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return self.access.topic(self.conn, name_or_id, operation)

    def group(self, group_id: str, operation: AclOperation) -> ErrorCode:
        """Return NONE if the client may do this operation on a group, else GROUP_AUTHORIZATION_FAILED, or
        COORDINATOR_NOT_AVAILABLE while Pulsar's grants decide and are not known. A denial is audited.
        """
        return NONE if self.access.is_open else self._decide(operation, ResourceType.GROUP, group_id)

    def transactional_id(self, transactional_id: str, operation: AclOperation) -> ErrorCode:
        """Return NONE if the client may do this operation on a transactional id, else
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, or COORDINATOR_NOT_AVAILABLE while Pulsar's grants decide and are not
        known. A denial is audited.
        """
        return self._decide(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def user(self, principal: str, operation: AclOperation) -> ErrorCode:
        """Return NONE if the client may do this operation on a user, else DELEGATION_TOKEN_AUTHORIZATION_FAILED. A
        denial is audited.
        """
        return self._decide(operation, ResourceType.USER, principal)

    def cluster(self, operation: AclOperation) -> ErrorCode:
        """Return NONE if the client may do this operation on the cluster, else CLUSTER_AUTHORIZATION_FAILED. A denial
        is audited.
        """
        return NONE if self.access.allows(self.conn, operation, ResourceType.CLUSTER) else CLUSTER_REFUSED

    @property
    def namespace_name(self) -> str:
        """The name that stands in rights for the client's namespace as a whole: that of the cluster, behind the
        namespace of a tenant.
        """
        return self.conn.space.inward(CLUSTER_NAME)

    def namespace(self, operation: AclOperation) -> ErrorCode:
        """Return NONE if the client may do this operation on its namespace as a whole, else
        CLUSTER_AUTHORIZATION_FAILED. To clients of the home space that is the cluster. A denial is audited.
        """
        allowed = self.access.allows(self.conn, operation, ResourceType.CLUSTER, self.namespace_name)
        return NONE if allowed else CLUSTER_REFUSED

    @property
    def cluster_denial(self) -> str:
        """The text of CLUSTER_AUTHORIZATION_FAILED for this client, to whom the cluster may be a tenant's namespace."""
        space = self.conn.space
        more = (
            ""
            if space.is_home
            else f" To clients of {space.name} the cluster is that namespace; the rest is for super users."
        )
        return f"Cluster authorization failed.{more}"

    def may(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return true if the client may do this operation, without an audit; see `AccessControl.may`."""
        return self.access.may(self.conn, operation, resource, name)

    def asking_broker(self) -> int | None:
        """Return the id of the broker that sent the request, as its client id says; None for any other client, also one
        with such a client id that lacks the right CLUSTER_ACTION.
        """
        return broker_that_asks(self.access, self.conn, self.client_id)

    def may_create(self, name: str) -> bool:
        """Return true if the client may make a topic of that name, by its right to the cluster or to the topic. A
        denial is audited.
        """
        by_whole = self.may_by_whole(AclOperation.CREATE, self.canonical_name(name))
        return by_whole or self.access.allows(self.conn, AclOperation.CREATE, ResourceType.TOPIC, name)

    def may_by_whole(self, operation: AclOperation, name: str) -> bool:
        """Return true if the client may do this operation on the topic or group with that stored name by its right to
        the cluster, or, if it is of a tenant, to the tenant's whole namespace. A right to the cluster does not reach
        into namespaces of tenants, unless a super user has it.
        """
        space = self.conn.space
        if not self.access.may(self.conn, operation, ResourceType.CLUSTER, self.namespace_name):
            return False
        return name.startswith(space.prefix) and (not space.is_home or self.access.reaches(self.conn, name))

    def listed(self) -> Sequence[TopicInfo]:
        """Return the topics for a client that asks for all, before its rights are looked at: those of its space of
        names, for super users those of all spaces.
        """
        return self.access.listed(self.conn)

    def visible(
        self, topics: Iterable[TopicInfo], operation: AclOperation = AclOperation.DESCRIBE
    ) -> Sequence[TopicInfo]:
        """Return those of `topics` on which the client may do this operation, so that it may know of them. BackendError
        while it is not known, because Pulsar's grants decide and cannot be read.
        """
        return self.access.visible(self.conn, topics, operation)

    def operations(self, resource: ResourceType, name: str, *, asked: bool) -> Set[int] | None:
        """Return the codes of all operations that the client may do on a resource (KIP-430); None if the request does
        not ask.
        """
        return self.access.operations(self.conn, resource, name) if asked else None

    def is_legal(self, name: str) -> bool:
        """Return true if the name is legal for a new topic."""
        return self.access.is_legal(name)

    def canonical_name(self, name: str) -> str:
        """Return the shortest of a topic's names, under which all that belongs to the topic is kept."""
        return self.access.canonical_name(name)

    def _decide(self, operation: AclOperation, resource: ResourceType, name: str) -> ErrorCode:
        access = self.access
        allowed = access.is_open or access.allows(self.conn, operation, resource, name)
        return NONE if allowed else access.refusal(resource, name)


def broker_that_asks(access: AccessControl, conn: ConnectionInfo, client_id: str | None) -> int | None:
    """Return the id of the broker that a request is from, as its client id says; None for any other client, also one
    with such a client id that lacks the right CLUSTER_ACTION.
    """
    broker = broker_of(client_id)
    if broker is None or not access.may(conn, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return None
    return broker


def error_fields(error: KopError | None, no_error: str | None = None) -> dict[str, Any]:
    """Return the fields of a row that tell an error: its code and its text, or 0 and `no_error` if there is none."""
    if error is None:
        return dict(error_code=0, error_message=no_error)
    return dict(error_code=error.code, error_message=error.message)


class AnswerTaker(Protocol):
    """An object that is told of each answer that is ready; the connection is one."""

    def answered(self, answer: Answer) -> None:
        """Remember that the answer is ready, and do nothing else: engines call this while they tell other waiters,
        too.
        """


class Answer:
    """The answer to one request, now or later.

    A handler of an API that overlaps makes it where it has to wait, and gives the frame once it is there: its own class
    derives from this one, so that a request in flight is one object.
    """

    __slots__ = ("error", "frame", "latencies", "ready", "request_bytes", "started", "taker", "waiting")

    alone = False
    """True if nothing that comes behind the request on its connection is started before it is answered."""
    latencies: Latencies
    """The histogram in which the request's duration is counted; the pipeline sets it."""
    started: float
    """The time of the request's arrival, by `clock.perf_counter`; the pipeline sets it."""

    def __init__(self) -> None:
        self.ready = False
        self.frame: Frame | None = None
        """The encoded answer; None before it is there, and if the client expects none."""
        self.error: BaseException | None = None
        """The error for which the connection is closed: behind `frame` if there is one, else instead of an answer."""
        self.taker: AnswerTaker | None = None
        """The connection that takes the answer; None if nobody waits, also after the connection is gone."""
        self.waiting: asyncio.Future[Any] | None = None
        """The future that the answer waits for, to be cancelled if the connection goes; None if nothing has to be."""
        self.request_bytes = 0

    def give(self, frame: Frame | None) -> None:
        """Set the encoded answer, None if the client expects none, and tell the connection that waits for it, if one
        does.
        """
        self.ready = True
        self.frame = frame
        if self.taker is not None:
            self.taker.answered(self)

    def refuse(self, error: BaseException) -> None:
        """Set the error for which the connection is to be closed, with one log line, since no answer is possible; then
        tell the connection.
        """
        self.error = error
        self.give(None)


class Later(Answer):
    """The answer to a request whose result comes later by a callback: that calls `end` exactly once.

    The callback may do so only after the handler has returned this. An error as the result is that of the request.
    """

    __slots__ = ("take",)

    alone = True
    take: Callable[[Later, Any], None]
    """The function that makes the answer of the handler's result. The pipeline sets it."""

    def end(self, result: Any) -> None:
        """Make the answer from the handler's result, or from the exception with which it ended, and give it."""
        self.take(self, result)

    def follow(self, future: asyncio.Future[Any], shape: Callable[[Any], Any] = lambda result: result) -> Later:
        """Give the answer made by `shape` of a future's result, or the answer for the future's error, once it is there;
        return this object at once. If the connection ends, the future is cancelled.
        """
        self.waiting = future

        def finish(done: asyncio.Future[Any]) -> None:
            self.waiting = None
            if done.cancelled():
                self.end(asyncio.CancelledError())
            elif (error := done.exception()) is not None:
                self.end(error)
            else:
                self.end(shape(done.result()))

        future.add_done_callback(finish)
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the handler's result and return it, or raise the exception with which it ended: for a handler that
        was called for a part of another request. If the wait is cancelled, so is what the handler waits for.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.take = lambda later, result: None if future.done() else _resolve(future, result)
        try:
            return (yield from future)
        except asyncio.CancelledError:
            if self.waiting is not None:
                self.waiting.cancel()
            raise


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


class InTask(Later):
    """The answer to a request that is handled by a coroutine. The pipeline runs it as a task."""

    __slots__ = ("work",)

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        super().__init__()
        self.work = work
        """The coroutine of the handler; it returns the handler's result."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Run the handler's coroutine and return its result: for a handler that was called for a part of another
        request.
        """
        return self.work.__await__()


Handler: TypeAlias = Callable[[Any, Context, Any], Any]
"""The type of a handler: a function of the `Gateway`, the request's context and the decoded request."""
Frame: TypeAlias = "Sequence[bytes | bytearray | memoryview]"
"""The type of an encoded response, its size included, as buffers to be written one after the other."""


def undecoded(body: memoryview, version: int) -> memoryview:
    """Return the body of a request as it is: the `Api.decode` of an API whose handler reads the body itself."""
    return body


@dataclass(frozen=True, slots=True)
class Api:
    """An API that is served: its key, versions, handler and traits. The registry is made of these."""

    key: int
    min_version: int
    max_version: int
    handler: Handler
    needs: tuple[Need, ...] = ()
    """The rights that a request needs. Empty: every client may send it."""
    finds: bool = True
    """True if topics of other namespaces that the request names are looked for before the handler runs."""
    tells_of_groups: bool = False
    """True if the handler tells of the groups in the request from memory, so that storage is asked first if it is in
    doubt who coordinates one of them.
    """
    decode: Callable[[memoryview, int], Any] | None = None
    """The function that makes the request of the body and the version, for APIs that the codec does not decode. Its
    result may keep views into the body.
    """
    encode: Callable[[int, int, Any], tuple[set[int], bytes]] | None = None
    """The function that makes the frame of the correlation id, the version and the handler's result, for APIs that the
    codec does not encode; it also returns the error codes in the result.
    """
    encodes: bool = False
    """True if the handler's result is a `Frame`, or None if the client expects no answer."""
    refused_from: int | None = None
    """The lowest version that is advertised and given to the handler, which refuses it and all below `min_version`;
    None if no such versions are advertised.
    """
    other_version: Callable[[], Any] | None = None
    """The function that makes the answer to a version that is not served; None to close the connection instead."""
    rows: tuple[str, str] | None = None
    """The name of the list in the request of which every item is answered by itself, and that of the list of these
    answers.

    A long one is handled in parts, so that other clients have their turn; an error of one part that is not of an item
    is that of the whole request. Not for APIs whose handler `encodes`.
    """
    long_answer: bool = False
    """True if a short request may have a long answer, so that each is encoded in a thread, as that to a large request
    is. Not for APIs whose handler `encodes`.
    """
    slack: int = 0
    """The number of bytes that a known client sends behind the end of the body; Kafka never looks there. For the codec
    only.
    """
    largest: int = LARGEST_REQUEST
    """The size in bytes of the largest request that is accepted."""
    produces: bool = False
    """True if the size of a request counts as bytes that its client produces (producer_byte_rate)."""
    overlaps: bool = False
    """True if further requests of this API on a connection may be started while one waits. Any other request waits
    until those before it are answered.
    """
    long_poll: bool = False
    """True if the request waits for what other clients do, as long as its client wishes, so that nobody waits for its
    end.
    """
    reads_tags: bool = False
    """True if the handler reads tagged fields of the request's header. For APIs whose versions are all flexible."""
    reads: Callable[[Any], int] | None = None
    """A function that returns about how many bytes the handler may read from storage for a request; the sum over all
    requests is bounded.
    """

    @property
    def advertised_min(self) -> int:
        """The oldest version that ApiVersions names."""
        return self.min_version if self.refused_from is None else self.refused_from
