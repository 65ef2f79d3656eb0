"""Quotas that come, go and change under load: each kind, for each entity that may have it.

Owns: the entities of a user, and which of their quotas holds; what is asked, and what shows that a client is held.
Must not know: other kinds of changes, how servers are started.

A quota is tight or loose, or not there. Held means: the answer says so, or does not come, or the connection is closed.
Counters may be empty when a quota becomes tight, so that a few requests pass: what passes beyond those has not felt it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from conformance.authorization.world import Closed, Connection
from conformance.rights.belief import Belief
from conformance.rights.told import BOUND, PAUSE, PULSE, Gateway, Told, log_in, now, read, write
from kop.errors import ErrorCode
from kop.security.quotas import QuotaKind

_FORGOTTEN_SECONDS: Final = 9.0
"""Seconds, of the ten that are counted, within which what passes is looked at."""
_MUTATION_SECONDS: Final = 0.05
"""Seconds between two topics that are made."""
_SOURCE: Final = "127.0.0.9"
"""The address whose connections are counted: all others come from 127.0.0.1."""
_Parts: TypeAlias = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    tight: float
    loose: float
    passing: int
    """The requests that may pass while it is tight."""


# Three sets of clients count by themselves: those of the user, of the client id, of both.
_KINDS: Final = {
    QuotaKind.PRODUCED: _Kind(1, 1e9, 0),
    QuotaKind.CONSUMED: _Kind(1, 1e9, 3),
    QuotaKind.REQUESTS: _Kind(1e-5, 1e6, 0),
    QuotaKind.MUTATIONS: _Kind(1e-3, 1e6, 3),
    QuotaKind.CONNECTIONS: _Kind(1, 1e6, 10),
}


class Quota:
    """The quotas of one kind of a client."""

    def __init__(self, told: Told, kind: QuotaKind) -> None:
        self.kind = kind
        self.name = name = f"quota-{kind}"
        """The user's name, his client id, and his topic's name."""
        self.belief = Belief(False)
        """True if the client is held."""
        self._told = told
        self._what = _KINDS[kind]
        # In the order in which they hold.
        user, client = ("user", name), ("client-id", name)
        self._entities: tuple[_Parts, ...] = ((user, client), (user, ("client-id", None)), (user,), (client,))
        if kind is QuotaKind.CONNECTIONS:
            self._entities = ((("ip", _SOURCE),),)
        self._there: dict[_Parts, bool] = {}
        """True if the quota of the entity is tight."""
        self._made = 0

    @property
    def topics(self) -> list[str]:
        """The topics that have to be there, each with a record."""
        return [self.name] if self.kind in {QuotaKind.PRODUCED, QuotaKind.CONSUMED} else []

    async def change(self, admin: Connection, chance: random.Random) -> None:
        """Set or remove one of the quotas."""
        entity = chance.choice(self._entities)
        there = self._there.get(entity)
        await self._set(admin, entity, chance.choice([value for value in (True, False, None) if value is not there]))
        self._told.changed(self.kind.value)

    async def end(self, admin: Connection) -> None:
        """Remove all: who is held then would be held for long."""
        for entity in list(self._there):
            await self._set(admin, entity, None)

    async def _set(self, admin: Connection, entity: _Parts, tight: bool | None) -> None:
        if tight is None:
            del self._there[entity]
        else:
            self._there[entity] = tight
        self.belief.change(next((self._there[each] for each in self._entities if each in self._there), False), now())
        op: dict[str, Any] = {"key": self.kind.value, "remove": tight is None}
        op["value"] = 0.0 if tight is None else self._what.tight if tight else self._what.loose
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        answer = await admin.call(49, 1, entries=[{"entity": parts, "ops": [op]}], validate_only=False)
        assert answer.entries[0].error_code == 0, answer
        self.belief.done(now())

    async def load(self, gateway: Gateway) -> None:
        """Ask until cancelled."""
        passed: deque[float] = deque(maxlen=self._what.passing + 1)
        conn: Connection | None = None
        sent, was_held = now(), False
        try:
            while True:
                if conn is None and self.kind is not QuotaKind.CONNECTIONS:
                    conn = await log_in(gateway.login, self.name, self.name, self.name)
                    assert conn is not None, f"{self.name} cannot log in"
                sent = now()
                try:
                    is_held = await self._ask(gateway, conn)
                except TimeoutError:
                    assert conn is not None
                    conn.close()
                    conn, is_held = None, True
                self._waited(gateway, sent, was_held)
                was_held = bool(is_held)
                if is_held is None:
                    pass
                elif is_held:
                    self._told.judge(self.name, self.belief, True, sent, BOUND)
                else:
                    passed.append(sent)
                    if len(passed) > self._what.passing and passed[0] > now() - _FORGOTTEN_SECONDS:
                        self._told.judge(self.name, self.belief, False, passed[0], BOUND)
                await asyncio.sleep(_MUTATION_SECONDS if self.kind is QuotaKind.MUTATIONS else PAUSE)
        finally:
            self._waited(gateway, sent, was_held)
            if conn is not None:
                conn.close()

    def _waited(self, gateway: Gateway, sent: float, was_held: bool) -> None:
        """Judge that no answer has come until now, to a request after an answer that held the client."""
        others = self._told.pulses[gateway]
        if was_held and self.kind is not QuotaKind.MUTATIONS and len(others) == PULSE and sent < others[0]:
            self._told.judge(self.name, self.belief, True, others[0], BOUND)

    async def _ask(self, gateway: Gateway, conn: Connection | None) -> bool | None:
        """Send a request; return true if the client is held, None if that does not show."""
        if conn is None:
            return await self._connect(gateway)
        if self.kind is QuotaKind.MUTATIONS:
            return await self._make_topic(conn)
        if self.kind is QuotaKind.PRODUCED:
            answer = await write(conn, self.name)
            assert not answer.responses[0].partition_responses[0].error_code, answer
        elif self.kind is QuotaKind.CONSUMED:
            answer = await read(conn, self.name)
            partitions = [each for topic in answer.responses for each in topic.partitions]
            assert not any(each.error_code for each in partitions), answer
            assert bool(answer.throttle_time_ms) != bool(partitions), answer
            if partitions and not partitions[0].records:
                return None  # not read yet
        else:
            answer = await conn.call(3, 12, topics=[], allow_auto_topic_creation=False)
        return bool(answer.throttle_time_ms)

    async def _make_topic(self, conn: Connection) -> bool:
        self._made += 1
        name = f"{self.name}-{self._made}"
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
        code = (await conn.call(19, 7, topics=topics, timeout_ms=30_000)).topics[0].error_code
        assert code in {0, ErrorCode.THROTTLING_QUOTA_EXCEEDED}, f"{name}: {code}"
        return bool(code)

    async def _connect(self, gateway: Gateway) -> bool:
        conn = await Connection.open(*gateway.open, source=_SOURCE)
        try:
            await conn.call(18, 0)
        except (Closed, ConnectionError):
            return True
        finally:
            conn.close()
        return False


def quota_subjects(told: Told) -> list[Quota]:
    """Return one client for each kind of quota."""
    return [Quota(told, kind) for kind in QuotaKind]
