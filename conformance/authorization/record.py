"""Ask an Apache Kafka all requests with all their rights, without any, and with each of them missing.

    python -m conformance.authorization.record        -> conformance/vectors/authorization.json

KAFKA_LIBS and KAFKA_DIR as for conformance/kafka_server.sh, which starts the Kafka.

Two principals talk to it: a superuser over SASL, who makes the world anew before each case and gives rights, and one
without a name, whose answers are written down.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from conformance.authorization.requests import REQUESTS, Request, Right, cases, rights
from conformance.authorization.world import (
    ABSENT,
    CALM,
    HIDDEN,
    MISSING,
    NEW_PRODUCER,
    OPEN,
    SEEN,
    USER,
    Closed,
    Connection,
    World,
    request_frame,
)
from kop.errors import ErrorCode
from kop.handlers import registry
from kop.security.rights import AclOperation, ResourceType
from kop.wire.messages import REQUESTS as MESSAGES

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parent / "vectors" / "authorization.json"
_OPERATIONS = {operation.name: int(operation) for operation in AclOperation}
_TYPES = {resource.name: int(resource) for resource in ResourceType}
_SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},ADMIN://127.0.0.1:{admin}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},ADMIN://127.0.0.1:{admin}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,ADMIN:SASL_PLAINTEXT
inter.broker.listener.name=ADMIN
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.admin.plain.sasl.jaas.config={jaas}
listener.name.controller.plain.sasl.jaas.config={jaas}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.listed=false
super.users=User:admin
"""
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="secret" user_admin="secret";'
)
_EVERY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _free_ports() -> int:
    """Return the first of three ports in a row."""
    while True:
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
                third.bind(("127.0.0.1", port + 2))
            except (OSError, OverflowError):
                continue
            return port


