"""The access of requests: the rights that they need, and the topics that their names stand for, decided here alone.

Owns: the order of the decision (canonical name or id, permission, existence, legality), the hook of an authorizer, and
the rows by which an API declares the rights that it needs.
Must not know: requests, answers, who keeps the rights (the authorizer does), where the audit goes.

Without an authorizer everything is allowed. Rights, resources and error codes are Kafka's (KIP-11, KIP-290): a topic
that a client may not see is TOPIC_AUTHORIZATION_FAILED, existing or not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeGuard
from uuid import UUID

from kop import clock
from kop.cluster.client_topics import ClientTopics
from kop.errors import ErrorCode, KopError
from kop.repeats import Repeats
from kop.security.audit import Audit, Peer
from kop.security.grants import GrantsAuthorizer
from kop.security.rights import CLUSTER_NAME, AclOperation, ResourceType
from kop.security.tenants import Space, prefix_of
from kop.storage.base import TopicInfo

log = logging.getLogger(__name__)

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that has not authenticated."""


_Op: TypeAlias = AclOperation
REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error code with which access to a resource is refused, by the resource's type."""
_NOT_KNOWN: Final = {
    ResourceType.TOPIC: ErrorCode.KAFKA_STORAGE_ERROR,
    ResourceType.GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The error codes of refusals as long as the grants that decide are not known: those of a storage that is away."""
OPERATIONS: Final = {
    ResourceType.TOPIC: frozenset(
        {_Op.READ, _Op.WRITE, _Op.CREATE, _Op.DELETE, _Op.ALTER, _Op.DESCRIBE, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS}
    ),
    ResourceType.GROUP: frozenset({_Op.READ, _Op.DELETE, _Op.DESCRIBE, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS}),
    ResourceType.CLUSTER: frozenset(
        {
            *(_Op.CREATE, _Op.ALTER, _Op.DESCRIBE, _Op.CLUSTER_ACTION, _Op.DESCRIBE_CONFIGS),
            *(_Op.ALTER_CONFIGS, _Op.IDEMPOTENT_WRITE),
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({_Op.DESCRIBE, _Op.WRITE}),
    ResourceType.DELEGATION_TOKEN: frozenset({_Op.DESCRIBE}),
    ResourceType.USER: frozenset({_Op.CREATE_TOKENS, _Op.DESCRIBE_TOKENS}),
}
"""The operations that rights can be given for, by the type of the resource."""
_OF_CLUSTER_OR_TOPIC: Final = {_Op.CREATE, _Op.DELETE}
"""The operations on topics that a right to the cluster allows as well as one to the topic."""


class Authorizer(Protocol):
    """An authorizer: it decides who may do what, and answers at once, so what it has to read is read beforehand."""

    @property
    def version(self) -> int:
        """A number that grows with each change of what is allowed."""

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Return true if the principal, connected from `host`, may do this operation on the resource of that name."""

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return true if there may be a resource of the type on which the principal, connected from `host`, may do this
        operation.
        """

    def rule(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str | None) -> str:
        """Return the rule by which `allows` decides, or `allows_any` if `name` is None, as text for the audit."""

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        """Return the reason for which the principal cannot belong to `space`, which is not the home space; empty if it
        can. Unless it is `proven` (by its credentials, or by rules) that it belongs there, it needs some right in it.
        """


def _is_of_brokers(peer: Peer, resource: ResourceType, name: str | None) -> bool:
    """Return true if a client of a tenant asks for a right to the whole cluster, which no right of a tenant can give.
    To clients of a tenant their own namespace stands for the cluster; in rights it has another name
    (`Context.namespace_name`), so for that the result is false.
    """
    return resource is ResourceType.CLUSTER and name == CLUSTER_NAME and not peer.space.is_home


def is_refusal(topic: TopicInfo | ErrorCode | int) -> TypeGuard[ErrorCode]:
    """Return true if `topic`, a result of `AccessControl.topic`, is the error that access is refused, or that it cannot
    be decided yet, so that the client is told nothing of the topic. For a topic, and for all other errors, the result
    is false.
    """
    return topic is ErrorCode.TOPIC_AUTHORIZATION_FAILED or topic is _NOT_KNOWN[ResourceType.TOPIC]


class Need(NamedTuple):
    """A right that requests of an API need, as a row of Kafka's table of APIs, operations and resources."""

    operation: AclOperation | None
    """The operation that the right is for; None if the names need no right of their own, and only have to be found."""
    resource: ResourceType
    names: Callable[[Any], Iterable[Any]] | None = None
    """A function that returns the names, or ids, in a decoded request. None if the right is one to the cluster, or to
    what the request does not name.
    """
    whole: bool = False
    """True if the refusal of one name refuses the whole request: then the request pipeline answers it. Else the handler
    decides name by name.
    """


def named_group(request: Any) -> Iterable[str]:
    """Return the one group that a request names, for a `Need`."""
    return (request.group_id,)


def named_transactional_id(request: Any) -> Iterable[str]:
    """Return the one transactional id that a request names, for a `Need`."""
    return (request.transactional_id,)


def named_topics(request: Any) -> Iterable[str]:
    """Return the names of the topics in a request, for a `Need`."""
    return [topic.name for topic in request.topics]


class AccessControl:
    """The access control of one gateway: it resolves the names in requests and decides what their clients may do."""

    def __init__(
        self, topics: ClientTopics, audit: Audit, super_users: Set[str] = frozenset(), *, has_tenants: bool = False
    ) -> None:
        """`super_users` are principals that may do everything. `has_tenants`: clients may belong to tenants."""
        self._has_tenants = has_tenants
        self._topics = topics
        self._audit = audit
        self._super_users = super_users
        self.canonical_name = topics.canonical_name
        """The function that returns the shortest of a topic's names, under which everything is kept that belongs to the
        topic.
        """
        self.is_open = True
        """True if there is no authorizer, so that everything is allowed."""
        self.decides_each_time = False
        """True if no decision may be kept by whoever asked for it, since each is audited."""
        self._authorizer: Authorizer | None = None
        self._grants: GrantsAuthorizer | None = None
        self._replaced = 0
        self._lines = Repeats()

    @property
    def authorizer(self) -> Authorizer | None:
        """The authorizer in force. None allows everything."""
        return self._authorizer

    @authorizer.setter
    def authorizer(self, authorizer: Authorizer | None) -> None:
        self._authorizer = authorizer
        self._grants = authorizer if isinstance(authorizer, GrantsAuthorizer) else None
        self.is_open = authorizer is None
        self.decides_each_time = authorizer is not None and self._audit.tells_allowed
        self._replaced += 1

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with every change of what is allowed, a key for caches."""
        authorizer = self._authorizer
        return self._replaced, -1 if authorizer is None else authorizer.version

    def who(self, peer: Peer) -> Hashable:
        """Return a key that is the same for all clients with the same rights and names as `peer`, by which a cache may
        share entries.
        """
        space = peer.space
        if self._authorizer is None:
            return space if space.prefix else None
        return (peer.principal, peer.client_host, space) if space.prefix else (peer.principal, peer.client_host)

    def allows(self, peer: Peer, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return true if the client may do this operation on the resource; a topic may be given by any of its names.
        Without an authorizer it always may.

        A denial is written to the audit (if so set, what is allowed, too), so the caller has to refuse what is not
        allowed. For all other questions there is `may`.
        """
        authorizer = self._authorizer
        if authorizer is None:
            return True
        if resource is ResourceType.TOPIC:
            name = self._topics.canonical_name(name)
        allowed = not _is_of_brokers(peer, resource, name) and authorizer.allows(
            peer.principal, peer.client_host, operation, resource, name
        )
        if not allowed or self._audit.tells_allowed:
            self._tell(authorizer, allowed, peer, operation, resource, name)
        return allowed

    def may(self, peer: Peer, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return true if `allows` would, without an audit: for resources that are left out of an answer, for one of
        several rights that suffice, and for decisions that are made again.
        """
        authorizer = self._authorizer
        if authorizer is None:
            return True
        if resource is ResourceType.TOPIC:
            name = self._topics.canonical_name(name)
        return not _is_of_brokers(peer, resource, name) and authorizer.allows(
            peer.principal, peer.client_host, operation, resource, name
        )

    def may_any(self, peer: Peer, operation: AclOperation, resource: ResourceType) -> bool:
        """Return true if the client may do this operation on some resource of the type. A denial is not audited; what
        is allowed is, if the audit is set to tell of that.
        """
        authorizer = self._authorizer
        if authorizer is None:
            return True
        allowed = authorizer.allows_any(peer.principal, peer.client_host, operation, resource)
        if allowed and self._audit.tells_allowed:
            self._tell(authorizer, allowed, peer, operation, resource, None)
        return allowed

    def _tell(
        self,
        authorizer: Authorizer,
        allowed: bool,
        peer: Peer,
        operation: AclOperation,
        resource: ResourceType,
        name: str | None,
    ) -> None:
        rule = partial(authorizer.rule, peer.principal, peer.client_host, operation, resource, name)
        if _is_of_brokers(peer, resource, name):
            rule = partial(str, "what concerns brokers is for super users alone")
        self._audit.decided(allowed, peer, operation.name, resource.name, name, rule)

    def logged_in(self, principal: str) -> None:
        """Log a warning, now and then if it happens again, if a client that has logged in is not a super user only
        because its name differs from one's in upper and lower case.
        """
        if self.is_open or principal in self._super_users:
            return
        for name in self._super_users:
            if name.casefold() == principal.casefold() and self._lines.say(name, clock.monotonic()) is not None:
                log.warning(
                    "%r has logged in, who is no super user: super.users has %r, and names are told apart by case",
                    principal,
                    name,
                )

    def changes_user(self, peer: Peer, name: str) -> bool:
        """Return true if the client, which has the right to change users, may change the user `name`: a super user is
        changed by super users alone. If it may not, write the denial to the audit.
        """
        if self.is_open or f"User:{name}" not in self._super_users or peer.principal in self._super_users:
            return True
        self._audit.denied(peer, AclOperation.ALTER.name, "USER", name, "super users are changed by super users alone")
        return False

    def refusal(self, resource: ResourceType, name: str = CLUSTER_NAME) -> ErrorCode:
        """Return the error code for a client to which `allows` has refused the resource. While Pulsar's grants that
        decide about a topic, a group or a transactional id are not known, it is one after which clients try again.
        """
        grants = self._grants
        if grants is None or resource not in _NOT_KNOWN:
            return REFUSALS[resource]
        if resource is ResourceType.TOPIC:
            name = self._topics.canonical_name(name)
        return REFUSALS[resource] if grants.knows(resource, name) else _NOT_KNOWN[resource]

    def check_known(self, peer: Peer, resource: ResourceType) -> None:
        """Raise BackendError while Pulsar's grants in the client's namespace are to decide and are not known: a list
        that leaves out the resources of this type which the client may not see would be wrong then.
        """
        if self._grants is not None:
            self._grants.check_known(peer.principal, _NOT_KNOWN[resource], peer.space.name)

    def unread(self, needs: Iterable[Need], request: Any) -> Collection[str]:
        """Return the Pulsar namespaces in names of the request whose grants have to be read, by `read`, before anything
        is decided; none if Pulsar's grants do not decide. The grants in spaces of tenants are read all the time, so
        those are left out.
        """
        grants, canonical = self._grants, self._topics.canonical_name
        if grants is None:
            return ()
        names = [
            (resource, canonical(name) if resource is ResourceType.TOPIC else name)
            for _, resource, names, _ in needs
            if names is not None
            for name in names(request)
            if isinstance(name, str) and "/" in name
        ]
        return grants.unread(names) if names else ()

    def reaches(self, peer: Peer, name: str) -> bool:
        """Return true if a right to the whole cluster, which the client has, covers the resource with that stored name:
        for all but super users it does not cover what is of a tenant's namespace.
        """
        return not self._has_tenants or peer.principal in self._super_users or not prefix_of(name)

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        """Return the reason for which a client cannot belong to a space; empty if it can, as always without an
        authorizer. Unless it is `proven` (by its credentials, or by rules) that it belongs there, it needs some right
        in it.
        """
        authorizer = self._authorizer
        if authorizer is None or space.is_home:
            return ""
        return await authorizer.enter(principal, space, proven=proven)

    def follow(self, space: Space) -> None:
        """Read Pulsar's grants in a tenant's space again and again from now on; do nothing if they do not decide, or
        for the home space.
        """
        if self._grants is not None and not space.is_home:
            self._grants.follow(space)

    async def read(self, namespaces: Collection[str]) -> None:
        """Read Pulsar's grants of these namespaces; do nothing if they do not decide. Those that cannot be read stay
        unknown.
        """
        if self._grants is not None and namespaces:
            await self._grants.read(namespaces)

    def check(self, peer: Peer, needs: Iterable[Need], request: Any) -> None:
        """Raise KopError for the first of `needs` that the client lacks for one of the names that it has in the
        request, or for the cluster if it has none. For needs that refuse the whole request; a denial is audited.
        """
        for operation, resource, names, _ in needs:
            for name in (CLUSTER_NAME,) if names is None else names(request):
                if operation is not None and name is not None and not self.allows(peer, operation, resource, name):
                    raise KopError(f"{resource.name} {name}: {operation.name} is denied", self.refusal(resource, name))

    def topic(self, peer: Peer, name_or_id: str | UUID, operation: AclOperation | None) -> TopicInfo | ErrorCode:
        """Return the topic under the name that the client uses, or the error code: not authorized (which is audited),
        or no such topic. The id of a topic of another space than the client's is unknown.

        `operation` is the one that the client needs a right for; None if another right than one to the topic decides.
        """
        topics = self._topics
        if self._authorizer is None:
            operation = None
        if isinstance(name_or_id, str):
            if operation is not None and not self.allows(peer, operation, ResourceType.TOPIC, name_or_id):
                return self.refusal(ResourceType.TOPIC, name_or_id)
            return topics.get(name_or_id) or topics.missing(name_or_id)
        topic = topics.by_id(name_or_id)
        if topic is None or not topic.name.startswith(peer.space.prefix):
            return ErrorCode.UNKNOWN_TOPIC_ID
        if operation is not None and not self.allows(peer, operation, ResourceType.TOPIC, topic.name):
            return self.refusal(ResourceType.TOPIC, topic.name)
        return topic

    def is_legal(self, name: str) -> bool:
        """Return true if the name is legal for a new topic."""
        try:
            self._topics.check_name(name)
        except KopError:
            return False
        return True

    def names_to_find(self, peer: Peer, needs: Iterable[Need], request: Any) -> Sequence[str]:
        """Return the names in the request that may be topics of other Pulsar namespaces, which storage has to look for
        before `topic` can say that there are none. Names to which the client lacks the right are left out.
        """
        if not self._topics.has_namespaces:
            return ()
        names = {
            name
            for need in needs
            if need.names is not None
            for name in need.names(request)
            if isinstance(name, str) and "/" in name
            if self._may_look(peer, need.operation, name)
        }
        return list(self._topics.names_to_find(names)) if names else ()

    def _may_look(self, peer: Peer, operation: AclOperation | None, name: str) -> bool:
        if operation is None or self.may(peer, operation, ResourceType.TOPIC, name):
            return True
        return operation in _OF_CLUSTER_OR_TOPIC and self.may(peer, operation, ResourceType.CLUSTER)

    def listed(self, peer: Peer) -> Sequence[TopicInfo]:
        """Return the topics for a client that asks for all, before its rights are looked at: those of its space, for
        super users those of all spaces.
        """
        return self._topics.listed(peer.space.prefix, everywhere=peer.principal in self._super_users)

    def visible(self, peer: Peer, topics: Iterable[TopicInfo], operation: AclOperation) -> Sequence[TopicInfo]:
        """Return those of `topics` on which the client may do this operation, so that it may know of them. BackendError
        while it is not known, because Pulsar's grants decide and cannot be read.
        """
        if self._authorizer is None:
            return list(topics)
        self.check_known(peer, ResourceType.TOPIC)
        return [topic for topic in topics if self.may(peer, operation, ResourceType.TOPIC, topic.name)]

    def operations(self, peer: Peer, resource: ResourceType, name: str = CLUSTER_NAME) -> Set[int]:
        """Return the codes of all operations that the client may do on a resource (KIP-430)."""
        operations = OPERATIONS[resource]
        if self._authorizer is None:
            return operations
        if resource is ResourceType.CLUSTER and not peer.space.is_home:
            operations = operations - {AclOperation.CLUSTER_ACTION}
        return {operation for operation in operations if self.may(peer, operation, resource, name)}
