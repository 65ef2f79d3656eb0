"""Users and ACLs in their state topic: over each engine, over restarts, and of several brokers that write at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from storage.engines import Store, policy_of
from support.child import free_port
from support.faulty_engine import FaultyStore
from support.gateway import gateway
from support.waiting import SECONDS, until

from kop import clock
from kop.coordination import state_log
from kop.errors import ErrorCode, KopError, PeerError
from kop.records.batch import build_at
from kop.security.acls import Acl
from kop.security.quotas import DEFAULT, Entity, QuotaKind
from kop.security.records import KeyValue, of_acl, of_quota, of_user
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.state import SecurityState
from kop.security.users import Mechanism, ScramCredential
from kop.storage.base import Engine
from kop.storage.memory.settings import MemorySettings
from kop.storage.memory.shared import SharedMemory

SHA_256 = Mechanism.SCRAM_SHA_256
TOPIC = "__kop_security"
QUOTA = Entity("eve", DEFAULT)


def acl(name: str) -> Acl:
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:ä", "*", AclOperation.READ, Permission.ALLOW)


def credential(password: str) -> ScramCredential:
    return ScramCredential.of_password(SHA_256, password, salt=b"salt")


def always(*records: KeyValue) -> Callable[[], list[KeyValue]]:
    return lambda: list(records)


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[SecurityState]:
    state = SecurityState(engine, clock.wall_ms)
    await state.open()
    try:
        yield state
    finally:
        await state.close()


async def test_what_is_written_is_in_force_and_outlasts_a_restart(store: Store) -> None:
    async with store.opened() as engine, opened(engine) as state:
        secret = state.secret
        assert len(secret) == 32
        heard = list[str]()
        state.users.on_change(heard.append)
        await state.write(always(of_acl(acl("a")), of_acl(acl("b")), of_user("eve", SHA_256, credential("x"))))
        assert set(state.acls) == {acl("a"), acl("b")}
        assert heard == ["eve"]
        version = state.acls.version
        await state.write(always(of_acl(acl("a"))))
        assert state.acls.version == version
        await state.write(
            always(
                of_acl(acl("b"), present=False),
                of_user("eve", SHA_256, credential("y")),
                of_user("bob", SHA_256, credential("b")),
            )
        )
        await state.write(always(of_user("bob", SHA_256, None)))
        assert heard == ["eve", "eve", "bob", "bob"]
        assert state.acls.version == version + 1
        assert list(state.users.names()) == ["eve"]
        await state.write(always(of_quota(QUOTA, QuotaKind.PRODUCED, 5.0), of_quota(QUOTA, QuotaKind.REQUESTS, 5.5)))
        await state.write(always(of_quota(QUOTA, QuotaKind.REQUESTS, None)))
        assert dict(state.quotas.of(QUOTA)) == {QuotaKind.PRODUCED: 5.0}
    async with store.opened() as engine, opened(engine) as state:
        assert dict(state.quotas.of(QUOTA)) == {QuotaKind.PRODUCED: 5.0}
        assert state.secret == secret
        assert set(state.acls) == {acl("a")}
        assert list(state.users.names()) == ["eve"]
        assert state.users.scram(SHA_256, "eve") == credential("y")


async def test_more_records_than_a_batch_takes_are_written(store: Store) -> None:
    async with store.opened() as engine, opened(engine) as state:
        await state.write(always(*(of_acl(acl(str(number))) for number in range(state_log.BATCH_RECORDS + 10))))
        assert len(state.acls) == state_log.BATCH_RECORDS + 10


async def test_nothing_is_written_if_the_decision_fails(store: Store) -> None:
    async with store.opened() as engine, opened(engine) as state:

        def decide() -> list[KeyValue]:
            raise PeerError("no")

        with pytest.raises(PeerError):
            await state.write(decide)
        await state.write(always(of_acl(acl("a"))))
        assert set(state.acls) == {acl("a")}


# -- several brokers


@asynccontextmanager
async def brokers(count: int) -> AsyncIterator[list[SecurityState]]:
    """Brokers that have started at once on one memory."""
    shared = SharedMemory()
    settings = MemorySettings.model_construct(maintain=False)

    engines = [await shared.open_engine(policy=policy_of, settings=settings) for _ in range(count)]
    states = [SecurityState(engine, clock.wall_ms) for engine in engines]
    await asyncio.gather(*(state.open() for state in states))
    try:
        yield states
    finally:
        for state, engine in zip(states, engines, strict=True):
            await state.close()
            await engine.close()


async def test_brokers_that_start_at_once_have_one_secret() -> None:
    async with brokers(4) as states:
        assert len({state.secret for state in states}) == 1


async def test_what_one_broker_writes_all_have() -> None:
    async with brokers(3) as states:
        await states[0].write(always(of_acl(acl("a"))))
        await until(lambda: all(acl("a") in state.acls for state in states))
        await states[2].write(always(of_acl(acl("a"), present=False), of_user("eve", SHA_256, credential("x"))))
        await until(lambda: all(not len(state.acls) and "eve" in state.users for state in states))


async def test_brokers_that_write_at_once_decide_one_after_the_other() -> None:
    """Each adds one ACL if there are fewer than five: of twenty, five succeed."""
    async with brokers(3) as states:

        async def add(number: int) -> None:
            state = states[number % 3]
            await state.write(lambda: [of_acl(acl(str(number)))] if len(state.acls) < 5 else [])

        await asyncio.gather(*map(add, range(20)))
        await until(lambda: len({frozenset(state.acls) for state in states}) == 1)
        assert len(states[0].acls) == 5


# -- faults


@asynccontextmanager
async def faulty() -> AsyncIterator[tuple[SecurityState, FaultyStore]]:
    store = FaultyStore()
    engine = await store.open()
    async with opened(engine) as state:
        yield state, store
    await engine.close()


async def test_a_write_that_fails_changes_nothing() -> None:
    async with faulty() as (state, store):
        store.log(TOPIC).append_error = ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KopError) as raised:
            await state.write(always(of_acl(acl("a"))))
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not len(state.acls)
        store.log(TOPIC).append_error = None
        await state.write(always(of_acl(acl("a"))))
        assert set(state.acls) == {acl("a")}


async def test_the_last_state_holds_while_the_topic_cannot_be_read() -> None:
    async with faulty() as (state, store):
        await state.write(always(of_acl(acl("a"))))
        log = store.log(TOPIC)
        log.cold, log.read_error = True, KopError("gone", ErrorCode.KAFKA_STORAGE_ERROR)
        with pytest.raises(KopError):
            await state.write(always(of_acl(acl("b"))))
        assert set(state.acls) == {acl("a")}
        log.cold, log.read_error = False, None
        await until(lambda: set(state.acls) == {acl("a"), acl("b")})  # it was written, and nobody could read it


async def test_the_start_waits_until_the_topic_can_be_read() -> None:
    store = FaultyStore()
    engine = await store.open()
    async with opened(engine) as state:
        await state.write(always(of_acl(acl("a"))))
    log = store.log(TOPIC)
    log.cold, log.read_error = True, KopError("gone", ErrorCode.KAFKA_STORAGE_ERROR)
    state, said = SecurityState(engine, clock.wall_ms), list[str]()
    opening = asyncio.create_task(state.open(said.append))
    await until(lambda: bool(said))
    assert said[0] == f"cannot read users and ACLs from the topic {TOPIC}: KAFKA_STORAGE_ERROR: gone; trying again"
    assert not opening.done()
    log.cold, log.read_error = False, None
    await opening
    assert set(state.acls) == {acl("a")}
    await state.close()
    await engine.close()


async def test_a_topic_of_a_client_is_not_taken_for_the_state_topic() -> None:
    store = FaultyStore()
    engine = await store.open()
    await engine.topics.create(TOPIC, 1, {})
    with pytest.raises(KopError, match="was not made by kop"):
        await SecurityState(engine, clock.wall_ms).open()
    await engine.close()


async def test_records_that_nobody_understands_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()
    engine = await store.open()
    async with opened(engine) as state:
        await state.write(always(of_acl(acl("a")), of_user("eve", SHA_256, credential("x"))))
    eve = of_user("eve", SHA_256, None)[0]
    batch, header = build_at(
        clock.wall_ms(),
        [
            (b"x", b""),
            (b'["future",1]', b"{}"),
            (b'["acl",1]', b"{}"),
            (b'["acl",99,"t",3,"User:a","*",3,3]', b"{}"),
            (b'["scram",7,1]', b"{}"),
            (b"[" * 100_000, b"{}"),
            (eve, b'{"salt":"!","stored_key":"","server_key":"","iterations":4096}'),
        ],
    )
    await store.log(TOPIC).append(batch, header, now_ms=clock.wall_ms())
    with caplog.at_level(logging.ERROR):
        async with opened(engine) as state:
            assert set(state.acls) == {acl("a")}
            assert not len(state.users)
    assert sum("is not understood" in record.getMessage() for record in caplog.records) == 7
    await engine.close()


async def test_ports_stay_closed_and_readiness_says_why_while_the_topic_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, away = state_log.StateLog.open, True

    async def open_log(log: state_log.StateLog) -> None:
        if away and log.name == TOPIC:
            raise KopError("no answer", ErrorCode.KAFKA_STORAGE_ERROR)
        await real(log)

    monkeypatch.setattr(state_log.StateLog, "open", open_log)
    port, http = free_port(), free_port()

    async def refuses() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return True
        writer.close()
        return False

    async def readiness() -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", http)
        except OSError:
            return ""
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        return text

    async def serve() -> None:
        where = {"listen": f"127.0.0.1:{port}", "http": f"127.0.0.1:{http}"}
        async with gateway(tmp_path, store="memory:", **where):
            assert not await refuses()
            assert " 200 " in await readiness()

    serving = asyncio.create_task(serve())
    text = f"cannot read users and ACLs from the topic {TOPIC}: KAFKA_STORAGE_ERROR: no answer"
    async with asyncio.timeout(SECONDS):
        while True:
            if text in await readiness():
                break
            await asyncio.sleep(0.02)  # asked again and again until it says so
    assert await refuses()
    away = False
    await serving


async def test_records_that_are_not_understood_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A denial among them may be one that holds no more: an alert has to see it."""

    def not_understood(state: SecurityState) -> float:
        (metric,) = (each for each in state.collect() if each.name == "kop_security_records_not_understood")
        return metric.samples[0].value

    async with faulty() as (state, _):
        key, value = of_acl(acl("a")._replace(permission=Permission.DENY))
        broken = key.replace(b"]", b",7]")
        await state.write(always((broken, value), (b"\xff", b"{}"), (b'["future"]', None)))
        assert not_understood(state) == 2
        assert len([line for line in caplog.messages if "is not understood" in line]) == 2
        await state.write(always((b"\xff", b"[]")))
        assert not_understood(state) == 2
        await state.write(always((b"\xff", None)))
        assert not_understood(state) == 1
        await state.write(always((key, b"{")))
        assert [each.permission for each in state.acls] == [Permission.DENY]
        name, made = of_user("eve", SHA_256, credential("x"))
        await state.write(always((name, made)))
        await state.write(always((name, (made or b"")[:-2])))
        assert not_understood(state) == 2
        assert "eve" not in state.users, "nobody logs in by a password that was to be changed"
