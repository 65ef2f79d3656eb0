"""Reading Pulsar's grants: what is known when, of a Pulsar that is told what to answer."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from storage.fake_pulsar_admin import HOME, FakePulsar
from support.gateway import run
from support.waiting import until

from kop.errors import BackendError
from kop.pulsar_client import PulsarError
from kop.storage.base import NamespaceGrants
from kop.storage.pulsar import grants as module
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.grants import PulsarGrants, grants_in

TENANT = HOME.partition("/")[0]
NO_GRANTS: Mapping[str, Any] = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
AWAY = PulsarError("ConnectionLost", "nobody answers", retriable=True)
NOT_THERE = PulsarError("NotFound", "there is no such namespace")
FORBIDDEN = PulsarError("Forbidden", "the role lacks the permission")


class Granting:
    """A Pulsar with grants, and topics."""

    def __init__(self) -> None:
        self.topics = FakePulsar()
        self.given: dict[str, Mapping[str, Any] | PulsarError] = {HOME: NO_GRANTS}
        self.admins: dict[str, list[str] | PulsarError] = {TENANT: []}
        self.reads: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None
        """Holds back answers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.topics, name)

    def engine(self) -> PulsarEngine:
        """An engine on it, that is not started."""
        engine = self.topics.engine()
        admin: Any = self
        engine.context.admin = admin
        return engine

    async def namespace_policies(self, namespace: str) -> dict[str, Any]:
        """The policies of a namespace."""
        self.reads[namespace] += 1
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        answer = self.given.get(namespace, NOT_THERE)
        if isinstance(answer, PulsarError):
            raise answer
        return {"auth_policies": answer}

    async def tenant_admins(self, tenant: str) -> list[str]:
        """The admins of a tenant."""
        self.reads[tenant] += 1
        await asyncio.sleep(0)
        answer = self.admins.get(tenant, NOT_THERE)
        if isinstance(answer, PulsarError):
            raise answer
        return answer

    def grant(self, namespace: str, role: str, *actions: str) -> None:
        """Grant these actions alone."""
        self.given[namespace] = {**NO_GRANTS, "namespace_auth": {role: list(actions)}}


@asynccontextmanager
async def opened(pulsar: Granting) -> AsyncIterator[PulsarGrants]:
    engine = pulsar.engine()
    await engine.topics.load()
    try:
        await engine.grants.open()
        yield engine.grants
    finally:
        await engine.grants.close()
        await engine.topics.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are shorter."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.005)


def may(grants: PulsarGrants, role: str, namespace: str = HOME) -> frozenset[str] | None:
    given = grants.of(namespace)
    return None if given is None else given.roles.get(role, frozenset())


def test_the_grants_in_policies() -> None:
    policies = {
        "auth_policies": {
            "namespace_auth": {"r": ["produce", "consume"]},
            "destination_auth": {
                "persistent://t/n/orders": {"r": ["consume"]},
                "persistent://t/n/orders-partition-0": {"r": ["produce"]},
                "persistent://t/other/orders": {"r": ["produce"]},
                "non-persistent://t/n/orders": {"r": ["produce"]},
            },
            "subscription_auth_roles": {"g1": ["r"], "g2": []},
        },
        "subscription_auth_mode": "Prefix",
    }
    given = grants_in("t/n", policies)
    consume = frozenset({"consume"})
    assert given.roles == {"r": consume | {"produce"}}
    assert given.topics["orders"] == {"r": consume}
    assert given.topics.keys() == {"orders", "orders-partition-0"}
    assert given.subscriptions == {"g1": {"r"}}
    assert given.begins_with_role
    assert given.users == {"r"}


def test_changes_are_seen_and_told_by_the_version() -> None:
    async def main() -> None:
        pulsar = Granting()
        async with opened(pulsar) as grants:
            assert may(grants, "r") == frozenset()
            version = grants.version
            await until(lambda: pulsar.reads[HOME] > 3)
            assert grants.version == version
            pulsar.grant(HOME, "r", "produce")
            await until(lambda: may(grants, "r") == {"produce"})
            assert grants.version > version
            version = grants.version
            pulsar.admins[TENANT] = ["boss"]
            await until(lambda: grants.admins(TENANT) == {"boss"})
            assert grants.version > version

    run(main())


def test_what_cannot_be_read_again_is_known_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_SECONDS", 0.5)  # long enough for a read on a busy machine

    async def main() -> None:
        pulsar = Granting()
        pulsar.grant(HOME, "r", "produce")
        async with opened(pulsar) as grants:
            version = grants.version
            pulsar.given[HOME] = AWAY
            failed = pulsar.reads[HOME]
            await until(lambda: pulsar.reads[HOME] > failed)
            assert may(grants, "r") == {"produce"}
            await until(lambda: grants.of(HOME) is None)
            assert grants.version > version
            assert grants.admins(TENANT) is not None
            assert not grants.unread([HOME])  # no request waits for it
            version = grants.version
            pulsar.grant(HOME, "r", "produce")
            await until(lambda: may(grants, "r") == {"produce"})
            assert grants.version > version

    run(main())


