"""Users with open connections, whose rights, passwords, quotas and certificates are changed under them.

Owns: the load, the changes, and what is asked of the server meanwhile.
Must not know: how servers are started, what is printed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.authorization.world import Closed, Connection
from conformance.rights.belief import Belief
from conformance.rights.grants import Grants
from conformance.rights.quotas import quota_subjects
from conformance.rights.told import BOUND, PAUSE, Gateway, Right, Told, log_in, now, set_password, write
from kop.security.rights import AclOperation, Permission, ResourceType

CERTIFICATE_BOUND = 10.0
"""Seconds after which a changed certificate holds for new connections."""
BROKEN_EVERY = 15
"""The number of changes of the certificate of which one puts a file there that has none."""
_GRANTED = (AclOperation.WRITE, AclOperation.READ)
LOGIN_SECONDS = 25.0
"""Seconds for which a connection stays open that does not log in: 30, less some for a slow machine."""


class Acls(Right):
    """A right by an ALLOW and a DENY that come and go."""

    def __init__(self, told: Told, operation: AclOperation, number: int) -> None:
        super().__init__(told, f"acl-{operation.name.lower()}-{number}", operation, BOUND)
        self._there = {Permission.ALLOW: False, Permission.DENY: False}

    async def change(self, admin: Connection, chance: random.Random) -> None:
        """Add or remove one of the ACLs."""
        which = chance.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY])
        self._there[which] = present = not self._there[which]
        acl = {"principal": f"User:{self.name}", "host": "*", "operation": self._operation, "permission_type": which}
        acl |= {"resource_type": ResourceType.TOPIC, "resource_name": self.name, "resource_pattern_type": 3}
        self.belief.change(self._there[Permission.ALLOW] and not self._there[Permission.DENY], now())
        if present:
            answer = await admin.call(30, 3, creations=[acl])
            assert answer.results[0].error_code == 0, answer
        else:
            filters = {f"{name}_filter": acl[name] for name in ("resource_type", "resource_name", "principal", "host")}
            rest = {"pattern_type_filter": 3, "operation": self._operation, "permission_type": which}
            answer = await admin.call(31, 3, filters=[filters | rest])
            assert len(answer.filter_results[0].matching_acls) == 1, answer
        self.belief.done(now())
        self._told.changed("ACLs")


class Passwords:
    """A user whose password changes, and who comes and goes, while some log in and stay connected."""

    def __init__(self, told: Told, number: int) -> None:
        self._told = told
        self.name = f"user-{number}"
        self.belief: Belief[str | None] = Belief(self.name)
        self._passwords = [self.name]

    async def change(self, admin: Connection, chance: random.Random) -> None:
        """Give the user another password, or none."""
        gone = self.belief.value is not None and chance.random() < 0.3
        password = None if gone else f"{self.name}-{len(self._passwords)}"
        if password is not None:
            self._passwords.append(password)
        self.belief.change(password, now())
        await set_password(admin, self.name, password)
        self.belief.done(now())
        self._told.changed("users")

    async def log_in(self, gateway: Gateway) -> None:
        """Try the newest passwords, until cancelled."""
        while True:
            for password in self._passwords[-2:]:
                sent = now()
                conn = await log_in(gateway.login, self.name, password)
                if conn is not None:
                    conn.close()
                self._judge(password, conn is not None, sent)
                await asyncio.sleep(PAUSE)

    def _judge(self, password: str, is_in: bool, sent: float) -> None:
        if is_in:
            self._told.judge(f"login of {self.name}", self.belief, password, sent, BOUND)
        elif self.belief.possible(sent, now(), BOUND) == {password}:
            self._told.wrong.append(f"login of {self.name}: {password} is refused, and it holds")
        else:
            self._told.asked += 1

    async def stay(self, gateway: Gateway) -> None:
        """Ask on a connection for as long as it is open, then log in again, until cancelled."""
        while True:
            password = self.belief.value
            conn = None if password is None else await log_in(gateway.login, self.name, password)
            if conn is None or password is None:
                await asyncio.sleep(PAUSE)
                continue
            try:
                while True:
                    sent = now()
                    await conn.call(3, 12, topics=[], allow_auto_topic_creation=False)
                    self._judge(password, True, sent)
                    await asyncio.sleep(PAUSE)
            except (Closed, ConnectionError):
                self._judge(password, False, sent)
            finally:
                conn.close()


class Certificates:
    """The certificate of a listener, which is replaced, now and then by what is none, while connections stay open."""

    def __init__(self, told: Told, gateway: Gateway, folder: Path) -> None:
        self._told = told
        self._gateway = gateway
        self._folder = folder
        self._number = 0
        self._shown = ""
        """The certificate that was shown last."""
        self.belief = Belief(_of_file(gateway.keystore))

    async def change(self, _admin: Connection, _chance: random.Random) -> None:
        """Put another certificate into its place."""
        new = self._folder / "next.pem"
        self._number += 1
        broken = self._number % BROKEN_EVERY == 0
        if broken:
            while True:
                if self._shown == self.belief.value:  # else the one before would rightly stay
                    break
                await asyncio.sleep(PAUSE)
            new.write_text("no certificate\n")
        else:
            await asyncio.to_thread(make_certificate, new)
            self.belief.change(_of_file(new), now())
        os.replace(new, self._gateway.keystore)
        if not broken:
            self.belief.done(now())
        self._told.changed("certificates")

    async def connect(self, gateway: Gateway) -> None:
        """Look at the certificate that is shown to new connections, until cancelled."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        kept, since = await asyncio.open_connection(*gateway.tls, ssl=context), now()
        while True:
            sent = now()
            _, writer = await asyncio.open_connection(*gateway.tls, ssl=context)
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            self._shown = hashlib.sha256(shown).hexdigest()
            self._told.judge("certificate", self.belief, self._shown, sent, CERTIFICATE_BOUND)
            if kept[0].at_eof():
                kept[1].close()
                if now() - since < LOGIN_SECONDS:
                    self._told.wrong.append("certificate: an open connection was closed")
                kept, since = await asyncio.open_connection(*gateway.tls, ssl=context), now()
            await asyncio.sleep(PAUSE)


