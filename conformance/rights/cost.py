"""What rights cost: python -m conformance.rights.cost [--rounds N].

Owns: a load of small Produce requests on gateways without ACLs, with ten and with ten thousand; the time of a check.
Must not know: how rights change.

The CPU of the gateways is compared, round by round one after the other, so that a busy machine changes all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import timeit
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from conformance.authorization.world import Connection, batch, request_frame
from conformance.servers import SETTINGS, Kop
from kop.security.acls import Acl, Acls
from kop.security.authorizer import AclAuthorizer
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.settings import STANDARD_AUTHORIZER

_TOPIC: Final = "orders"
_UNDER_WAY: Final = 50
_AT_ONCE: Final = 500
"""ACLs that a request makes."""
_ACLS: Final = {"without ACLs": 0, "10 ACLs": 10, "10,000 ACLs": 10_000}


def _acls(count: int) -> list[Acl]:
    """Return ACLs of which the first one lets anybody write to the topic."""
    topic, allow = ResourceType.TOPIC, Permission.ALLOW
    first = Acl(topic, _TOPIC, PatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.WRITE, allow)
    kinds = PatternType.LITERAL, PatternType.PREFIXED
    return [
        first,
        *(
            Acl(topic, f"topic-{number}.", kinds[number % 2], f"User:{number % 97}", "*", AclOperation.READ, allow)
            for number in range(count - 1)
        ),
    ]


async def _prepare(address: tuple[str, int], count: int) -> Connection:
    conn = await Connection.open(*address)
    topics = [{"name": _TOPIC, "num_partitions": 1, "replication_factor": 1}]
    assert not (await conn.call(19, 7, topics=topics, timeout_ms=30_000)).topics[0].error_code
    rows = [
        {
            "resource_type": acl.resource,
            "resource_name": acl.name,
            "resource_pattern_type": acl.pattern,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }
        for acl in (_acls(count) if count else [])
    ]
    for begin in range(0, len(rows), _AT_ONCE):
        answer = await conn.call(30, 3, creations=rows[begin : begin + _AT_ONCE])
        assert not any(each.error_code for each in answer.results), answer
    return conn


async def _produce(conn: Connection, requests: int) -> None:
    """Send small batches, with some under way all the time."""
    data = [{"name": _TOPIC, "partition_data": [{"index": 0, "records": batch("record")}]}]
    frame = request_frame(0, 9, {"transactional_id": None, "acks": 1, "timeout_ms": 10_000, "topic_data": data})
    first = b""
    for sent in range(requests + _UNDER_WAY):
        if sent < requests:
            conn.send(frame)
        if sent >= _UNDER_WAY:
            answer = await conn.receive()
            first = first or answer[:20]
            assert len(answer) > 20, "refused"


def _cpu(pid: int) -> float:
    """Return the seconds that the threads of a process have run: its times in /proc are in ticks."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def _measure(gateways: Mapping[str, tuple[Kop, str]], rounds: int, requests: int) -> None:
    conns = {}
    for name, (_, address) in gateways.items():
        host, port = address.split(":")
        conns[name] = await _prepare((host, int(port)), _ACLS[name])
        await _produce(conns[name], requests)  # a first time, for what is made once
    taken: dict[str, list[float]] = {name: [] for name in gateways}
    for _ in range(rounds):
        for name, (server, _) in gateways.items():
            begin = _cpu(server.pid)
            await _produce(conns[name], requests)
            taken[name].append((_cpu(server.pid) - begin) / requests)
    for name, times in taken.items():
        ratio = statistics.median(mine / other for mine, other in zip(times, taken["without ACLs"], strict=True))
        print(f"Produce {name}: {1e6 * statistics.median(times):.1f} us of CPU, {ratio:.2f} of without")
    ratio = statistics.median(a / b for a, b in zip(taken["10,000 ACLs"], taken["10 ACLs"], strict=True))
    print(f"Produce 10,000 ACLs: {ratio:.2f} of 10")


def _check() -> None:
    for count in (10, 10_000):
        acls = Acls()
        acls.replace(_acls(count))
        authorizer = AclAuthorizer(acls, (), allow_if_no_acl=False)

        def ask(to: AclAuthorizer = authorizer) -> bool:
            return to.allows("User:ANONYMOUS", "127.0.0.1", AclOperation.WRITE, ResourceType.TOPIC, _TOPIC)

        assert ask()
        print(f"a cached check, {count:,} ACLs: {min(timeit.repeat(ask, number=100_000, repeat=5)) * 10:.2f} us")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m conformance.rights.cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=10_000, help="in a round, of each (default %(default)s)")
    options = parser.parse_args()
    _check()
    with ExitStack() as stack:
        gateways = {}
        for name, count in _ACLS.items():
            more = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"} if count else {}
            if count:
                more["allow.everyone.if.no.acl.found"] = "true"  # the first one may make the rest
            server = Kop(settings=SETTINGS | more)
            gateways[name] = server, stack.enter_context(server)
        asyncio.run(_measure(gateways, options.rounds, options.requests))


if __name__ == "__main__":
    main()