def test_a_pulsar_that_never_answers_makes_nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_SECONDS", 0.05)

    async def main() -> None:
        pulsar = Granting()
        async with opened(pulsar) as grants:
            pulsar.gate = asyncio.Event()
            await until(lambda: grants.of(HOME) is None)
            pulsar.gate.set()
            await until(lambda: grants.of(HOME) is not None)

    run(main())


def test_nothing_is_served_before_the_first_read() -> None:
    async def main() -> None:
        pulsar = Granting()
        pulsar.given[HOME] = AWAY
        engine = pulsar.engine()
        opening = asyncio.ensure_future(engine.grants.open())
        await until(lambda: pulsar.reads[HOME] > 1)
        assert not opening.done()
        pulsar.given[HOME] = NO_GRANTS
        await opening
        assert engine.grants.of(HOME) == NamespaceGrants()
        await engine.grants.close()

    run(main())


def test_a_role_that_may_not_read_them_ends_the_start() -> None:
    async def main() -> None:
        pulsar = Granting()
        pulsar.admins[TENANT] = FORBIDDEN
        with pytest.raises(BackendError, match="admin of the tenant"):
            await pulsar.engine().grants.open()

    run(main())


def test_another_namespace_is_read_when_it_is_named_and_followed_while_it_has_topics() -> None:
    async def main() -> None:
        pulsar = Granting()
        pulsar.admins["other"] = ["boss"]
        pulsar.grant("other/app", "r", "consume")
        async with opened(pulsar) as grants:
            assert grants.of("other/app") is None
            assert set(grants.unread(["other/app", HOME])) == {"other/app"}
            version = grants.version
            await asyncio.gather(*(grants.read(["other/app"]) for _ in range(20)))
            assert may(grants, "r", "other/app") == {"consume"}
            assert grants.version == version
            await until(lambda: set(grants.unread(["other/app"])) == {"other/app"})  # it may be older than a second
            await grants.read(["nobody/knows"])
            assert grants.of("nobody/knows") == NamespaceGrants(is_there=False)
            assert grants.admins("nobody") == frozenset()

    run(main())


def test_requests_for_one_namespace_share_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 60.0)

    async def main() -> None:
        pulsar = Granting()
        pulsar.grant("other/app", "r", "consume")
        async with opened(pulsar) as grants:
            await asyncio.gather(*(grants.read(["other/app"]) for _ in range(20)))
            assert pulsar.reads["other/app"] == pulsar.reads["other"] == 1
            assert not grants.unread(["other/app"])

    run(main())


def test_a_request_does_not_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_SECONDS", 0.02)

    async def main() -> None:
        pulsar = Granting()
        async with opened(pulsar) as grants:
            pulsar.gate = asyncio.Event()
            await grants.read(["other/app"])
            assert grants.of("other/app") is None
            pulsar.gate.set()

    run(main())


def test_names_that_clients_give_take_no_memory_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKED", 10)
    monkeypatch.setattr(module, "KNOWN_SECONDS", math.inf)

    async def main() -> None:
        pulsar = Granting()
        async with opened(pulsar) as grants:
            for number in range(30):
                await grants.read([f"t{number}/n"])
            known = [number for number in range(30) if grants.of(f"t{number}/n") is not None]
            assert 0 < len(known) <= 10
            assert grants.of(HOME) is not None

    run(main())


def test_one_request_has_only_so_many_namespaces_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKED", 10)

    async def main() -> None:
        pulsar = Granting()
        async with opened(pulsar) as grants:
            names = [f"t{number}/n" for number in range(100)]
            await grants.read(names)
            asked = {name: count for name, count in pulsar.reads.items() if HOME not in name and name != TENANT}
            assert sum(asked.values()) <= 10
            assert 0 < sum(grants.of(name) is not None for name in names) <= 5
            assert grants.of(HOME) is not None

    run(main())


def test_a_topic_of_another_namespace_makes_it_followed() -> None:
    async def main() -> None:
        pulsar = Granting()
        pulsar.admins["other"] = []
        pulsar.grant("other/app", "r", "consume")
        pulsar.topics.add("other/app/t", kop_topic_id="0a000000-0000-4000-8000-000000000010")
        engine = pulsar.engine()
        await engine.topics.load()
        await engine.grants.open()
        await engine.topics.find(["other/app/t"])
        assert engine.topics.get("other/app/t") is not None
        await until(lambda: may(engine.grants, "r", "other/app") == {"consume"})
        pulsar.grant("other/app", "r", "produce")
        version = engine.grants.version
        await until(lambda: may(engine.grants, "r", "other/app") == {"produce"})
        assert engine.grants.version > version
        values = {metric.name: metric.samples[0].value for metric in engine.grants.collect()}
        assert values["kop_pulsar_grants_followed"] == 4
        assert values["kop_pulsar_grants_age_seconds"] < 60
        await engine.grants.close()
        await engine.topics.close()

    run(main())
