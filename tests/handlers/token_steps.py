"""Steps with delegation tokens, and what Apache Kafka 4.3.1 answered to each, over SASL_PLAINTEXT with ACLs.

Owns: the steps. Run as a program it takes them on a server: `python token_steps.py HOST:PLAIN_PORT:SASL_PORT`, whose
users admin (who may do everything), alice, bob and carol have the password `secret`, by PLAIN.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sys
from base64 import b64decode, b64encode
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.authorization.world import Connection
from kop.errors import ErrorCode
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.sasl.scram import HASHES

Address = tuple[str, int]
NONE, NOT_ALLOWED = ErrorCode.NONE, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
NOT_FOUND, MISMATCH = ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
DENIED, EXPIRED = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, ErrorCode.DELEGATION_TOKEN_EXPIRED
NO_USER = ErrorCode.INVALID_PRINCIPAL_TYPE
DAY: Final = 86_400_000
WEEK: Final = 7 * DAY


class TokenLogin:
    """The client's side of SCRAM, by a token: `first`, then `final` of the server's answer."""

    def __init__(self, mechanism: str, token_id: str, password: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._bare = f"n={token_id},r=nonce,tokenauth=true"

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        nonce, salt, iterations = (part[2:] for part in answer.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, b64decode(salt), int(iterations))
        key = hmac.digest(salted, b"Client Key", self._hash)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{answer.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self._hash, key).digest(), signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


async def by_plain(address: Address, name: str) -> Connection:
    """A connection of a user."""
    conn = await Connection.open(*address)
    assert (await conn.call(17, 1, mechanism="PLAIN")).error_code == NONE
    answer = await conn.call(36, 2, auth_bytes=f"\0{name}\0secret".encode())
    assert answer.error_code == NONE, answer
    return conn


async def by_token(
    address: Address, token: Any, mechanism: str = "SCRAM-SHA-256", conn: Connection | None = None
) -> tuple[Connection, Any]:
    """A connection of a token's bearer, a new one if none is given, and the answer to its login."""
    conn = conn or await Connection.open(*address)
    login = TokenLogin(mechanism, token.token_id, b64encode(bytes(token.hmac)).decode())
    assert (await conn.call(17, 1, mechanism=mechanism)).error_code == NONE
    answer = await conn.call(36, 2, auth_bytes=login.first())
    if not answer.error_code:
        answer = await conn.call(36, 2, auth_bytes=login.final(bytes(answer.auth_bytes)))
    return conn, answer


def renewers(*names: str, kind: str = "User") -> list[dict[str, str]]:
    return [dict(principal_type=kind, principal_name=name) for name in names]


