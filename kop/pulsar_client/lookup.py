"""Which broker serves a topic, and what topics there are.

Owns: LOOKUP with its redirects and proxies, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE.
Must not know: producers and readers.
"""

from __future__ import annotations

from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.pool import LOOKUP, BrokerRoute, Pool
from kop.pulsar_client.proto import pulsar_pb2 as pb

_MOST_REDIRECTS = 20


class Lookup:
    """Questions to any broker, on the connections that are kept for them."""

    def __init__(self, pool: Pool, *, timeout: float, listener: str | None) -> None:
        self._pool = pool
        self._timeout = timeout
        self._listener = listener

    async def broker(self, topic: str) -> BrokerRoute:
        """The broker that serves `topic` (a partition or an unpartitioned topic). PulsarError."""
        connection = await self._pool.any(LOOKUP)
        authoritative = False
        for _ in range(_MOST_REDIRECTS):
            answer = await self._ask(connection, topic, authoritative)
            url = answer.brokerServiceUrlTls if self._pool.tls else answer.brokerServiceUrl
            if not url:
                needed = (
                    "let the brokers advertise brokerServiceUrlTls (brokerServicePortTls=6651 in broker.conf)"
                    if self._pool.tls
                    else "the brokers want TLS, use pulsar+ssl://"
                )
                raise PulsarError("ServiceNotReady", f"{connection.name} names no address for this client: {needed}")
            self._pool.proxied = answer.proxy_through_service_url
            broker = self._pool.broker(url)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return broker
            authoritative = answer.authoritative
            connection = await self._pool.get(broker, LOOKUP)
        raise PulsarError("ServiceNotReady", f"{topic}: more than {_MOST_REDIRECTS} redirects")

    async def _ask(self, connection: Connection, topic: str, authoritative: bool) -> pb.CommandLookupTopicResponse:
        number = connection.request_id()
        lookup = pb.CommandLookupTopic(topic=topic, request_id=number, authoritative=authoritative)
        if self._listener is not None:
            lookup.advertised_listener_name = self._listener
        command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=lookup)
        answer: pb.CommandLookupTopicResponse = await connection.request(
            command, number, self._timeout, f"the lookup of {topic}"
        )
        return answer

    async def partitions(self, topic: str) -> int:
        """How many partitions `topic` has, 0 for one that is not partitioned; never creates it. PulsarError."""
        connection = await self._pool.any(LOOKUP)
        if not connection.features.supports_get_partitioned_metadata_without_auto_creation:
            raise PulsarError(
                "UnsupportedVersionError", f"{connection.name} would create topics that are only asked for: too old"
            )
        number = connection.request_id()
        asked = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=number, metadata_auto_creation_enabled=False)
        command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=asked)
        count: int = await connection.request(command, number, self._timeout, f"the partitions of {topic}")
        return count

    async def topics(self, namespace: str) -> list[str]:
        """The persistent topics of `namespace` ("tenant/name"), each partition by itself. PulsarError."""
        connection = await self._pool.any(LOOKUP)
        number = connection.request_id()
        asked = pb.CommandGetTopicsOfNamespace(request_id=number, namespace=namespace)
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=asked)
        topics: list[str] = await connection.request(command, number, self._timeout, f"the topics of {namespace}")
        return topics
