"""Kafka's topic configs as Pulsar's topic policies.

Owns: that mapping, setting what changed, and waiting until it is in force.
Must not know: who changed what.

Pulsar stores a policy first and obeys it later (https://pulsar.apache.org/docs/next/admin-api-topics/): CreateTopics
has not done what it says until the policy reads back.

- retention.ms, retention.bytes -> retention, in whole minutes and MiB, rounded up: Pulsar drops whole ledgers, so it
  always keeps somewhat more than was asked for. Without `delete` in cleanup.policy, all is kept.
- cleanup.policy=compact -> compactionThreshold; the threshold 0 turns it off. What the gateways' own topics keep after
  their first compaction is said in `compaction.py`.
- max.message.bytes -> maxMessageSize, where the topic itself sets it, so that Pulsar's producers are held to it, too.
  Six times as much, at most the brokers' own limit: no entry that a gateway makes of such a batch is larger, not even
  of records without content (4.2 times). The limit itself, on batches of Kafka's clients, the gateways check.
- message.timestamp.type has no counterpart: Pulsar keeps both times of a message, and gateways show the one asked for.
- every topic: deduplication on (idempotent producers), never deleted for being idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import FOREVER, Admin, Retention
from kop.storage.base import LogPolicy

COMPACTION_THRESHOLD: Final = 100 * 1024 * 1024
OWN_COMPACTION_THRESHOLD: Final = 16 * 1024 * 1024
"""Of the gateways' own topics: who takes a partition over reads all that is not compacted."""
_MINUTE: Final = 60_000
_MIB: Final = 1 << 20
_IN_FORCE_SECONDS: Final = 10.0
_LARGEST: Final = 2**31 - 1
_ENTRY_GROWTH: Final = 6
_ENTRY_ROOM: Final = 64 * 1024
"""Bytes that an entry may have beside its records: names, schemas."""


class _Policies(NamedTuple):
    """Those that are set and waited for."""

    retention: Retention
    compaction: int
    max_size: int


def retention_of(policy: LogPolicy) -> Retention:
    """Minutes and MiB, -1 where there is no limit."""
    if not policy.delete:
        return Retention(-1, -1)
    minutes = -1 if policy.retention_ms < 0 else min(max(-(-policy.retention_ms // _MINUTE), 1), _LARGEST)
    megabytes = -1 if policy.retention_bytes < 0 else min(max(-(-policy.retention_bytes // _MIB), 1), _LARGEST)
    return Retention(minutes, megabytes)


def keeps(retention: Retention) -> bool:
    """Whether records outlive the subscriptions that have read them: the first limit that is met drops them."""
    return 0 not in retention


def compaction_of(policy: LogPolicy, internal: bool = False) -> int:
    """Bytes of backlog from which Pulsar compacts by itself; 0: never."""
    if not policy.compact:
        return 0
    return OWN_COMPACTION_THRESHOLD if internal else COMPACTION_THRESHOLD


def max_size_of(policy: LogPolicy, largest: int) -> int:
    """Bytes of an entry, no more than the brokers' own limit `largest`; 0: that limit alone."""
    return min(_ENTRY_GROWTH * policy.max_message_bytes + _ENTRY_ROOM, largest) if policy.limits_messages else 0


async def held(admin: Admin, full_name: str, policy: LogPolicy, *, largest: int) -> Mapping[str, str]:
    """Kafka's configs for the policies in force that are not what `policy` makes of its own."""
    retention = await admin.get_retention(full_name, applied=True) or Retention(0, 0)
    compact = bool(await admin.get_compaction_threshold(full_name, applied=True))
    max_size = await admin.get_max_message_size(full_name, applied=True) or largest
    found: dict[str, str] = {}
    delete = policy.delete
    if retention != retention_of(policy):
        delete = retention != FOREVER or not compact
        found["retention.ms"] = str(max(retention.minutes * _MINUTE, -1))
        found["retention.bytes"] = str(max(retention.megabytes * _MIB, -1))
    if max_size != (max_size_of(policy, largest) or largest) and max_size < policy.max_message_bytes:
        found["max.message.bytes"] = str(max_size)
    if (delete, compact) != (policy.delete, policy.compact):
        found["cleanup.policy"] = ",".join(["compact"] * compact + ["delete"] * delete)
    return found


async def apply(
    admin: Admin,
    full_name: str,
    policy: LogPolicy,
    before: LogPolicy | None = None,
    *,
    largest: int,
    internal: bool = False,
) -> None:
    """Set what differs from `before` (None: all of it, on a new topic), and wait until it reads back."""

    def of(policy: LogPolicy) -> _Policies:
        return _Policies(retention_of(policy), compaction_of(policy, internal), max_size_of(policy, largest))

    wanted = of(policy)
    known = _Policies(Retention(0, 0), 0, 0) if before is None else of(before)
    calls: list[Callable[[], Awaitable[None]]] = []
    if before is None or known.retention != wanted.retention:
        calls.append(partial(set_retention, admin, full_name, wanted.retention))
    if known.compaction != wanted.compaction:
        calls.append(partial(admin.set_compaction_threshold, full_name, wanted.compaction))
    if known.max_size != wanted.max_size:
        calls.append(partial(admin.set_max_message_size, full_name, wanted.max_size))
    if before is None:
        calls.append(partial(admin.set_deduplication, full_name, True))
        calls.append(partial(admin.keep_when_idle, full_name))
    for call in calls:  # one after the other: Pulsar merges concurrent changes of a topic's policies badly
        await call()
    if calls:
        await _in_force(admin, full_name, wanted)


async def set_retention(admin: Admin, full_name: str, retention: Retention) -> None:
    """Set it, also where the broker's backlog quota stands in its way. PulsarError."""
    try:
        await admin.set_retention(full_name, retention)
    except PulsarError as error:
        if error.code != "PreconditionFailed":
            raise
        # The broker wants retention to exceed the backlog quota (10 GB by default). Kafka knows no such quota.
        await admin.lift_backlog_quotas(full_name)
        end = asyncio.get_running_loop().time() + _IN_FORCE_SECONDS
        while True:
            try:
                await admin.set_retention(full_name, retention)
                return
            except PulsarError as still:
                if still.code != "PreconditionFailed" or asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(0.02)


async def _in_force(admin: Admin, full_name: str, wanted: _Policies) -> None:
    async def seen() -> tuple[Retention | None, int, int]:
        return (
            await admin.get_retention(full_name, applied=True),
            await admin.get_compaction_threshold(full_name, applied=True) or 0,
            (await admin.get_max_message_size(full_name, applied=True) or 0) if wanted.max_size else 0,
        )

    await wait_for(seen, wanted)


async def wait_for(seen: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Until a policy reads as it was set; PulsarError Timeout where it does not."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _IN_FORCE_SECONDS
    pause = 0.005
    while (found := await seen()) != wanted:
        if loop.time() > end:
            raise PulsarError("Timeout", f"a policy did not come into force: it is {found}, not {wanted}")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.2)
