"""The client: what callers begin with.

Owns: the pool, the ids of producers, consumers and watchers; which broker serves a topic, and what topics there are
(LOOKUP with its redirects and proxies, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE).
Must not know: Kafka, and what entries mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from kop.pulsar_client.attachment import BeforeAttach, BrokerAttachment, OnLost
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.pool import LOOKUP, READ, SEND, TRANSACTIONS, WATCH, BrokerRoute, Pool
from kop.pulsar_client.producer import Confirm, OnStored, Producer
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.reader import OnMany, Reader
from kop.pulsar_client.tls import TlsOptions
from kop.pulsar_client.transactions import Transactions
from kop.pulsar_client.types import Access, Auth, Entry, Position
from kop.pulsar_client.watch import OnChange, Watch
from kop.pulsar_client.wire import DEFAULT_MAX_MESSAGE_SIZE
from kop.turns import Turns

_ATTACH_AT_ONCE = 64
_MOST_REDIRECTS = 20


class Client:
    """A client of one Pulsar cluster. One event loop; times are in seconds.

    `url` is `pulsar://host:port,host:port` or `pulsar+ssl://...`; every request has `request_timeout`, connecting with
    its handshake too. Connections are asked for a sign of life every `keepalive` seconds and given up
    without one, unused ones are closed after `idle`. `listener` names the brokers' advertised listener to use.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: Auth | None = None,
        tls: TlsOptions | None = None,
        request_timeout: float = 10.0,
        keepalive: float = 15.0,
        idle: float = 60.0,
        listener: str | None = None,
        client_version: str = "kop",
    ) -> None:
        self._url = url
        self._timeout = request_timeout
        self._pool_as = partial(
            Pool,
            url,
            tls=tls,
            connect_timeout=request_timeout,
            keepalive=keepalive,
            idle=idle,
            client_version=client_version,
        )
        self._pool = self._pool_as(auth=auth)
        self.outage = self._pool.outage
        """The state machine of outages of the cluster, which sees all connections of this client."""
        self._listener = listener
        self._producer_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._watcher_ids = itertools.count(1)
        self._turns: WeakValueDictionary[str, Turns] = WeakValueDictionary()
        self._users: WeakSet[BrokerAttachment] = WeakSet()
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        """The largest entry (metadata and payload, in bytes) that the brokers accept, known after `start`."""

    async def start(self) -> None:
        """Connect once, so that a wrong address or refused credentials show at once, and set `max_message_size`.
        PulsarError if that fails, with advice in its text.
        """
        try:
            connection = await self._pool.any(LOOKUP)
        except PulsarError as error:
            text = f"{self._url}: {error.message}{_ADVICE.get(error.code, '')}"
            raise PulsarError(error.code, text, retriable=error.retriable) from error
        self.max_message_size = connection.max_message_size

    async def try_credentials(self, auth: Auth) -> None:
        """Connect once with other credentials than the client's, and close that. PulsarError if they are refused, or
        nobody answers.
        """
        pool = self._pool_as(auth=auth)
        try:
            await pool.any(LOOKUP)
        finally:
            await pool.close()

    async def close(self) -> None:
        """Close all connections; producers, readers and watches that are still open end with Closed."""
        for user in list(self._users):
            user.abandon(PulsarError("Closed", "the client is closed"))
        await self._pool.close()

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of `topic`, 0 if it is not partitioned; never creates it. PulsarError
        TopicNotFound if there is no such topic.
        """
        connection = await self._pool.any(LOOKUP)
        if not connection.features.supports_get_partitioned_metadata_without_auto_creation:
            raise PulsarError(
                "UnsupportedVersionError", f"{connection.name} would create topics that are only asked for: too old"
            )
        asked = pb.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=False)
        answer: pb.CommandPartitionedTopicMetadataResponse = await connection.request(
            asked, self._timeout, f"the partitions of {topic}"
        )
        return answer.partitions

    async def topics(self, namespace: str) -> list[str]:
        """Return the persistent topics of `namespace` ("tenant/name"), each partition by itself. PulsarError if Pulsar
        refuses it or does not answer.
        """
        connection = await self._pool.any(LOOKUP)
        asked = pb.CommandGetTopicsOfNamespace(namespace=namespace)
        answer: pb.CommandGetTopicsOfNamespaceResponse = await connection.request(
            asked, self._timeout, f"the topics of {namespace}"
        )
        return list(answer.topics)

    def watch(self, namespace: str, pattern: str, on_change: OnChange) -> Watch:
        """Watch the topics of `namespace` whose full names fit the regular expression `pattern`; return the watch,
        which begins by itself.

        `on_change(snapshot, added, removed)` is called with all names at first and after each loss of the broker, then
        with None and the names that came and went, each partition by itself. It goes on until the watch is closed.
        """
        watch = Watch(
            next(self._watcher_ids),
            namespace,
            pattern,
            on_change,
            lambda: self._pool.any(WATCH),
            timeout=self._timeout,
            outage=self.outage,
        )
        self._users.add(watch)
        return watch

    async def open_producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        access: Access = "shared",
        epoch: int | None = None,
        lane: str = "",
        before_attach: BeforeAttach | None = None,
        confirm: Confirm | None = None,
        on_lost: OnLost | None = None,
        properties: Mapping[str, str] | None = None,
        send_timeout: float = 30.0,
        resend: bool = True,
        on_stored: OnStored | None = None,
    ) -> Producer:
        """Open a producer of `topic` (a partition, or an unpartitioned topic; it is created if the broker may do so).

        Producers of one `lane` share a connection. `epoch` is the topic's epoch that an exclusive producer held before.
        "wait_for_exclusive" waits until the topic is free, however long. `before_attach` is awaited before each return
        to the topic, and `confirm` each time that the producer is attached, before it sends: attaching may have created
        the topic. What they raise ends the producer, unless it is a retriable PulsarError. Without `resend` the
        producer ends if its connection is lost with entries under way: nobody knows then if they are stored. `on_lost`
        is called once with the error when the producer has ended otherwise than by its `close`. `on_stored` is called
        instead of the entries' `stored`, with all that one read of the socket confirmed. PulsarError if Pulsar refuses:
        ProducerBusy, ProducerFenced, ProducerBlockedQuotaExceededError, TopicNotFound, ...
        """
        kind = _kind(lane)
        waits = access == "wait_for_exclusive"  # keeps nobody else waiting
        producer = Producer(
            self._producer_ids,
            topic,
            lambda assigned: self._connection(topic, kind, assigned),
            name=name,
            access=access,
            epoch=epoch,
            properties=properties or {},
            timeout=self._timeout,
            send_timeout=send_timeout,
            before_attach=before_attach,
            confirm=confirm,
            on_lost=on_lost,
            turns=None if waits else self._turns_of(kind),
            resend=resend,
            on_stored=on_stored,
            outage=self.outage,
        )
        self._users.add(producer)
        await producer.open()
        return producer

    def move_producer(self, producer: Producer, lane: str) -> None:
        """Move a producer to the connection of another lane; see `Producer.move`."""
        topic, kind = producer.topic, _kind(lane)
        producer.move(lambda assigned: self._connection(topic, kind, assigned))

    async def open_reader(
        self,
        topic: str,
        start: Position,
        *,
        inclusive: bool = True,
        read_compacted: bool = False,
        permits: int,
        on_entry: Callable[[Entry], None],
        on_many: OnMany | None = None,
        borrow: bool = False,
        damaged: bool = False,
        before_attach: BeforeAttach | None = None,
        on_lost: OnLost | None = None,
    ) -> Reader:
        """Read `topic` (a partition, or an unpartitioned topic; never creates it) from `start` on.

        `permits` messages may come at once, more by `Reader.flow`. If the entry at `start` is not kept any more,
        reading starts at the next one that is. With `borrow` an entry's bytes are valid during `on_entry` only; with
        `damaged` entries that cannot be read are handed out as such; `on_many` may take several at once (see `Reader`).
        `before_attach` and `on_lost` are those of `open_producer`. PulsarError if Pulsar refuses: TopicNotFound, ...
        """
        reader = Reader(
            self._consumer_ids,
            topic,
            lambda assigned: self._connection(topic, READ, assigned),
            start,
            inclusive=inclusive,
            read_compacted=read_compacted,
            permits=permits,
            on_entry=on_entry,
            on_many=on_many,
            borrow=borrow,
            damaged=damaged,
            timeout=self._timeout,
            before_attach=before_attach,
            on_lost=on_lost,
            turns=self._turns_of(READ),
            outage=self.outage,
        )
        self._users.add(reader)
        await reader.open()
        return reader

    def transactions(self) -> Transactions:
        """Return the client of the cluster's transaction coordinators; nothing is asked before its first use."""
        return Transactions(
            self.partitions,
            lambda topic: self._connection(topic, TRANSACTIONS, None),
            timeout=self._timeout,
        )

    def _turns_of(self, kind: str) -> Turns:
        """Return the limit that all attachments to connections of `kind` share, 64 at the same time: a broker that
        comes back would else get ten thousand at once, and most would time out.
        """
        turns = self._turns.get(kind)
        if turns is None:
            turns = self._turns[kind] = Turns(_ATTACH_AT_ONCE)
        return turns

    async def _connection(self, topic: str, kind: str, assigned: str | None) -> Connection:
        """Return the connection for the purpose `kind` to the broker of `topic`: the one with the URL `assigned`, or,
        if that is None, the one that a look-up names. PulsarError if Pulsar refuses it or does not answer.
        """
        if assigned is not None:
            return await self._pool.get(self._pool.broker(assigned), kind)
        return await self._pool.get(await self._broker(topic), kind)

    async def _broker(self, topic: str) -> BrokerRoute:
        """Return the broker that serves `topic` (a partition or an unpartitioned topic), with the address to connect
        to, and note in the pool if that is a proxy's. PulsarError if Pulsar refuses it or does not answer.
        """
        connection = await self._pool.any(LOOKUP)
        authoritative = False
        for _ in range(_MOST_REDIRECTS):
            asked = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            if self._listener is not None:
                asked.advertised_listener_name = self._listener
            answer: pb.CommandLookupTopicResponse = await connection.request(
                asked, self._timeout, f"the lookup of {topic}"
            )
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


def _kind(lane: str) -> str:
    """Return the name under which the pool keeps the connections of a lane of producers."""
    return f"{SEND}:{lane}" if lane else SEND


_ADVICE = {
    "AuthenticationError": " - check the token or the login",
    "AuthorizationError": " - the login may not do this: ask for the permission",
    "ConnectionLost": " - check that the address and port are the broker's (6650, or 6651 with TLS) and that it runs",
    "Timeout": " - the address takes connections but says nothing: is it the broker's port, and is it pulsar+ssl?",
    "TlsError": " - check the file of trusted certificates, and that the certificate names this host",
}
