"""The rights of clients by Pulsar's grants: as Pulsar decides for its own clients.

Owns: which grant allows what, in which namespace a name lies, and the decisions that are remembered until the next
change.
Must not know: where grants come from, requests.

A role is the name of a principal: `reader` is the role of User:reader. Write needs the grant to produce, Read that to
consume, Describe either; what changes topics and their configs needs an admin of the tenant. A group and a
transactional id need either grant somewhere in their namespace; a group is a subscription, too, which may be of some
roles alone. What concerns the cluster is for super users, and what concerns a tenant's namespace as a whole for the
tenant's admins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from kop.errors import BackendError, ErrorCode
from kop.security.authorizer import LONGEST_REMEMBERED, MOST_REMEMBERED
from kop.security.rights import CLUSTER_NAME, RESOURCES_OF_SPACES, AclOperation, ResourceType
from kop.security.tenants import Space
from kop.storage.base import TOPIC_ACTIONS, Grants, NamespaceGrants

_PRODUCE: Final = frozenset({"produce"})
_CONSUME: Final = frozenset({"consume"})
_Op = AclOperation
_ACTIONS: Final = {_Op.WRITE: _PRODUCE, _Op.READ: _CONSUME, _Op.DESCRIBE: TOPIC_ACTIONS}
"""The actions of which one has to be granted for an operation on a topic. All other ones are for admins."""
_BY_SUBSCRIPTION: Final = frozenset({_Op.READ, _Op.DELETE})
"""The operations on a group that are those of its subscription's roles alone."""
_IN_NAMESPACE: Final = frozenset({ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID})
_OF_NAMESPACE: Final = f"/{CLUSTER_NAME}"
"""Ends the name of the cluster as the namespace of a tenant."""
_OF_ADMINS: Final = frozenset({_Op.CREATE, _Op.DELETE, _Op.DESCRIBE, _Op.DESCRIBE_CONFIGS, _Op.IDEMPOTENT_WRITE})
"""The operations that admins of a tenant may do with its namespaces as a whole. Quotas are changed by super users, as
in Pulsar."""
_LONGEST: Final = 255
"""Characters of a namespace beyond which there can be none of that name."""
_USER: Final = "User:"
_Question: TypeAlias = tuple[str, int, int, str]


