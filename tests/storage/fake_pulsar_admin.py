"""The topics of a Pulsar without sockets: what `PulsarTopics` asks of the admin REST and of the client, counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from storage.engines import policy_of

from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import Admin, PartitionedMetadata
from kop.pulsar_client.outage import Outage
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.settings import PulsarSettings

HOME = "public/default"
METADATA = "public/kafka"
OWN = f"persistent://{METADATA}/__kop"


def full(name: str) -> str:
    """Pulsar's name of a topic of the home namespace, or of `tenant/namespace/name`."""
    return f"persistent://{name}" if "/" in name else f"persistent://{HOME}/{name}"


@dataclass
class FakeTopic:
    """`partitions` is 0 for a plain one. `ledger` is the number of its oldest ledger."""

    partitions: int
    ledger: int
    properties: dict[str, str] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)
    """Its own, by the names in their URLs."""


class FakePulsar:
    """Both the admin REST and the client, one Pulsar for many engines."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {OWN: FakeTopic(1, 1)}
        self.asked: Counter[str] = Counter()
        """Requests by what is asked."""
        self.failures: dict[str, PulsarError] = {}
        """Topics whose properties cannot be read."""
        self.silent: set[str] = set()
        """Topics whose properties are not answered."""
        self.namespace_policies: dict[str, Any] = {}
        """What holds for topics without policies of their own."""
        self._ledgers = 100

    def add(self, name: str, partitions: int = 1, **properties: str) -> FakeTopic:
        """Make a topic as a tool of Pulsar's does; `kop_topic_id` is kop.topic_id, and comes with kop.topic_name."""
        self._ledgers += 1
        named = {key.replace("kop_", "kop.", 1): value for key, value in properties.items()}
        if "kop_topic_id" in properties:
            named.setdefault("kop.topic_name", full(name))
        made = self.topics[full(name)] = FakeTopic(partitions, self._ledgers, named)
        return made

    def engine(self, **settings: Any) -> PulsarEngine:
        """A gateway's engine on it, that is not started: `topics.load` and `topics.follow` are called by the test."""
        admin: Any = self
        client: Any = SimpleNamespace(
            topics=self.list_all, max_message_size=5 << 20, transactions=lambda: None, outage=Outage()
        )
        told = PulsarSettings(kop_pulsar_namespace=HOME, kop_pulsar_metadata_namespace=METADATA, **settings)
        return PulsarEngine(client, admin, policy_of, told)

    def now_ms(self) -> int:
        """The time by its clock."""
        return time.time_ns() // 1_000_000

    @property
    def requests(self) -> int:
        """All of them."""
        return self.asked.total()

    def _find(self, full_name: str, what: str) -> FakeTopic:
        self.asked[what] += 1
        topic = self.topics.get(full_name)
        if topic is None:
            raise PulsarError("NotFound", f"there is no {full_name}")
        return topic

    async def _fail(self, full_name: str) -> None:
        if full_name in self.silent:
            await asyncio.Event().wait()
        if full_name in self.failures:
            raise self.failures[full_name]

    # --- admin REST

    async def list_partitioned(self, namespace: str) -> list[str]:
        self.asked["list"] += 1
        return [name for name, topic in self.topics.items() if topic.partitions and f"://{namespace}/" in name]

    async def partitioned_metadata(self, full_name: str) -> PartitionedMetadata:
        topic = self._find(full_name, "metadata")
        if topic.partitions:
            await self._fail(full_name)
        await asyncio.sleep(0)
        return PartitionedMetadata(topic.partitions, dict(topic.properties) if topic.partitions else {})

    async def properties(self, full_name: str) -> dict[str, str]:
        topic = self._find(full_name, "properties")
        await self._fail(full_name)
        await asyncio.sleep(0)
        return dict(topic.properties)

    async def set_properties(self, full_name: str, properties: Mapping[str, str]) -> None:
        topic = self._find(full_name, "set properties")
        await asyncio.sleep(0)
        topic.properties |= properties

    async def remove_property(self, full_name: str, key: str) -> None:
        self._find(full_name, "remove property").properties.pop(key, None)

    async def internal_stats(self, name: str) -> dict[str, Any]:
        topic = self._find(name.rpartition("-partition-")[0] or name, "stats")
        return {"ledgers": [{"ledgerId": topic.ledger}]}

    async def policy(self, full_name: str, name: str, *, applied: bool = False) -> Any:
        own = self._find(full_name, "policy").policies
        return own.get(name, self.namespace_policies.get(name) if applied else None)

    async def set_policy(self, full_name: str, name: str, value: object) -> None:
        self._find(full_name, "set policy").policies[name] = value

    get_retention, set_retention = Admin.get_retention, Admin.set_retention
    get_compaction_threshold, set_compaction_threshold = Admin.get_compaction_threshold, Admin.set_compaction_threshold
    get_max_message_size, set_max_message_size = Admin.get_max_message_size, Admin.set_max_message_size

    # --- client

    async def list_all(self, namespace: str) -> list[str]:
        self.asked["list"] += 1
        names = []
        for name, topic in self.topics.items():
            if f"://{namespace}/" in name:
                names += [f"{name}-partition-{index}" for index in range(topic.partitions)] or [name]
        return names
