"""What all kinds of changes under load have in common: the gateways, what a run has seen, logins, a right's load.

Owns: addresses, the notes of a run, the login of a client, requests that a right to a topic decides.
Must not know: who changes what, and in which order.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conformance.authorization.world import CLIENT_ID, Closed, Connection, batch
from conformance.rights.belief import Belief
from kop.errors import ErrorCode
from kop.security.rights import AclOperation
from kop.security.sasl.scram import ScramLogin

BOUND: Final = 1.0
"""Seconds after which users, ACLs and quotas are in force everywhere."""
PAUSE: Final = 0.005
"""Seconds between two requests of one user."""
PULSE: Final = 100
"""Answers to others after which a client that has none is held, and not only one of a slow machine."""
_ROUNDS: Final = 4096
now = time.monotonic


@dataclass(frozen=True, slots=True)
class Gateway:
    """The addresses of one gateway."""

    open: tuple[str, int]
    """Without a login: who comes is a super user."""
    login: tuple[str, int]
    """By SCRAM-SHA-256."""
    tls: tuple[str, int]
    keystore: Path
    """The file of the certificate."""


@dataclass(slots=True)
class Told:
    """What a run has seen."""

    wrong: list[str] = field(default_factory=list)
    asked: int = 0
    """Requests and logins that were answered by what may be in force."""
    changes: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    """The latest answer by what held before, by what was changed, in seconds behind the answer to the change."""

    pulses: dict[Gateway, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=PULSE)))
    """When each gateway gave its last answers to those who have no quota."""

    async def pulse(self) -> None:
        """Wait until all gateways have given as many answers as tell who is held."""
        begun = now()
        while True:
            if all(times[0] > begun for times in self.pulses.values()):
                break
            await asyncio.sleep(PAUSE)

    def changed(self, what: str) -> None:
        self.changes[what] = self.changes.get(what, 0) + 1

    def judge(self, what: str, belief: Belief[Any], value: Any, sent: float, bound: float) -> None:
        """Note if an answer may go by a value."""
        if belief.is_right(value, sent, now(), bound):
            self.asked += 1
        else:
            self.wrong.append(f"{what}: answered by {value!r}, and {belief.value!r} holds")


async def log_in(address: tuple[str, int], name: str, password: str, client_id: str = CLIENT_ID) -> Connection | None:
    """Return a connection that has logged in; None if the login is refused."""
    conn = await Connection.open(*address, client_id)
    login = ScramLogin("SCRAM-SHA-256", name, password, os.urandom(9).hex())
    try:
        assert not (await conn.call(17, 1, mechanism="SCRAM-SHA-256")).error_code
        answer = await conn.call(36, 2, auth_bytes=login.first())
        answer = await conn.call(36, 2, auth_bytes=login.final(bytes(answer.auth_bytes)))
    except Closed:
        conn.close()
        return None
    if answer.error_code:
        conn.close()
        return None
    return conn


async def set_password(admin: Connection, name: str, password: str | None) -> None:
    """Give a user a password, or none; AssertionError if that is refused."""
    user: dict[str, Any] = {"name": name, "mechanism": 1}
    if password is None:
        answer = await admin.call(51, 0, deletions=[user], upsertions=[])
    else:
        salt = os.urandom(8)
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ROUNDS)
        made = user | {"iterations": _ROUNDS, "salt": salt, "salted_password": salted}
        answer = await admin.call(51, 0, deletions=[], upsertions=[made])
    assert answer.results[0].error_code == 0, answer


class Right:
    """A user's right to a topic that comes and goes, while he writes or reads all the time."""

    def __init__(self, told: Told, name: str, operation: AclOperation, bound: float) -> None:
        """`name`: the user's, and his topic's. `bound`: seconds after which a change is in force."""
        self.name = name
        self.belief = Belief(False)
        self.bound = bound
        self._told = told
        self._operation = operation

    async def load(self, gateway: Gateway) -> None:
        """Write or read until cancelled."""
        conn = await log_in(gateway.login, self.name, self.name)
        assert conn is not None, f"{self.name} cannot log in"
        try:
            while True:
                sent = now()
                code = await self._try(conn)
                self._told.pulses[gateway].append(now())
                assert code in {0, ErrorCode.TOPIC_AUTHORIZATION_FAILED}, f"{self.name}: {code}"
                self._told.judge(self.name, self.belief, not code, sent, self.bound)
                await asyncio.sleep(PAUSE)
        finally:
            conn.close()

    async def _try(self, conn: Connection) -> int:
        if self._operation is AclOperation.WRITE:
            return int((await write(conn, self.name)).responses[0].partition_responses[0].error_code)
        return int((await read(conn, self.name)).responses[0].partitions[0].error_code)


async def write(conn: Connection, topic: str) -> Any:
    """Write a record; return the answer."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch("record")}]}]
    return await conn.call(0, 9, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)


async def read(conn: Connection, topic: str) -> Any:
    """Read the first records of a topic; return the answer."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": topic, "partitions": [partition]}]
    return await conn.call(
        1, 12, max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=topics, forgotten_topics_data=[]
    )
