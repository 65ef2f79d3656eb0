"""Grants that a test knows, without a Pulsar."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kop.storage.base import NamespaceGrants


class Known:
    """Grants that are known, as `kop.storage.base.Grants` tells them."""

    home = "team/app"
    version = 0

    def __init__(self, **namespaces: NamespaceGrants) -> None:
        self.namespaces: Mapping[str, NamespaceGrants] = {f"team/{name}": given for name, given in namespaces.items()}
        self.followed: set[str] = set()
        self.tenants: Mapping[str, Collection[str]] = {"team": {"boss"}, "others": ()}

    async def open(self) -> None:
        """Do nothing."""

    def of(self, namespace: str) -> NamespaceGrants | None:
        """The grants of a namespace."""
        return self.namespaces.get(namespace)

    def admins(self, tenant: str) -> Collection[str] | None:
        """The admins of a tenant."""
        return self.tenants.get(tenant)

    def unread(self, namespaces: Collection[str]) -> Collection[str]:
        """Those that are not known."""
        return {name for name in namespaces if name not in self.namespaces}

    async def read(self, namespaces: Collection[str]) -> None:
        """Do nothing."""

    def follow(self, namespace: str) -> None:
        """Remember that the namespace is followed."""
        self.followed.add(namespace)

    def follows(self, namespace: str) -> bool:
        """True for the home namespace, and those that are followed."""
        return namespace == self.home or namespace in self.followed