class Recorder:
    """A Kafka, its superuser, and what is known of its world."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._admin: Connection

    async def open(self) -> None:
        """Log the superuser in."""
        self._admin = await Connection.open("127.0.0.1", self._port + 2)
        await self._admin.call(17, 1, mechanism="PLAIN")
        answer = await self._admin.call(36, 2, auth_bytes=b"\0admin\0secret")
        assert answer.error_code == 0
        for kind in (0, 1):  # makes the coordinators' topics
            await _until(partial(self._admin.call, 10, 3, key="any", key_type=kind), 0)

    async def versions(self) -> dict[int, tuple[int, int]]:
        """Return the versions of each API."""
        answer = await self._admin.call(18, 4, client_software_name="record", client_software_version="1")
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    async def case(self, request: Request, version: int, frame: bytes, given: Iterable[Right]) -> dict[str, Any]:
        """Return the answer to a request in a new world of one who has these rights."""
        await self._clear()
        world = World()
        await world.make(self._admin)
        await self._give(given)
        conn = await Connection.open("127.0.0.1", self._port)
        try:
            sent = world.filled(frame)
            conn.send(sent)
            if not request.answered:
                await conn.call(18, 0)
                return {"codes": {}, "told": []}
            return world.described(request.key, version, sent, await conn.receive())
        except Closed:
            return {"closed": True}
        finally:
            conn.close()

    async def _give(self, given: Iterable[Right]) -> None:
        creations = []
        for right in given:
            operation, kind, name = right.split(" ", 2)
            creations.append(
                {
                    "resource_type": _TYPES[kind],
                    "resource_name": name,
                    "resource_pattern_type": 3,
                    "principal": "User:ANONYMOUS",
                    "host": "*",
                    "operation": _OPERATIONS[operation],
                    "permission_type": 3,
                }
            )
        if creations:
            answer = await self._admin.call(30, 3, creations=creations)
            assert not any(result.error_code for result in answer.results)
        await self._until_acls(len(creations))

    async def _until_acls(self, count: int) -> None:
        while True:
            listed = await self._admin.call(29, 3, **_EVERY_ACL)
            if sum(len(resource.acls) for resource in listed.resources) == count:
                break
            await asyncio.sleep(0.01)  # asked again and again
        await asyncio.sleep(0.04)  # the controller has its own copy, which nothing shows

    async def _clear(self) -> None:
        """Remove everything that a case has made."""
        admin = self._admin
        await admin.call(31, 3, filters=[_EVERY_ACL])
        await self._until_acls(0)
        await admin.call(51, 0, deletions=[{"name": USER, "mechanism": 1}], upsertions=[])
        removed = [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]
        user = [{"entity_type": "user", "entity_name": USER}]
        await admin.call(49, 1, entries=[{"entity": user, "ops": removed}], validate_only=False)
        for name in (OPEN, CALM):  # ends what is under way
            await _until(partial(admin.call, 22, 4, transactional_id=name, **NEW_PRODUCER), 0)
        names = [group.group_id for group in (await admin.call(16, 4, states_filter=[])).groups]
        for group in (await admin.call(15, 5, groups=names, include_authorized_operations=False)).groups:
            members = [{"member_id": member.member_id, "group_instance_id": None} for member in group.members]
            if members:
                await admin.call(13, 3, group_id=group.group_id, members=members)
        await admin.call(42, 2, groups_names=names)
        topics = [{"name": name, "topic_id": None} for name in (SEEN, HIDDEN, MISSING, ABSENT)]
        await admin.call(20, 6, topics=topics, timeout_ms=30_000)
        asked = partial(admin.call, 3, 12, topics=topics, allow_auto_topic_creation=False)
        await _until(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def _until(ask: Callable[[], Awaitable[Any]], code: int) -> None:
    """Ask until all answers, or those for all topics, have this code."""
    while True:
        answer = await ask()
        if {row.error_code for row in getattr(answer, "topics", [answer])} == {code}:
            return
        await asyncio.sleep(0.01)  # asked again and again: no request waits for it


def _versions(request: Request, kafkas: dict[int, tuple[int, int]]) -> Iterator[int]:
    api = registry.build()[request.key]
    oldest = max(api.min_version, kafkas[request.key][0])
    newest = min(api.max_version, kafkas[request.key][1])
    yield from sorted({min(max(version, oldest), newest) for version in request.versions})


async def _record(port: int, only: set[int]) -> list[dict[str, Any]]:
    recorder = Recorder(port)
    await recorder.open()
    kafkas = await recorder.versions()
    recorded = []
    for request in REQUESTS:
        if only and request.key not in only:
            continue
        name = MESSAGES[request.key].__name__.removesuffix("Request")
        for version in _versions(request, kafkas):
            frame = request_frame(request.key, version, request.fields(version))
            rows = request.rows(version)
            answers = [
                {"case": case, "refused": sorted(refused)}
                | await asyncio.wait_for(recorder.case(request, version, frame, rights(rows) - refused), 60)
                for case, refused in cases(rows)
            ]
            print(f"{name} {version} ({request.name}): {len(answers)} cases", file=sys.stderr)
            recorded.append(
                {
                    "api": name,
                    "key": request.key,
                    "version": version,
                    "request": request.name,
                    "answered": request.answered,
                    "frame": frame.hex(),
                    "rows": rows,
                    "cases": answers,
                }
            )
    return recorded


def _text(recorded: list[dict[str, Any]]) -> str:
    """Return JSON with a line for each case."""
    requests = []
    for request in recorded:
        head = json.dumps({name: value for name, value in request.items() if name != "cases"})
        lines = ",\n  ".join(json.dumps(case) for case in request["cases"])
        requests.append(f'{head[:-1]}, "cases": [\n  {lines}\n]}}')
    return "[\n" + ",\n".join(requests) + "\n]\n"


def main() -> None:
    """Start a Kafka, ask it everything, and write the file."""
    port = _free_ports()
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write(_SETTINGS.format(port=port, controller=port + 1, admin=port + 2, jaas=_JAAS))
        settings.flush()
        environ = os.environ | {"KAFKA_PORT": str(port), "KAFKA_SETTINGS": settings.name}
        server = str(HERE.parent / "kafka_server.sh")
        subprocess.run([server, "start"], env=environ, check=True, stdout=subprocess.DEVNULL)
        try:
            recorded = asyncio.run(_record(port, {int(key) for key in sys.argv[1:]}))
        finally:
            subprocess.run([server, "stop"], env=environ, check=True)
    if len(sys.argv) == 1:
        VECTORS.write_text(_text(recorded))
    else:
        print(_text(recorded), end="")


if __name__ == "__main__":
    main()
