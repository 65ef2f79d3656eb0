"""A gateway without sockets, on the memory engine or a file: requests go through the codec both ways."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from support.bodies import encode_body

from kop import clock
from kop.cluster.broker_configs import BrokerConfigs
from kop.cluster.client_topics import ClientTopics
from kop.cluster.cluster_view import ClusterView
from kop.cluster.topic_configs import TopicConfigs
from kop.config import Config
from kop.handlers import acls, cluster, configs, describe_producers, topics
from kop.handlers.api import ConnectionInfo, Context
from kop.handlers.gateway import Gateway
from kop.handlers.settings import HandlerSettings
from kop.metrics import Metrics
from kop.records.batch import build, read_header
from kop.records.record import Record
from kop.security.audit import Audit, AuditLines
from kop.security.settings import SecuritySettings
from kop.security.state import SecurityState
from kop.security.throttling import Throttling
from kop.storage.memory import engine as memory
from kop.storage.memory.engine import Memory, MemoryEngine
from kop.storage.memory.settings import MemorySettings
from kop.storage.sqlite import engine as sqlite
from kop.storage.sqlite.engine import SqliteEngine
from kop.storage.sqlite.settings import SqliteSettings
from kop.wire import codec
from kop.wire.messages import REQUESTS, RESPONSES, CreateTopicsRequest
from kop.wire.rows import Response

APIS = {api.key: api for module in (topics, configs, cluster, acls, describe_producers) for api in module.APIS}
NOW = 1_700_000_000_000
T = TypeVar("T")


class Admin:
    """The gateway and its event loop, for tests without `async`."""

    engine: MemoryEngine | SqliteEngine
    config: Config

    def __init__(self, directory: Path | None = None, **settings: Any) -> None:
        self.directory = directory
        """Where SQLite keeps its file; None: the memory engine serves."""
        self.memory = Memory()
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.loop = asyncio.new_event_loop()
        self.gw = self.run(self._open())

    async def _open(self) -> Gateway:
        config = self.config = Config.load(None, self.settings, {})
        broker_configs = BrokerConfigs(config.table())
        topic_configs = TopicConfigs(broker_configs)
        engine = self.engine = await self._open_engine(topic_configs)
        await broker_configs.load(engine)
        broker_configs.on_change(engine.policies_changed)
        engine.policies_changed()
        unused: Any = None
        security = SecurityState(engine, clock.wall_ms)
        return Gateway(
            settings=config.of(HandlerSettings),
            engine=engine,
            topics=ClientTopics(engine),
            broker_configs=broker_configs,
            topic_configs=topic_configs,
            groups=unused,
            transactions=unused,
            verifier=unused,
            ends=unused,
            cluster=ClusterView(engine, config.node_id),
            peers=unused,
            metrics=Metrics(),
            metadata_cache=unused,
            fetch_sessions=unused,
            producer_ids=unused,
            security=security,
            security_settings=config.of(SecuritySettings),
            throttling=Throttling(security.quotas, self.loop.time),
            audit=Audit(AuditLines(""), config.node_id),
        )

    async def _open_engine(self, topic_configs: TopicConfigs) -> MemoryEngine | SqliteEngine:
        if self.directory is not None:
            path = self.directory / "kop.db"
            return await sqlite.open_engine(path, policy=topic_configs.policy, settings=SqliteSettings(maintain=False))
        settings = MemorySettings(maintain=False)
        return await memory.open_engine(self.memory, policy=topic_configs.policy, settings=settings)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def restart(self) -> None:
        self.run(self.gw.engine.close())
        self.gw = self.run(self._open())

    def close(self) -> None:
        self.run(self.gw.engine.close())
        self.loop.close()

    def call(self, request: Any) -> Any:
        """The decoded answer to a request message."""
        return self.run(self.answer(request))

    async def answer(self, request: Any) -> Any:
        key, version = request.API_KEY, request.API_VERSION
        api = APIS[key]
        assert api.min_version <= version <= api.max_version
        message = codec.decode(REQUESTS[key], version, memoryview(encode_body(request)))
        context = Context(key, version, "test", NOW, ConnectionInfo("192.0.2.9", "192.0.2.1", 9092), self.gw.access)
        response = api.handler(self.gw, context, message)
        if inspect.isawaitable(response):
            response = await response
        if isinstance(response, Response):
            response = response.message()
        frame = memoryview(codec.encode_response(1, response))
        flexible = RESPONSES[key].flexible_version_q(version)
        return codec.decode(RESPONSES[key], version, frame, 9 if flexible else 8)

    def create(self, name: str, partitions: int = 1, internal: bool = False, **configs: str) -> UUID:
        """Make a topic behind the handlers' back; `_` in the names of configs stands for `.`."""
        own = {key.replace("_", "."): value for key, value in configs.items()}
        return self.run(self.gw.engine.topics.create(name, partitions, own, internal=internal)).topic_id

    def append(self, topic: str, count: int, partition: int = 0, producer: int = -1) -> None:
        """Append one batch of `count` records."""
        info = self.gw.engine.topics.get(topic)
        assert info is not None
        log = self.gw.engine.log(info.topic_id, partition)
        assert log is not None
        batch = build(
            [Record(index, NOW, b"k", b"v") for index in range(count)],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
        )

        async def append() -> None:
            await log.append(batch, read_header(batch), now_ms=NOW)

        self.run(append())


_Topic = CreateTopicsRequest.CreatableTopic


def creatable(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | list[tuple[int, list[int]]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> Any:
    """A topic of a CreateTopics request."""
    pairs = assignments.items() if isinstance(assignments, dict) else assignments or []
    return _Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[_Topic.CreatableReplicaAssignment(partition_index=i, broker_ids=list(b)) for i, b in pairs],
        configs=[_Topic.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def create_request(*topics: Any, version: int = 7, validate_only: bool = False) -> Any:
    return CreateTopicsRequest(version=version, topics=list(topics), timeout_ms=1000, validate_only=validate_only)
