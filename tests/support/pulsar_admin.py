"""Pulsar's admin REST interface as tests need it: what the product never asks, beside what it does.

Owns: those requests; how they are sent, repeated and refused is the product's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from urllib.parse import quote

from kop.pulsar_client.admin import Admin, checked_properties, namespace_path, topic_path


def _message_id(ledger: int, entry: int) -> dict[str, int]:
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}


class PulsarAdmin(Admin):
    """One Pulsar cluster by its admin URL; see `Admin`."""

    async def clusters(self) -> list[str]:
        """Names of the clusters that this one knows, itself included."""
        return await self._list("clusters")

    async def create_tenant(self, tenant: str, clusters: list[str] | None = None) -> None:
        """Create a tenant that may use these clusters (all known ones). Conflict when it exists."""
        allowed = await self.clusters() if clusters is None else clusters
        info = {"allowedClusters": allowed, "adminRoles": []}
        await self._call("PUT", f"tenants/{quote(tenant, safe='')}", info, repeat=False)

    async def set_tenant_admins(self, tenant: str, roles: list[str]) -> None:
        """These roles are the tenant's admins from now on."""
        info = {"adminRoles": roles, "allowedClusters": await self.clusters()}
        await self._call("POST", f"tenants/{quote(tenant, safe='')}", info)

    async def grant(self, namespace: str, role: str, actions: list[str]) -> None:
        """What a role may do with the topics of a namespace, such as "produce" and "consume"."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/{quote(role, safe='')}"
        await self._call("POST", path, actions)

    async def revoke(self, namespace: str, role: str) -> None:
        """A role may do nothing any more with the topics of a namespace, but what it may with single ones."""
        await self._call("DELETE", f"namespaces/{namespace_path(namespace)}/permissions/{quote(role, safe='')}")

    async def grant_topic(self, topic: str, role: str, actions: list[str]) -> None:
        """What a role may do with one topic."""
        await self._call("POST", f"{topic_path(topic)}/permissions/{quote(role, safe='')}", actions)

    async def grant_subscription(self, namespace: str, subscription: str, roles: list[str]) -> None:
        """The only roles that may use a subscription."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/subscription/{quote(subscription, safe='')}"
        await self._call("POST", path, roles)

    async def expire_all(self, partition: str, seconds: int) -> None:
        """Let what is older expire for all subscriptions, those of readers too."""
        await self._call("POST", f"{topic_path(partition)}/all_subscription/expireMessages/{seconds}")

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant without namespaces. Conflict while it has some."""
        await self._call("DELETE", f"tenants/{quote(tenant, safe='')}", repeat=False)

    async def list_namespaces(self, tenant: str) -> list[str]:
        """Full names of a tenant's namespaces."""
        return await self._list(f"namespaces/{quote(tenant, safe='')}")

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace. Conflict when it still has topics."""
        await self._call("DELETE", f"namespaces/{namespace_path(namespace)}", repeat=False)

    async def remove_namespace_policy(self, namespace: str, name: str) -> None:
        """Back to the broker's default."""
        await self._call("DELETE", f"namespaces/{namespace_path(namespace)}/{name}")

    async def bundles(self, namespace: str) -> list[str]:
        """The namespace's hash ranges, each served by one broker, such as "0x00000000_0x40000000"."""
        bundles = await self._object(f"namespaces/{namespace_path(namespace)}/bundles", "boundaries")
        bounds = bundles["boundaries"]
        return [f"{low}_{high}" for low, high in pairwise(bounds)]

    async def bundle_of(self, topic: str) -> str:
        """The bundle that a topic or partition lies in."""
        return (await self._call("GET", f"{topic_path(topic)}/bundle", root="lookup/v2/topic")).body.decode()

    async def unload_bundle(self, namespace: str, bundle: str) -> None:
        """Take a bundle's topics from their broker; the next lookup gives them a broker."""
        await self._call("PUT", f"namespaces/{namespace_path(namespace)}/{bundle}/unload")

    async def split_bundle(self, namespace: str, bundle: str) -> None:
        """Split a bundle in two and unload both."""
        path = f"namespaces/{namespace_path(namespace)}/{bundle}/split"
        await self._call("PUT", path, query={"unload": "true"}, repeat=False)

    async def create_plain(self, topic: str, properties: Mapping[str, str]) -> None:
        """Create a topic without partitions. Conflict when there is one of this name."""
        await self._call("PUT", topic_path(topic), checked_properties(properties), repeat=False)

    async def remove_policy(self, topic: str, name: str) -> None:
        """Back to what the namespace says."""
        await self._call("DELETE", f"{topic_path(topic)}/{name}")

    async def remove_retention(self, topic: str) -> None:
        """Back to the namespace's."""
        await self.remove_policy(topic, "retention")

    async def set_publish_rate(self, topic: str, *, messages: int = -1, size: int = -1) -> None:
        """Limit messages and bytes a second of all producers together; -1 is no limit."""
        await self.set_policy(
            topic, "publishRate", {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}
        )

    async def trim(self, partition: str) -> None:
        """Delete now what retention lets go, instead of at the broker's next round."""
        await self._call("POST", f"{topic_path(partition)}/trim")

    async def create_subscription(self, partition: str, name: str, ledger: int, entry: int) -> None:
        """A durable subscription whose next message is the entry's first. Conflict when it exists.

        NotFound when the topic is not there: asked first, since the request itself would create it.
        """
        await self.partitioned_metadata(partition)
        await self._call("PUT", self._subscription(partition, name), _message_id(ledger, entry), repeat=False)

    async def expire_messages(self, partition: str, name: str, ledger: int, entry: int) -> None:
        """Move a subscription forward, just behind an entry, without disturbing its consumers.

        Conflict for a position that is not before the log's end, or while an earlier move runs.
        """
        await self._call("POST", self._subscription(partition, name, "expireMessages"), _message_id(ledger, entry))

    async def reset_cursor(self, partition: str, name: str, ledger: int, entry: int) -> None:
        """Move a subscription forward or back to an entry; its consumers are cut and come again."""
        await self._call("POST", self._subscription(partition, name, "resetcursor"), _message_id(ledger, entry))

    async def delete_subscription(self, partition: str, name: str, force: bool = True) -> None:
        """Delete a subscription; without `force` PreconditionFailed while consumers are on it."""
        query = {"force": json.dumps(force)}
        await self._call("DELETE", self._subscription(partition, name), query=query, repeat=False)

    @staticmethod
    def _subscription(partition: str, name: str, *more: str) -> str:
        return "/".join([topic_path(partition), "subscription", quote(name, safe=""), *more])
