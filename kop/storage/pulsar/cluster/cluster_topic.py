"""The topic `__kop` of the metadata namespace, which all brokers of a cluster share.

Owns: making that topic; what its properties hold: the cluster id, what offsets are made of, small values, and the
names of topics of other namespaces that clients have named. Its entries are counted by `producer_ids.py`.
Must not know: what the small values mean, how those topics are followed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from kop.errors import BackendError
from kop.pulsar_client.admin import FOREVER, Admin
from kop.pulsar_client.errors import NOT_THERE, Ignoring
from kop.storage.pulsar.layout import ID_PROPERTY, NAMED_PREFIX, OFFSETS_PROPERTY, STATE_PREFIX, TopicNaming, id_of
from kop.storage.topic_table import new_uuid


class ClusterTopic:
    """The topic `__kop`, which a cluster's brokers share. Methods raise PulsarError, if nothing else is said."""

    def __init__(self, admin: Admin, naming: TopicNaming, announce: Callable[[str], None]) -> None:
        """Prepare access to the topic. `announce` tells the other brokers that the properties of a topic have
        changed.
        """
        self.full_name = naming.own_topic
        self.partition = f"{self.full_name}-partition-0"
        """The partition whose entries are blocks of producer ids."""
        self._namespace = naming.metadata_namespace
        self._admin = admin
        self._announce = announce
        self._state_listeners: list[Callable[[], None]] = []

    async def properties(self) -> Mapping[str, str]:
        """Return all properties of the topic, as they are at this moment."""
        return (await self._admin.partitioned_metadata(self.full_name)).properties

    # --- the start of a broker

    async def make_namespace(self) -> None:
        """Make the metadata namespace if it is missing, and have Pulsar keep everything in it."""
        if not await self._admin.namespace_exists(self._namespace):
            with Ignoring("Conflict"):  # another broker that starts at the same time made it
                await self._admin.create_namespace(self._namespace)
        await self._admin.set_namespace_retention(self._namespace, FOREVER)

    async def open(self) -> str:
        """Make the topic, with a new cluster id, if it is missing; return the cluster id, in URL-safe base64 without
        padding. BackendError if the topic's properties have no usable id.
        """
        properties: Mapping[str, str] | None = None
        with Ignoring(*NOT_THERE):
            properties = await self.properties()
        if properties is None:
            with Ignoring("Conflict"):
                await self._admin.create_partitioned(self.full_name, 1, {ID_PROPERTY: str(new_uuid())})
            properties = await self.properties()
        await self._admin.keep_when_idle(self.full_name)  # the broker that made it may have stopped before this step
        cluster_id = id_of(properties)
        if cluster_id is None:
            raise BackendError(
                f"the property {ID_PROPERTY} of {self.full_name} is {properties.get(ID_PROPERTY)!r}, which is no id: "
                "it is the id of this cluster, and all brokers have to know the same one. Write it again "
                f"(pulsar-admin topics update-properties -p {ID_PROPERTY}=UUID); a running broker tells it as cluster "
                "id, in base64"
            )
        return base64.urlsafe_b64encode(cluster_id.bytes).decode().rstrip("=")

    async def claim_offsets(self, claim: str) -> None:
        """Agree with the other brokers on how offsets are made: the first broker on the data decides, for good. `claim`
        names the way of this broker, as `index`.

        BackendError if another broker has decided otherwise: all of them have to give a record the same offset.
        """
        properties = await self.properties()
        if OFFSETS_PROPERTY not in properties:
            await self._admin.set_properties(self.full_name, {OFFSETS_PROPERTY: claim})
            properties = await self.properties()
        if (claimed := properties[OFFSETS_PROPERTY]) != claim:
            raise BackendError(
                f"offsets here are by {claimed}, as the first broker on {self._namespace} had it; "
                f"{claim} would give the same records others, and committed offsets would mean nothing. Set "
                f"kop.pulsar.offsets={claimed.partition('-')[0]}, or name another kop.pulsar.metadata.namespace"
            )

    # --- small values

    async def get_state(self, key: str) -> str | None:
        """Return a small durable value by its key; None if there is none."""
        return (await self.properties()).get(STATE_PREFIX + key)

    async def put_state(self, key: str, value: str | None) -> None:
        """Set a small durable value by its key, or remove it with None; then tell the other brokers that values may
        have changed.
        """
        if value is None:
            await self._admin.remove_property(self.full_name, STATE_PREFIX + key)
        else:
            await self._admin.set_properties(self.full_name, {STATE_PREFIX + key: value})
        self._announce(self.full_name)

    def on_state(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another broker may have changed a small durable value."""
        self._state_listeners.append(callback)

    def announced(self, full_names: Sequence[str]) -> None:
        """Call the callbacks of `on_state` if the topics whose properties another broker has changed include this
        one.
        """
        if self.full_name in full_names:
            for callback in self._state_listeners:
                callback()

    # --- topics of other namespaces

    async def named_topics(self) -> set[str]:
        """Return `tenant/namespace/topic` of each topic of another namespace that a client of any broker has named."""
        return {key.removeprefix(NAMED_PREFIX) for key in await self.properties() if key.startswith(NAMED_PREFIX)}

    async def add_named(self, name: str) -> None:
        """Keep the name `tenant/namespace/topic` of a topic of another namespace that a client has named, for all
        brokers.
        """
        await self._admin.set_properties(self.full_name, {NAMED_PREFIX + name: "1"})

    async def remove_named(self, name: str) -> None:
        """Forget the name of a topic of another namespace, which `add_named` kept."""
        await self._admin.remove_property(self.full_name, NAMED_PREFIX + name)
