"""Quotas through clients' requests: how they are set, and what they do to clients, on open connections, too."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from support.bodies import encode_body
from support.faulty_engine import FaultyStore
from support.gateway import RawClient, batch, fetch_fields, frame, gateway, log_of, produce_fields, run
from support.waiting import until

from kop.app import Serving
from kop.errors import ErrorCode
from kop.security.quotas import DEFAULT, Entity, QuotaKind
from kop.security.settings import STANDARD_AUTHORIZER
from kop.wire.messages import REQUESTS

OK = ErrorCode.NONE
INVALID = ErrorCode.INVALID_REQUEST
ANONYMOUS = Entity("ANONYMOUS")


@asynccontextmanager
async def opened(path: Path, **settings: str) -> AsyncIterator[tuple[Serving, RawClient]]:
    """A gateway with a topic, and a client."""
    async with gateway(path, **({"store": "memory:"} | settings)) as serving:
        await serving.gateway.engine.topics.create("t", 1, {"retention.ms": "-1"})
        yield serving, await RawClient.connect(serving)


async def altered(
    client: RawClient, *entries: tuple[dict[str, Any], dict[str, Any]], version: int = 1, validate: bool = False
) -> list[int]:
    """Set quotas, or remove those that are None, as a client does; the codes of the answer."""
    alter = REQUESTS[49]
    rows = [
        alter.EntryData(
            version=version,
            entity=[
                alter.EntryData.EntityData(version=version, entity_type=kind, entity_name=name)
                for kind, name in entity.items()
            ],
            ops=[
                alter.EntryData.OpData(version=version, key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in entries
    ]
    answer = await client.call(49, version, entries=rows, validate_only=validate)
    assert [[(part.entity_type, part.entity_name) for part in row.entity] for row in answer.entries] == [
        list(entity.items()) for entity, _ in entries
    ]
    return [row.error_code for row in answer.entries]


async def described(client: RawClient, *components: tuple[str, int, str | None], version: int = 1) -> Any:
    describe = REQUESTS[48]
    rows = [
        describe.ComponentData(version=version, entity_type=kind, match_type=how, match=name)
        for kind, how, name in components
    ]
    answer = await client.call(48, version, components=rows, strict=False)
    if answer.error_code:
        return answer.error_code
    return [
        ({part.entity_type: part.entity_name for part in row.entity}, {each.key: each.value for each in row.values})
        for row in answer.entries
    ]


def test_quotas_are_set_listed_and_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, kop_security_max_quotas="4") as (serving, client):
            quotas = serving.gateway.security.quotas
            user, both, every = {"user": "u"}, {"user": "u", "client-id": None}, {"client-id": None}
            for version in (0, 1):
                assert await altered(
                    client,
                    (user, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
                    (both, {"consumer_byte_rate": 0.5}),
                    (every, {"consumer_byte_rate": 2000.0}),
                    ({"ip": "10.0.0.1"}, {"producer_byte_rate": 2000.0}),
                    ({"user": "nan"}, {"request_percentage": math.nan}),
                    ({"user": "twice"}, {"request_percentage": 1.0}),
                    ({"user": "twice"}, {"request_percentage": 2.0}),
                    version=version,
                ) == [OK, INVALID, OK, INVALID, INVALID, INVALID, INVALID]
                assert await described(client, version=version) == [
                    (every, {"consumer_byte_rate": 2000.0}),
                    (user, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
                ]
            assert await described(client, ("user", 0, "u")) == [
                (user, {"producer_byte_rate": 1000.0, "request_percentage": 12.5})
            ]
            assert await described(client, ("user", 9, "u")) == INVALID
            assert await described(client, ("host", 1, None)) == ErrorCode.UNSUPPORTED_VERSION
            version = quotas.version
            assert await altered(client, (user, {"controller_mutation_rate": 1.0, "request_percentage": 0.0})) == [
                INVALID
            ]
            assert await altered(client, (user, {"controller_mutation_rate": 1.0}), validate=True) == [OK]
            assert await altered(client, (user, {"controller_mutation_rate": -1.0}), validate=True) == [INVALID]
            assert await altered(client, (user, {"consumer_byte_rate": None}), ({"user": "x"}, {"other": None})) == [
                OK,
                OK,
            ]
            assert quotas.version == version, "nothing has changed"
            more = {"controller_mutation_rate": 1.0, "consumer_byte_rate": 1.0}
            assert await altered(client, (user, more)) == [INVALID], "one too many, so neither"
            assert await altered(client, (user, more | {"producer_byte_rate": None})) == [OK]
            assert await altered(client, (user, dict.fromkeys(more, 3.0)), (every, {"consumer_byte_rate": None})) == [
                OK,
                OK,
            ]
            assert dict(quotas.of(Entity("u"))) == {
                QuotaKind.REQUESTS: 12.5,
                QuotaKind.MUTATIONS: 3.0,
                QuotaKind.CONSUMED: 3.0,
            }
            assert not quotas.of(Entity(None, DEFAULT))

    run(main())


def test_who_may_not_alter_configs_sets_no_quota(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin"}
        async with opened(tmp_path, **settings) as (serving, client):
            denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert await altered(client, ({"user": "u"}, {"producer_byte_rate": 1000.0})) == [denied]
            assert await described(client) == denied
            assert not len(serving.gateway.security.quotas)

    run(main())


async def produced(client: RawClient, size: int, acks: int = -1) -> float:
    """Produce so many bytes; the seconds for which the answer says that the client is held."""
    fields = produce_fields("t", batch([bytes(size)]), version=12, acks=acks)
    answer = await client.call(0, 12, **fields)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return float(answer.throttle_time_ms) / 1000


async def seconds_of(client: RawClient) -> float:
    """The seconds after which the next request is answered."""
    begin = time.monotonic()
    await client.call(3, 12, topics=[], allow_auto_topic_creation=False)
    return time.monotonic() - begin


def test_a_producer_is_answered_at_once_and_then_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            other = await RawClient.connect(serving)
            assert await altered(other, ({"user": "ANONYMOUS"}, {"producer_byte_rate": 1000.0})) == [OK]
            assert await produced(client, 5000) == 0
            begin = time.monotonic()
            held = await produced(client, 5200)
            assert 0 < held < 0.5
            await seconds_of(client)
            assert time.monotonic() - begin > held - 0.001, "the answer tells whole milliseconds, rounded up"
            begin = time.monotonic()
            assert (held := await produced(client, 10_000)) > 8
            await seconds_of(other)
            assert time.monotonic() - begin < held / 2, "it is answered at once, and others are not held"
            assert await produced(other, 500) > 8, "it shares the quota of its user"
            late = await RawClient.connect(serving)
            # A quota that changes lets go whom it held.
            assert await altered(late, ({"user": "ANONYMOUS"}, {"producer_byte_rate": 1.0})) == [OK]
            held = await produced(late, 1000)
            assert held > 10_000
            waiting = asyncio.ensure_future(seconds_of(late))
            third = await RawClient.connect(serving)
            assert await altered(third, ({"user": "ANONYMOUS"}, {"producer_byte_rate": None})) == [OK]
            assert not waiting.done()
            serving.server.sweep()  # once a second
            serving.server.sweep()
            assert await waiting < 2
            assert await produced(late, 20_000) == 0

    run(main())


def test_what_a_client_without_acks_sends_while_it_is_held_is_stored_after_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            quota = {"client-id": "raw"}, {"producer_byte_rate": 1000.0}
            assert await altered(client, quota) == [OK]
            silent = await RawClient.open(*serving.listeners[0])
            for _ in range(4):
                silent.send(0, 12, **produce_fields("t", batch([bytes(10_300)]), version=12, acks=0))
            await silent.writer.drain()
            await silent.close()
            assert await altered(client, (quota[0], {"producer_byte_rate": None})) == [OK]
            serving.server.sweep()
            await until(lambda: log_of(serving).high_watermark == 4)

    run(main())


@pytest.mark.parametrize("acks", [-1, 0])
def test_batches_that_a_client_sends_without_waiting_for_answers_are_taken_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """Else all that is under way when the first answer goes out would pass the quota."""
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)

    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            assert await altered(client, ({"user": "ANONYMOUS"}, {"producer_byte_rate": 1000.0})) == [OK]
            log = store.log("t")
            log.hold()
            hasty = await RawClient.open(*serving.listeners[0])
            for _ in range(5):
                hasty.send(0, 12, **produce_fields("t", batch([bytes(20_000)]), version=12, acks=acks))
            await hasty.writer.drain()
            await until(lambda: log.appends == 1)
            await seconds_of(client)
            assert log.appends == 1
            log.release()
            await until(lambda: log_of(serving).high_watermark == 1)
            await seconds_of(client)
            assert log.appends == 1, "its client is held for ten seconds"
            assert await altered(client, ({"user": "ANONYMOUS"}, {"producer_byte_rate": None})) == [OK]
            serving.server.sweep()
            await until(lambda: log_of(serving).high_watermark == 5)
            await hasty.close()

    run(main())


@pytest.mark.parametrize("acks", [-1, 0])
def test_what_a_client_sends_that_does_not_wait_for_the_answer_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)

    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            assert await altered(client, ({"user": "ANONYMOUS"}, {"producer_byte_rate": 1000.0})) == [OK]
            log = store.log("t")
            log.hold()
            hasty = await RawClient.open(*serving.listeners[0])
            before = serving.server.connections
            hasty.send(0, 12, **produce_fields("t", batch([bytes(30_000)]), version=12, acks=acks))
            await hasty.writer.drain()
            await until(lambda: log.appends == 1)
            hasty.writer.transport.abort()
            await until(lambda: serving.server.connections == before - 1)
            log.release()
            await until(lambda: log_of(serving).high_watermark == 1)
            assert await produced(client, 1) > 10

    run(main())


async def fetched(client: RawClient, offset: int, *, version: int = 12, **how: Any) -> tuple[int, float, int]:
    """The bytes of records in an answer, the seconds for which it says that the client is held, and its session."""
    answer = await client.call(1, version, **fetch_fields("t", offset, version=version, **how))
    assert answer.error_code == 0
    size = sum(len(part.records or b"") for row in answer.responses for part in row.partitions)
    return size, answer.throttle_time_ms / 1000, answer.session_id


def test_a_fetch_of_who_took_too_much_is_empty_and_does_not_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            for _ in range(20):
                await produced(client, 1000)
            one_batch = len(batch([bytes(1000)]))
            quotas = serving.gateway.security.quotas
            quotas.put(Entity(None, "raw"), QuotaKind.CONSUMED, 500)  # no five batches in ten seconds
            size, held, session = await fetched(client, 0, session_epoch=0)
            assert (size, held) == (4 * one_batch, 0), "whole batches within what the quota leaves"
            size, held, _ = await fetched(client, 4, session_id=session, session_epoch=1, min_bytes=10**6)
            assert (size, held) == (one_batch, 0), "the first batch goes out even if it is too large"
            begin = time.monotonic()
            for version, session_id, epoch in ((12, session, 2), (12, 0, 0), (4, 0, -1)):
                other = await RawClient.connect(serving)
                answer = await fetched(
                    other, 5, version=version, session_id=session_id, session_epoch=epoch, max_wait_ms=60_000
                )
                assert answer[::2] == (0, session_id)
                assert 0 < answer[1] < 1
            assert time.monotonic() - begin < 60, "it does not wait for records"
            quotas.put(Entity(None, "raw"), QuotaKind.CONSUMED, None)
            size, held, _ = await fetched(client, 5, session_id=session, session_epoch=3)
            assert (size, held) == (15 * one_batch, 0), "the session has gone on"

    run(main())


def test_a_fetch_that_waits_is_empty_if_its_client_is_over_by_then(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            serving.gateway.security.quotas.put(ANONYMOUS, QuotaKind.CONSUMED, 100)
            waiting = asyncio.ensure_future(fetched(client, 0, max_wait_ms=10_000, session_epoch=0))
            await until(lambda: serving.server.snapshot().memory_used > 0)  # it waits
            meter = serving.gateway.throttling.of("User:ANONYMOUS", "")
            assert meter is not None
            assert meter.consumed is not None
            meter.consumed.rate.record(1100, asyncio.get_running_loop().time())
            await produced(await RawClient.connect(serving), 1000)
            size, held, session = await waiting
            assert (size, round(held), session) == (0, 1, 0)
            assert len(serving.gateway.fetch_sessions) == 0, "no client knows it"

    run(main())


def creation(version: int, names: str, partitions: int = 2) -> dict[str, Any]:
    topic = REQUESTS[19].CreatableTopic
    return {
        "topics": [
            topic(
                version=version, name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
            )
            for name in names
        ],
        "timeout_ms": 1000,
        "validate_only": False,
    }


async def mutated(client: RawClient, key: int, version: int, fields: dict[str, Any]) -> tuple[list[int], float]:
    """The codes of an answer, and the seconds for which it says that the client is held."""
    answer = await client.call(key, version, **fields)
    rows = getattr(answer, {19: "topics", 20: "responses", 37: "results"}[key])
    return [row.error_code for row in rows], answer.throttle_time_ms / 1000


def test_topics_beyond_the_quota_are_refused_or_their_client_is_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, _):
            exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            serving.gateway.security.quotas.put(ANONYMOUS, QuotaKind.MUTATIONS, 1.0)

            async def ask(key: int, version: int, fields: dict[str, Any]) -> tuple[list[int], float]:
                return await mutated(await RawClient.connect(serving), key, version, fields)

            assert await ask(19, 7, creation(7, "abcde")) == ([0] * 5, 0)
            codes, held = await ask(19, 7, creation(7, "fghi"))
            assert codes == [0, exceeded, exceeded, exceeded], "one may go beyond it"
            assert 0.5 < held <= 1
            codes, held = await ask(19, 5, creation(5, "j", 4))
            assert (codes, round(held)) == ([0], 5), "it is carried out, and held then"
            growth = REQUESTS[37].CreatePartitionsTopic
            for version, wanted in ((3, exceeded), (2, OK)):
                grown = [growth(version=version, name="a", count=3, assignments=None)]
                fields = {"topics": grown, "timeout_ms": 1000, "validate_only": False}
                codes, held = await ask(37, version, fields)
                assert (codes, held > 4) == ([wanted], True)
            codes, held = await ask(20, 5, {"topic_names": ["a"], "timeout_ms": 1000})
            assert (codes, held > 5) == ([exceeded], True)
            codes, held = await ask(20, 4, {"topic_names": ["a"], "timeout_ms": 1000})
            assert (codes, held > 8) == ([OK], True), "three partitions more"
            _, held = await ask(19, 7, creation(7, "j"))
            assert held == 0, "what is wrong does not count"

    run(main())


def test_the_loops_time_counts_and_the_client_is_held_for_a_second_at_most(tmp_path: Path) -> None:
    requests: list[tuple[int, int, dict[str, Any]]] = [
        (3, 12, {"topics": None, "allow_auto_topic_creation": False}),
        (0, 12, produce_fields("t", batch([b"x"]), version=12)),
        (16, 4, {"states_filter": []}),
        (19, 7, creation(7, "a")),
        (1, 12, fetch_fields("t", 0, version=12)),
    ]

    async def main() -> None:
        async with opened(tmp_path) as (serving, _):
            quotas = serving.gateway.security.quotas
            for key, version, fields in requests:
                quotas.put(Entity(None, DEFAULT), QuotaKind.REQUESTS, 1e-9)
                client = await RawClient.connect(serving)
                answer = await client.call(key, version, **fields)
                if key == 1:
                    assert answer.responses == [], "of who was over before"
                assert answer.throttle_time_ms == 1000, key
                quotas.put(Entity(None, DEFAULT), QuotaKind.REQUESTS, 1e9)
                client = await RawClient.connect(serving)
                assert (await client.call(key, version, **fields)).throttle_time_ms == 0

    run(main())


def test_an_address_opens_only_so_many_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            assert await altered(client, ({"ip": "127.0.0.1"}, {"connection_creation_rate": 1.0})) == [OK]
            clients = [await RawClient.connect(serving) for _ in range(10)]
            late = await RawClient.connect(serving)
            late.send(3, 12, topics=[], allow_auto_topic_creation=False)
            begin = time.monotonic()
            assert await late.closed(), "without an answer"
            assert 0.5 < time.monotonic() - begin < 30, "it is held before"
            for each in clients:
                await seconds_of(each)

    run(main())


@pytest.mark.parametrize("key", [3, 19])
def test_brokers_are_not_held_for_their_calls(tmp_path: Path, key: int) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, client):
            serving.gateway.security.quotas.put(Entity(DEFAULT), QuotaKind.REQUESTS, 1e-9)
            fields = creation(7, "a") if key == 19 else {"topics": [], "allow_auto_topic_creation": False}
            version = 7 if key == 19 else 12
            body = encode_body(REQUESTS[key](version=version, **fields))
            client.writer.write(frame(key, version, 1, body, "kop-broker-1"))
            _, answer = await client.receive(key, version)
            assert answer.throttle_time_ms == 0

    run(main())


def test_librdkafka_is_told_and_slowed(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await serving.gateway.engine.topics.create("t", 1, {})
            serving.gateway.security.quotas.put(Entity(None, "app"), QuotaKind.PRODUCED, 50_000)
            told: list[float] = []

            def produce() -> float:
                producer = confluent_kafka.Producer(
                    {
                        "bootstrap.servers": "{}:{}".format(*serving.listeners[0]),
                        "client.id": "app",
                        "throttle_cb": lambda event: told.append(event.throttle_time),
                    }
                )
                begin = time.monotonic()
                producer.produce("t", bytes(550_000))  # eleven seconds' worth
                assert producer.flush(20) == 0
                producer.produce("t", b"one more")
                assert producer.flush(20) == 0
                return time.monotonic() - begin

            seconds = await asyncio.to_thread(produce)
            assert 0.9 < told[0] < 1.2
            assert told[0] <= seconds < told[0] + 3

    run(main())
