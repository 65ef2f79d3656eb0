"""The whole that handlers ask: coordinators, catalogue, engine, settings, metrics.

Owns: the list of them. `kop.app` builds one.
Must not know: sockets, which engine serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kop.cluster.brokers import BrokerConfigs
from kop.cluster.catalog import Catalog
from kop.cluster.membership import Membership
from kop.cluster.producer_ids import ProducerIds
from kop.cluster.topic_configs import TopicConfigs
from kop.config import Config
from kop.groups.coordinator import GroupCoordinator
from kop.handlers.api import Api
from kop.handlers.fetch_sessions import FetchSessions
from kop.handlers.metadata_cache import MetadataCache
from kop.metrics import Metrics
from kop.storage.base import Engine
from kop.turns import Turns

SEARCHES_AT_ONCE: Final = 16
"""Look-ups of offsets by time that run side by side, whoever asked."""
SEARCH_SECONDS: Final = 20.0
"""After it a look-up is given up by whoever asked."""


@dataclass(slots=True)
class Gateway:
    """What a handler may ask."""

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
    searches: Turns = field(default_factory=lambda: Turns(SEARCHES_AT_ONCE, SEARCH_SECONDS))
    """Look-ups of offsets by time: each reads from storage for a while."""
    apis: Mapping[int, Api] = field(default_factory=dict)
    """What is served, by key (`handlers.registry`)."""
