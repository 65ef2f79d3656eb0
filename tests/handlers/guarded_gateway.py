"""A gateway with users and ACLs in its state topic: a super user makes the world of the recorded requests by one
listener, and alice, who has logged in, sends these by another.

Owns: her login, her rights as ACLs that clients' requests make.
Must not know: which requests there are, what is answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from handlers.authorized_gateway import Place

from conformance.authorization.requests import Right
from conformance.authorization.world import Closed, Connection, World
from kop.app import Serving
from kop.security.rights import AclOperation, ResourceType
from kop.security.sasl.scram import ScramLogin
from kop.security.settings import STANDARD_AUTHORIZER
from kop.security.users import Mechanism

NAME, PASSWORD = "alice", "secret"
MECHANISM = Mechanism.SCRAM_SHA_256
SETTINGS = {
    "listeners": "OPEN://127.0.0.1:0,LOGIN://127.0.0.1:0",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}


async def logged_in(address: tuple[str, int], name: str, password: str) -> Connection:
    """Return a connection of a user. AssertionError if that is no user."""
    conn = await Connection.open(*address)
    login = ScramLogin(MECHANISM.text, name, password, "nonce")
    assert (await conn.call(17, 1, mechanism=MECHANISM.text)).error_code == 0
    answer = await conn.call(36, 2, auth_bytes=login.first())
    answer = await conn.call(36, 2, auth_bytes=login.final(bytes(answer.auth_bytes)))
    assert answer.error_code == 0
    login.check(bytes(answer.auth_bytes))
    return conn


class Guarded:
    """The gateway, with the world made, and alice without a right."""

    def __init__(self, serving: Serving) -> None:
        self.place = Place(serving, World())
        self._given: set[Right] = set()
        self._admin: Connection
        self._alice: Connection | None = None

    async def open(self) -> None:
        """Make the world, and alice."""
        self._admin = await Connection.open(*self.place.serving.listeners[0])
        await self.place.world.make(self._admin)
        salted = hashlib.pbkdf2_hmac(MECHANISM.hash_name, PASSWORD.encode(), b"salt", 4096)
        user = {"name": NAME, "mechanism": MECHANISM, "iterations": 4096, "salt": b"salt", "salted_password": salted}
        answer = await self._admin.call(51, 0, deletions=[], upsertions=[user])
        assert answer.results[0].error_code == 0

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()
        self._leave()

    def _leave(self) -> None:
        if self._alice is not None:
            self._alice.close()
            self._alice = None

    async def give(self, given: Collection[Right]) -> None:
        """Let these be alice's rights."""
        wanted = set(given)
        if gone := self._given - wanted:
            answer = await self._admin.call(31, 3, filters=[_filter(right) for right in gone])
            assert [len(each.matching_acls) for each in answer.filter_results] == [1] * len(gone)
        if new := wanted - self._given:
            answer = await self._admin.call(30, 3, creations=[_creation(right) for right in new])
            assert not any(each.error_code for each in answer.results)
        self._given = wanted

    async def answer(self, vector: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to alice's request, as it was written down of Kafka's."""
        if self._alice is None:
            self._alice = await logged_in(self.place.serving.listeners[1], NAME, PASSWORD)
        frame = self.place.world.filled(bytes.fromhex(vector["frame"]))
        try:
            self._alice.send(frame)
            if not vector["answered"]:
                await self._alice.call(18, 0)
                return {"codes": {}, "told": []}
            return self.place.world.described(vector["key"], vector["version"], frame, await self._alice.receive())
        except Closed:
            self._leave()
            return {"closed": True}


def _creation(right: Right) -> dict[str, Any]:
    operation, resource, name = right.split(" ", 2)
    return {
        "resource_type": ResourceType[resource],
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": f"User:{NAME}",
        "host": "127.0.0.1",
        "operation": AclOperation[operation],
        "permission_type": 3,
    }


def _filter(right: Right) -> dict[str, Any]:
    creation = _creation(right)
    return {
        "resource_type_filter": creation["resource_type"],
        "resource_name_filter": creation["resource_name"],
        "pattern_type_filter": 3,
        "principal_filter": creation["principal"],
        "host_filter": None,
        "operation": creation["operation"],
        "permission_type": 3,
    }
