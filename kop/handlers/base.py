"""What every handler gets and gives: the Api entry, the request's context, and the gateway that it may ask.

Owns: the shape of a handler. A handler module holds functions `name(gw, ctx, request)` that check, ask and shape, and a
tuple `APIS` of `Api`. A function returns the response message, or an awaitable of it where it has to wait.
Must not know: sockets, engines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from kop.cluster.brokers import BrokerConfigs
    from kop.cluster.catalog import Catalog
    from kop.cluster.membership import Membership
    from kop.cluster.topic_configs import TopicConfigs
    from kop.config import Config
    from kop.groups.coordinator import GroupCoordinator
    from kop.handlers.cold_reads import ColdReads
    from kop.handlers.fetch_sessions import FetchSessions
    from kop.handlers.metadata import MetadataCache
    from kop.handlers.producer_ids import ProducerIds
    from kop.metrics import Metrics
    from kop.storage.base import Engine


@dataclass(slots=True)
class ConnectionInfo:
    """What is known of the peer of a connection."""

    client_host: str
    """The peer's address, without its port."""
    local_host: str
    """The address that the client connected to: what a wildcard listener advertises."""
    local_port: int
    advertised: tuple[str, int] | None = None
    """Host and port of `--advertise` for this listener, or None; with an empty host only the port."""
    software_name: str = ""
    """From ApiVersions 3 and up (KIP-511)."""
    software_version: str = ""
    cold_reads: ColdReads | None = None
    """What its Fetches read from storage."""

    @property
    def broker_address(self) -> tuple[str, int]:
        """Host and port that this client shall use for the broker."""
        if self.advertised is None:
            return self.local_host, self.local_port
        host, port = self.advertised
        return host or self.local_host, port


@dataclass(slots=True)
class Context:
    """One request."""

    api_key: int
    version: int
    client_id: str | None
    now_ms: int
    """Wall clock, milliseconds since the epoch."""
    conn: ConnectionInfo
    correlation_id: int = 0
    """For raw handlers, which encode their own frames."""
    owned: bool = False
    """For raw handlers: the body's memory is this request's own and may be kept; else it must be copied."""


@dataclass(slots=True)
class Gateway:
    """The whole that handlers ask. Built by `kop.app`."""

    config: Config
    engine: Engine
    catalog: Catalog
    """Topics as Kafka clients see them."""
    brokers: BrokerConfigs
    """Effective broker settings: configured ones under those altered at run time."""
    groups: GroupCoordinator
    membership: Membership
    metrics: Metrics
    metadata_cache: MetadataCache
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    topic_configs: TopicConfigs
    apis: Mapping[int, Api] = field(default_factory=dict)
    """What is served, by key (`handlers.registry`)."""


Handler: TypeAlias = Callable[[Gateway, Context, Any], Any | Awaitable[Any]]
Frame: TypeAlias = "Sequence[bytes | bytearray | memoryview]"
"""An encoded response, size included, as buffers to be written one after the other."""


@dataclass(frozen=True, slots=True)
class Api:
    """A served API: the registry is made of these and is the only source of ApiVersions."""

    key: int
    min_version: int
    max_version: int
    handler: Handler
    raw: bool = False
    """The handler takes the undecoded body (a memoryview) and returns a `Frame`, a Future of one, or None where the
    client expects no answer. An error on a Future closes the connection."""
    names: Callable[[Any], Iterable[str | None]] | None = None
    """The topic names in a request: those of other namespaces are looked for before the handler runs. Not for raw
    handlers."""
    groups: Callable[[Any], Iterable[str]] | None = None
    """The groups that the handler tells of from memory: who coordinates them is asked before, where that is in doubt.
    Not for raw handlers."""
    slack: int = 0
    """Bytes that a known client sends after the body's end; Kafka never looks there. Not for raw handlers."""