def make_certificate(path: Path) -> None:
    """Make a certificate and its key in one file."""
    key = path.with_suffix(".key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(path), "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())


def _of_file(path: Path) -> str:
    der = ssl.PEM_cert_to_DER_cert(path.read_text().partition("-----BEGIN PRIVATE")[0])
    return hashlib.sha256(der).hexdigest()


class _Steady:
    """A user whose rights and password stay as they are: he is never refused."""

    def __init__(self, told: Told) -> None:
        self._acls = Acls(told, AclOperation.WRITE, 99)
        self.name = self._acls.name

    async def begin(self, admin: Connection) -> None:
        while not self._acls.belief.value:
            await self._acls.change(admin, random.Random(1))

    async def load(self, gateway: Gateway) -> None:
        await self._acls.load(gateway)


@dataclass(frozen=True, slots=True)
class ByGrants:
    """A gateway that goes by Pulsar's grants."""

    gateway: Gateway
    admin_url: str
    namespace: str


async def churn(
    gateways: list[Gateway],
    by_grants: ByGrants | None,
    changes: int,
    seed: int,
    folder: Path,
    say: Callable[[str], None],
) -> Told:
    """Change each kind of thing so many times under load, and return what was seen.

    Changes go to the first gateway, and all others are asked, too. Without `by_grants` no grants are changed.
    """
    told, chance = Told(), random.Random(seed)
    acls = [Acls(told, each, number) for each in (AclOperation.WRITE, AclOperation.READ) for number in range(2)]
    users = [Passwords(told, number) for number in range(3)]
    quotas = quota_subjects(told)
    certificates = Certificates(told, gateways[0], folder)
    steady = _Steady(told)
    admin = await Connection.open(*gateways[0].open)
    names = [*(each.name for each in acls), steady.name, *(name for each in quotas for name in each.topics)]
    await _make(admin, names, *(each.name for each in users), *(each.name for each in quotas))
    for each in quotas:
        for name in each.topics:
            await write(admin, name)
    await steady.begin(admin)
    told.changes.clear()
    await _until_known(gateways, names)
    load: list[Awaitable[None]] = []
    for gateway in gateways:
        load += [steady.load(gateway), *(each.load(gateway) for each in acls), *(each.load(gateway) for each in quotas)]
        load += [work(gateway) for each in users for work in (each.log_in, each.stay)]
    load.append(certificates.connect(gateways[0]))
    kinds: list[list[Any]] = [acls, users, [certificates], *([each] for each in quotas)]
    grants: list[Grants] = []
    if by_grants is not None:
        grants = [Grants(told, each, by_grants.admin_url, by_grants.namespace) for each in _GRANTED]
        its_admin = await Connection.open(*by_grants.gateway.open)
        await _make(its_admin, [each.name for each in grants])
        await _until_known([by_grants.gateway], [each.name for each in grants])
        its_admin.close()
        load += [each.load(by_grants.gateway) for each in grants]
        kinds.append(grants)
    tasks = [asyncio.ensure_future(each) for each in load]
    plan = [subjects for subjects in kinds for _ in range(changes)]
    chance.shuffle(plan)
    try:
        for number, subjects in enumerate(plan):
            say(f"change {number + 1} of {len(plan)}, {told.asked} answers, {len(told.wrong)} wrong")
            await chance.choice(subjects).change(admin, chance)
            await asyncio.sleep(chance.choice([0, 0.01, 0.05]))
            for task in tasks:
                if task.done():
                    task.result()  # a client that has ended has failed
        for quota in quotas:
            await quota.end(admin)
        longest = max([BOUND, *(each.bound for each in grants)])
        await asyncio.sleep(longest * 1.5)  # what holds at the end has to be what is answered
        await told.pulse()
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        admin.close()
    told.worst = {each.kind.value: each.belief.worst for each in quotas}
    told.worst["certificates"] = certificates.belief.worst
    of_many: dict[str, list[Any]] = {"ACLs": acls, "users": users, "grants": grants}
    for what, subjects in of_many.items():
        told.worst[what] = max((each.belief.worst for each in subjects), default=0.0)
    return told


async def _make(admin: Connection, names: list[str], *users: str) -> None:
    """Make topics, each with a user of its name, and more users; each has its name for a password."""
    kept = [{"name": "retention.ms", "value": "-1"}]  # the records are old
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1, "configs": kept} for name in names]
    made = await admin.call(19, 7, topics=topics, timeout_ms=30_000)
    assert not any(each.error_code for each in made.topics), made
    for name in {*names, *users}:
        await set_password(admin, name, name)


async def _until_known(gateways: list[Gateway], names: list[str]) -> None:
    for gateway in gateways:
        conn = await Connection.open(*gateway.open)
        asked = [{"name": name, "topic_id": None} for name in names]
        while True:
            answer = await conn.call(3, 12, topics=asked, allow_auto_topic_creation=False)
            if not any(each.error_code for each in answer.topics):
                break
            await asyncio.sleep(0.05)  # asked again and again: no request waits for a topic
        conn.close()