class Steps:
    """Requests to one server, and what was answered to them."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """The error code of each step, or what else is told."""
        self.tokens: dict[str, Any] = {}

    async def create(self, step: str, conn: Connection, version: int = 3, **fields: Any) -> None:
        asked = dict(owner_principal_type=None, owner_principal_name=None, renewers=[], max_lifetime_ms=-1) | fields
        answer = await conn.call(38, version, **asked)
        self.tokens[step] = answer
        self.answers[step] = ErrorCode(answer.error_code).name
        if not answer.error_code:
            lives, ends = (
                each - answer.issue_timestamp_ms for each in (answer.expiry_timestamp_ms, answer.max_timestamp_ms)
            )
            asked_by = f" by {answer.token_requester_principal_name}" if version >= 3 else ""
            told = f"{answer.principal_type}:{answer.principal_name}{asked_by}, {lives}, {ends}"
            self.answers[step] += f": {told}, {len(answer.token_id)}, {len(answer.hmac)}"

    async def renew(self, step: str, conn: Connection, of: str, period: int = -1, version: int = 2) -> None:
        answer = await conn.call(39, version, hmac=self._hmac(of), renew_period_ms=period)
        self._changed(step, answer)

    async def expire(self, step: str, conn: Connection, of: str, period: int = -1, version: int = 2) -> None:
        answer = await conn.call(40, version, hmac=self._hmac(of), expiry_time_period_ms=period)
        self._changed(step, answer)

    def _hmac(self, of: str) -> bytes:
        return bytes(self.tokens[of].hmac) if of else b"nothing"

    def _changed(self, step: str, answer: Any) -> None:
        self.answers[step] = ErrorCode(answer.error_code).name
        if not answer.error_code:
            self.tokens[step] = answer.expiry_timestamp_ms

    async def describe(
        self, step: str, conn: Connection, *owners: str, everybodys: bool = False, version: int = 3
    ) -> None:
        answer = await conn.call(41, version, owners=None if everybodys else renewers(*owners))
        names = {token.token_id: name for name, token in self.tokens.items() if hasattr(token, "token_id")}
        told = sorted(names[token.token_id] for token in answer.tokens)
        self.answers[step] = f"{ErrorCode(answer.error_code).name}: {', '.join(told)}"
        for token in answer.tokens:
            made = self.tokens[names[token.token_id]]
            assert (token.principal_name, token.hmac, token.max_timestamp) == (
                made.principal_name,
                made.hmac,
                made.max_timestamp_ms,
            )


async def give(admin: Connection, operation: AclOperation, resource: ResourceType, name: str) -> None:
    """Let bob have a right."""
    creation = dict(resource_type=resource, resource_name=name, resource_pattern_type=PatternType.LITERAL)
    creation |= dict(principal="User:bob", host="*", operation=operation, permission_type=Permission.ALLOW)
    answer = await admin.call(30, 3, creations=[creation])
    assert answer.results[0].error_code == NONE
    await asyncio.sleep(SETTLED)  # Kafka alone


SETTLED = 0.0
"""Seconds until a server has heard of what another one answered."""


_ALL: Final = (
    "NONE: admin for alice, alice 1, bob for alice now, empty owner, long, of herself, renewed by bob, short, zero"
)
KAFKAS: Final = {
    "nobody": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "nobody renews": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "nobody ends": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "nobody looks": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: ",
    "alice 1": "NONE: User:alice, 86400000, 604800000, 22, 64",
    "alice 2": "NONE: User:alice, 86400000, 604800000, 22, 64",
    "alice 3": "NONE: User:alice by alice, 86400000, 604800000, 22, 64",
    "short": "NONE: User:alice by alice, 1000, 1000, 22, 64",
    "long": "NONE: User:alice by alice, 86400000, 604800000, 22, 64",
    "zero": "NONE: User:alice by alice, 86400000, 604800000, 22, 64",
    "renewed by bob": "NONE: User:alice by alice, 86400000, 604800000, 22, 64",
    "group renews": "INVALID_PRINCIPAL_TYPE",
    "for bob": "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "of herself": "NONE: User:alice by alice, 86400000, 604800000, 22, 64",
    "empty owner": "NONE: User:alice by alice, 86400000, 604800000, 22, 64",
    "admin for alice": "NONE: User:alice by admin, 86400000, 604800000, 22, 64",
    "bob for alice": "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "bob for alice now": "NONE: User:alice by bob, 86400000, 604800000, 22, 64",
    "renew": "NONE",
    "renew for a day": "NONE",
    "renew by renewer": "NONE",
    "renew by requester": "DELEGATION_TOKEN_OWNER_MISMATCH",
    "renew by carol": "DELEGATION_TOKEN_OWNER_MISMATCH",
    "renew by admin": "DELEGATION_TOKEN_OWNER_MISMATCH",
    "renew nothing": "DELEGATION_TOKEN_NOT_FOUND",
    "expire by carol": "DELEGATION_TOKEN_OWNER_MISMATCH",
    "expire nothing": "DELEGATION_TOKEN_NOT_FOUND",
    "expire later": "NONE",
    "expire": "NONE",
    "expire again": "DELEGATION_TOKEN_NOT_FOUND",
    "expire at once": "NONE",
    "renew expired": "DELEGATION_TOKEN_EXPIRED",
    "renew expired by carol": "DELEGATION_TOKEN_EXPIRED",
    "expire expired": "DELEGATION_TOKEN_EXPIRED",
    "remove expired": "NONE",
    "alice looks": _ALL,
    "none asked": "NONE: ",
    "of alice": _ALL,
    "of carol": "NONE: ",
    "bob looks": "NONE: bob for alice now, renewed by bob",
    "bob looks for bob's": "NONE: bob for alice now, renewed by bob",
    "carol looks": "NONE: ",
    "admin looks": _ALL,
    "bob sees one more": "NONE: bob for alice now, long, renewed by bob",
    "bob sees alice's": _ALL,
    "login SCRAM-SHA-256": "NONE, True",
    "login SCRAM-SHA-512": "NONE, True",
    "by a token": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "renew by a token": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "expire by a token": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "look by a token": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: ",
    "login by a token that has ended": "SASL_AUTHENTICATION_FAILED",
}
"""What Apache Kafka answered. Of a token: the owner, who asked for it, when it ends, the lengths of id and HMAC."""


async def steps(plain: Address, sasl: Address) -> Steps:
    """Take all steps."""
    s = Steps()
    async with AsyncExitStack() as stack:

        def opened(conn: Connection) -> Connection:
            stack.callback(conn.close)
            return conn

        nobody = opened(await Connection.open(*plain))
        admin, alice, bob, carol = [opened(await by_plain(sasl, each)) for each in ("admin", "alice", "bob", "carol")]
        await s.create("nobody", nobody)
        await s.renew("nobody renews", nobody, "")
        await s.expire("nobody ends", nobody, "")
        await s.describe("nobody looks", nobody, everybodys=True)
        for version in (1, 2, 3):
            await s.create(f"alice {version}", alice, version)
        await s.create("short", alice, max_lifetime_ms=1000)
        await s.create("long", alice, max_lifetime_ms=2 * WEEK)
        await s.create("zero", alice, max_lifetime_ms=0)
        await s.create("renewed by bob", alice, renewers=renewers("bob", "bob"))
        await s.create("group renews", alice, renewers=renewers("bob", kind="Group"))
        await s.create("for bob", alice, owner_principal_type="User", owner_principal_name="bob")
        await s.create("of herself", alice, owner_principal_type="User", owner_principal_name="alice")
        await s.create("empty owner", alice, owner_principal_type="User", owner_principal_name="")
        await s.create("admin for alice", admin, owner_principal_type="User", owner_principal_name="alice")
        await s.create("bob for alice", bob, owner_principal_type="User", owner_principal_name="alice")
        await give(admin, AclOperation.CREATE_TOKENS, ResourceType.USER, "User:alice")
        await s.create("bob for alice now", bob, owner_principal_type="User", owner_principal_name="alice")
        await asyncio.sleep(SETTLED)  # Kafka alone
        await s.renew("renew", alice, "alice 1", version=1)
        await s.renew("renew for a day", alice, "alice 1", DAY)
        await s.renew("renew by renewer", bob, "renewed by bob")
        await s.renew("renew by requester", bob, "bob for alice now")
        await s.renew("renew by carol", carol, "alice 1")
        await s.renew("renew by admin", admin, "alice 1")
        await s.renew("renew nothing", alice, "")
        await s.expire("expire by carol", carol, "alice 2")
        await s.expire("expire nothing", carol, "")
        await s.expire("expire later", alice, "alice 2", DAY, version=1)
        await s.expire("expire", alice, "alice 2")
        await asyncio.sleep(SETTLED)  # Kafka alone
        await s.expire("expire again", alice, "alice 2")
        await s.expire("expire at once", alice, "alice 3", 0)
        await asyncio.sleep(max(SETTLED, 0.005))  # its lifetime
        await s.renew("renew expired", alice, "alice 3")
        await s.renew("renew expired by carol", carol, "alice 3")
        await s.expire("expire expired", alice, "alice 3", 5)
        await s.expire("remove expired", alice, "alice 3")
        await asyncio.sleep(SETTLED)  # Kafka alone
        await s.describe("alice looks", alice, everybodys=True)
        await s.describe("none asked", alice)
        await s.describe("of alice", alice, "alice", version=1)
        await s.describe("of carol", alice, "carol")
        await s.describe("bob looks", bob, everybodys=True)
        await s.describe("bob looks for bob's", bob, "bob")
        await s.describe("carol looks", carol, everybodys=True)
        await s.describe("admin looks", admin, everybodys=True, version=2)
        await give(admin, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, s.tokens["long"].token_id)
        await s.describe("bob sees one more", bob, everybodys=True)
        await give(admin, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:alice")
        await s.describe("bob sees alice's", bob, everybodys=True)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            conn, answer = await by_token(sasl, s.tokens["long"], mechanism)
            opened(conn)
            lifetime = answer.session_lifetime_ms
            s.answers[f"login {mechanism}"] = f"{ErrorCode(answer.error_code).name}, {DAY - 60_000 < lifetime <= DAY}"
        await s.create("by a token", conn)
        await s.renew("renew by a token", conn, "long")
        await s.expire("expire by a token", conn, "long")
        await s.describe("look by a token", conn, everybodys=True)
        conn, answer = await by_token(sasl, s.tokens["alice 2"])
        opened(conn)
        s.answers["login by a token that has ended"] = ErrorCode(answer.error_code).name
    return s


if __name__ == "__main__":
    SETTLED = 0.3
    host, *ports = sys.argv[1].split(":")
    taken = asyncio.run(steps((host, int(ports[0])), (host, int(ports[1]))))
    print("\n".join(f"    {step!r}: {answer!r}," for step, answer in taken.answers.items()))  # noqa: T201
