"""The parts of the gateway that handlers ask: coordinators, topics, the cluster, the engine, settings, metrics.

Owns: the list of these. `kop.app` puts it together.
Must not know: sockets, which engine serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kop.cluster.broker_configs import BrokerConfigs
from kop.cluster.client_topics import ClientTopics
from kop.cluster.cluster_view import ClusterView
from kop.cluster.producer_ids import ProducerIds
from kop.cluster.topic_configs import TopicConfigs
from kop.coordination.peers import Peers
from kop.errors import InternalError, KopError
from kop.groups.runtime import GroupCoordinator
from kop.handlers.access import AccessControl
from kop.handlers.api import Api
from kop.handlers.auto_creation import AutoCreation
from kop.handlers.direct_produce import DirectProduce
from kop.handlers.fetch_sessions import FetchSessions
from kop.handlers.metadata_cache import MetadataCache
from kop.handlers.produce_targets import ProduceTargets
from kop.handlers.settings import HandlerSettings
from kop.handlers.topic_limits import TopicLimits
from kop.metrics import Metrics
from kop.security.audit import Audit
from kop.security.authorizer import AclAuthorizer
from kop.security.delegation_tokens import TokenIssuer
from kop.security.grants import GrantsAuthorizer
from kop.security.records import KeyValue
from kop.security.settings import PULSAR_AUTHORIZER, STANDARD_AUTHORIZER, SecuritySettings, principals_of
from kop.security.state import SecurityState
from kop.security.throttling import Throttling
from kop.storage.base import Engine
from kop.transactions.ends import TransactionEnds
from kop.transactions.runtime import TransactionCoordinator
from kop.transactions.verification import TransactionVerifier
from kop.turns import Turns

SEARCHES_AT_ONCE: Final = 16
"""The number of look-ups of offsets by time that run side by side, over all requests."""
SEARCH_SECONDS: Final = 20.0
"""The time limit of a look-up of an offset by time, in seconds."""


@dataclass(slots=True)
class Gateway:
    """All that handlers ask: coordinators, topics, the cluster, the engine, settings, metrics."""

    settings: HandlerSettings
    engine: Engine
    topics: ClientTopics
    """The topics as Kafka clients see them: look-ups by name or id."""
    broker_configs: BrokerConfigs
    """The effective broker settings: configured ones, under those altered at run time."""
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    """The verifier of transactions: it knows for which of them this broker takes records and offsets."""
    ends: TransactionEnds
    """The ends of transactions: it carries out the end of one in what this broker holds of it."""
    cluster: ClusterView
    peers: Peers
    """The connections to the other brokers, for calls to them."""
    metrics: Metrics
    metadata_cache: MetadataCache
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    topic_configs: TopicConfigs
    security: SecurityState
    """Users, ACLs, quotas and delegation tokens."""
    security_settings: SecuritySettings
    throttling: Throttling
    """The amounts that clients take, by the quotas that hold for them."""
    audit: Audit
    """The audit of denials and changes."""
    searches: Turns = field(default_factory=lambda: Turns(SEARCHES_AT_ONCE, SEARCH_SECONDS))
    """The places for look-ups of offsets by time, each of which reads from storage for a while."""
    access: AccessControl = field(init=False)
    """Decides what clients may touch, and which things the names in their requests stand for."""
    super_users: frozenset[str] = field(init=False)
    """Principals that may do everything."""
    acls_decide: bool = field(init=False)
    """True if ACLs decide what clients may do."""
    tokens: TokenIssuer = field(init=False)
    """The part that makes and changes delegation tokens."""
    topic_limits: TopicLimits = field(init=False)
    """The limits on new topics and partitions."""
    auto_creation: AutoCreation = field(init=False)
    """The topics that are made because clients ask for them."""
    produce_targets: ProduceTargets = field(init=False)
    """The topics that Produce has looked up, kept from one request to the next."""
    direct_produce: DirectProduce = field(init=False)
    """The Produce requests that compiled code answers whole."""
    apis: Mapping[int, Api] = field(default_factory=dict)
    """The APIs that are served, by key (`handlers.registry`)."""

    def __post_init__(self) -> None:
        """Make the parts that are made of the other ones, such as the access control with the authorizer that the
        settings ask for. InternalError if Pulsar's grants are to decide and the store has none.
        """
        security = self.security_settings
        self.super_users = frozenset(principals_of(security.super_users))
        self.access = AccessControl(self.topics, self.audit, self.super_users, has_tenants=security.has_tenants)
        self.acls_decide = security.authorizer_class_name == STANDARD_AUTHORIZER
        if self.acls_decide:
            self.access.authorizer = AclAuthorizer(
                self.security.acls,
                self.super_users,
                security.allow_everyone_if_no_acl_found,
                has_tenants=security.has_tenants,
            )
        elif security.authorizer_class_name == PULSAR_AUTHORIZER:
            grants = self.engine.grants
            if grants is None:
                raise InternalError("authorizer.class.name=pulsar: this store has no grants")
            self.access.authorizer = GrantsAuthorizer(grants, self.super_users, self.topics.is_internal)
        self.tokens = TokenIssuer(
            self.security.tokens,
            security.delegation_token_secret_key,
            security.delegation_token_max_lifetime_ms,
            security.delegation_token_expiry_time_ms,
        )
        self.topic_limits = TopicLimits(self.topics, self.settings.kop_max_partitions)
        self.auto_creation = AutoCreation(
            self.engine, self.topics, self.topic_limits, self.broker_configs, self.metrics
        )
        self.produce_targets = ProduceTargets(self.access, self.topics, self.topic_configs)
        self.direct_produce = DirectProduce(self.access, self.produce_targets, self.metrics)

    async def change_security(self, decide: Callable[[], Sequence[KeyValue]]) -> KopError | None:
        """Write records of users, ACLs or quotas as `SecurityState.write` does; return the error if that has failed."""
        try:
            await self.security.write(decide)
        except KopError as error:
            return error.fresh_copy()
        return None

    async def close(self) -> None:
        """Stop the work in the background that handlers have begun: the making of topics that clients asked for."""
        await self.auto_creation.close()