class GrantsAuthorizer:
    """Decides by the grants that are known at that moment: an `access.Authorizer`."""

    def __init__(self, grants: Grants, super_users: Collection[str], is_internal: Callable[[str], bool]) -> None:
        """`super_users`: principals that may do everything. `is_internal` tells if a topic is the gateway's own: only
        super users may use those.
        """
        self._grants = grants
        self._super_users = frozenset(super_users)
        self._is_internal = is_internal
        self._known: dict[_Question, bool] = {}
        self._known_of = -1
        """The version of the grants that the remembered decisions are made by."""

    @property
    def version(self) -> int:
        """A number that grows with each change of what is known of the grants in namespaces that are read again and
        again: the home namespace, those of topics that are known here, and those of tenants' clients.
        """
        return self._grants.version

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Return true if the principal may do this operation on the resource of that name, which is a stored name;
        `host` does not matter. While the grants are not known only super users may.
        """
        if principal in self._super_users:
            return True
        question = principal, operation.value, resource.value, name
        version = self._grants.version
        if self._known_of == version and (known := self._known.get(question)) is not None:
            return known
        if resource is ResourceType.TOPIC and self._is_internal(name):
            return False
        allowed = bool(self._grant(principal, operation, resource, name))
        # Elsewhere what is known changes without the version; and what is remembered has a bound.
        namespace = self.namespace_of(resource, name)
        if len(name) > LONGEST_REMEMBERED or (namespace and not self._grants.follows(namespace)):
            return allowed
        if self._known_of != version or len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
            self._known_of = version
        self._known[question] = allowed
        return allowed

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return true: there may be a grant in a namespace that no request has named. This is asked only for producer
        ids, which allow nothing by themselves. BackendError if the grants are not known.
        """
        self.check_known(principal)
        return True

    def rule(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str | None) -> str:
        """Return the rule by which `allows` decides, or `allows_any` if `name` is None, as text for people."""
        if principal in self._super_users:
            return "super.users"
        if name is None:
            return "a producer id needs no grant"
        if not self.knows(resource, name):
            return "the grants are not known"
        if resource is ResourceType.TOPIC and self._is_internal(name):
            return "not in super.users"
        return self._grant(principal, operation, resource, name) or "no grant"

    # --- what is known

    def check_known(self, principal: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR, namespace: str = "") -> None:
        """Raise BackendError with this code if the grants of a namespace decide about the principal, which is no super
        user, and are not known; an empty namespace is the home namespace.
        """
        if principal not in self._super_users and not self._knows_namespace(namespace or self._grants.home):
            raise BackendError("Pulsar's grants cannot be read", code)

    def knows(self, resource: ResourceType, name: str) -> bool:
        """Return true if the grants that decide about a resource are known. While they are not, only super users may
        use it.
        """
        namespace = self.namespace_of(resource, name)
        return not namespace or self._knows_namespace(namespace)

    def _knows_namespace(self, namespace: str) -> bool:
        grants = self._grants
        return grants.of(namespace) is not None and grants.admins(namespace.partition("/")[0]) is not None

    def namespace_of(self, resource: ResourceType, name: str) -> str:
        """Return the namespace whose grants decide about a resource; empty if no grants do."""
        if resource is ResourceType.CLUSTER and not name.endswith(_OF_NAMESPACE):
            return ""
        return _place(self._grants.home, name)[0] if resource in RESOURCES_OF_SPACES else ""

    def unread(self, names: Iterable[tuple[ResourceType, str]]) -> Collection[str]:
        """Return the namespaces of these resources that have to be read before anything is decided about them."""
        namespaces = {self.namespace_of(resource, name) for resource, name in names} - {""}
        return self._grants.unread(namespaces) if namespaces else ()

    async def read(self, namespaces: Collection[str]) -> None:
        """Read the grants of these namespaces from Pulsar. Those that cannot be read count as not known."""
        await self._grants.read(namespaces)

    def follow(self, space: Space) -> None:
        """Read the grants of a tenant's space from Pulsar again and again from now on."""
        self._grants.follow(space.name)

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        """Read the grants of a space, and return the reason for which the principal cannot belong to it; empty if it
        can, and the grants are read again and again from then on. It can if it is `proven` (by its credentials, or by
        rules) that it belongs there and Pulsar has the namespace, or if its role has a grant there.
        """
        namespace = space.name
        await self._grants.read([namespace])
        given, admins = self._grants.of(namespace), self._grants.admins(namespace.partition("/")[0])
        role = principal.removeprefix(_USER)
        if given is None or admins is None:
            if not proven:
                return f"Pulsar's grants in {namespace} cannot be read now"
        elif not given.is_there:
            return f"Pulsar has no namespace {namespace}"
        elif not proven and role not in given.users and role not in admins:
            return f"the role {role} holds no grant in {namespace}"
        self._grants.follow(namespace)
        return ""

    # --- the decision

    def _grant(self, principal: str, operation: AclOperation, resource: ResourceType, name: str) -> str:
        """Return the grant that allows this operation, in words; empty if there is none."""
        if not self.namespace_of(resource, name) or not principal.startswith(_USER):
            return ""
        role = principal.removeprefix(_USER)
        namespace, local = _place(self._grants.home, name)
        tenant = namespace.partition("/")[0]
        given, admins = self._grants.of(namespace), self._grants.admins(tenant)
        if given is None or admins is None or not role:
            return ""
        if role in admins and (resource in _IN_NAMESPACE or operation in _OF_ADMINS):
            return f"admin of tenant {tenant}"
        if resource not in _IN_NAMESPACE:
            return ""
        if resource is ResourceType.GROUP and operation in _BY_SUBSCRIPTION and not _may_use(given, role, local):
            return ""
        if resource is ResourceType.TOPIC:
            wanted = _ACTIONS.get(operation, frozenset())
            if actions := wanted & given.roles.get(role, frozenset()):
                return f"{'/'.join(sorted(actions))} on namespace {namespace}"
            if actions := wanted & given.topics.get(local, {}).get(role, frozenset()):
                return f"{'/'.join(sorted(actions))} on topic {namespace}/{local}"
            return ""
        if operation in {_Op.READ, _Op.WRITE, _Op.DESCRIBE, _Op.DELETE} and role in given.users:
            return f"a grant in namespace {namespace}"
        return ""


def _may_use(given: NamespaceGrants, role: str, subscription: str) -> bool:
    """Return true if the role may use the subscription: no other roles are named for it, and its name begins with the
    role's if the namespace asks for that.
    """
    only = given.subscriptions.get(subscription)
    return (only is None or role in only) and (not given.begins_with_role or subscription.startswith(role))


def _place(home: str, name: str) -> tuple[str, str]:
    """Return the namespace of a name, and the name within it. A name TENANT/NAMESPACE/NAME has its own, any other is in
    `home`.

    The namespace is empty if the name is impossible, so that nobody has a grant in it.
    """
    tenant, _, rest = name.partition("/")
    namespace, _, local = rest.partition("/")
    if not (tenant and namespace and local):
        return home, name
    whole = f"{tenant}/{namespace}"
    return (whole, local) if len(whole) <= _LONGEST else ("", local)
