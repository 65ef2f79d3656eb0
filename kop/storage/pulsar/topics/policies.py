"""Kafka's topic configs as Pulsar's topic policies.

Owns: that mapping, setting what changed or was asked for, and waiting until it is in force.
Must not know: who changed what.

Pulsar stores a policy first and obeys it later (https://pulsar.apache.org/docs/next/admin-api-topics/): CreateTopics
has not done what it says until the policy reads back.

- retention.ms, retention.bytes -> retention, in whole minutes and MiB, rounded up: Pulsar drops whole ledgers, so it
  always keeps somewhat more than was asked for. More than 68 years or 2 PiB is no limit there, and reads back as it was
  given. Without `delete` in cleanup.policy, all is kept.
- cleanup.policy=compact -> compactionThreshold; the threshold 0 turns it off. What the gateway's own topics keep after
  their first compaction is said in `compaction.py`.
- max.message.bytes -> maxMessageSize, where the topic itself sets it, so that Pulsar's producers are held to it, too.
  Six times as much, at most the Pulsar brokers' own limit: no entry that a broker makes of such a batch is larger, not
  even of records without content (4.2 times). The limit itself, on batches of Kafka's clients, the brokers check.
- message.timestamp.type has no counterpart: Pulsar keeps both times of a message, and brokers show the one asked for.
- every topic: deduplication on (idempotent producers), never deleted for being idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import FOREVER, Admin, Retention
from kop.storage.base import LogPolicy

COMPACTION_THRESHOLD: Final = 100 * 1024 * 1024
OWN_COMPACTION_THRESHOLD: Final = 16 * 1024 * 1024
"""The compaction threshold of the gateway's own topics in bytes: a broker that takes a partition over reads what is not
compacted.
"""
_RETENTION_CONFIGS: Final = frozenset({"retention.ms", "retention.bytes"})
_CLEANUP: Final = "cleanup.policy"
_MAX_SIZE: Final = "max.message.bytes"
_MINUTE: Final = 60_000
_MIB: Final = 1 << 20
_IN_FORCE_SECONDS: Final = 10.0
_SET_AGAIN_SECONDS: Final = 1.0
_MOST_MINUTES: Final = (2**31 - 1) // 60
"""The most minutes of retention that Pulsar counts right: 68 years. docs/quirks.md, "Retention overflows"."""
_MOST_MEBIBYTES: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_ENTRY_GROWTH: Final = 6
_ENTRY_ROOM: Final = 64 * 1024
"""The bytes that an entry may have beside its records: names, schemas."""


class _Policy(NamedTuple):
    """One Pulsar policy of a topic: its wanted value, and the functions that set and read it."""

    set: Callable[[], Awaitable[None]]
    applied: Callable[[], Awaitable[object]]
    """A function that reads the value in force."""
    wanted: object


def retention_of(policy: LogPolicy) -> Retention:
    """Return Pulsar's retention for a topic: minutes and MiB, -1 for no limit."""
    if not policy.delete:
        return Retention(-1, -1)
    return Retention(
        _limit(policy.retention_ms, _MINUTE, _MOST_MINUTES), _limit(policy.retention_bytes, _MIB, _MOST_MEBIBYTES)
    )


def _limit(value: int, unit: int, most: int) -> int:
    """Return a limit in units of Pulsar, rounded up; -1 if there is none, or Pulsar cannot count so far.

    What Pulsar cannot count is kept for ever: its largest limit would delete records that are to stay.
    """
    units = max(-(-value // unit), 1)
    return units if value >= 0 and units <= most else -1


def keeps(retention: Retention) -> bool:
    """Return true if the retention keeps records after all subscriptions have acknowledged them. Records are dropped as
    soon as either limit is exceeded.
    """
    return 0 not in retention


def compaction_of(policy: LogPolicy, internal: bool = False) -> int:
    """Return Pulsar's compaction threshold for a topic: the bytes of backlog from which on it compacts by itself, 0 for
    never. For an `internal` topic, one of the gateway's own, it is smaller.
    """
    if not policy.compact:
        return 0
    return OWN_COMPACTION_THRESHOLD if internal else COMPACTION_THRESHOLD


def max_size_of(policy: LogPolicy, largest: int) -> int:
    """Return Pulsar's limit of an entry for a topic in bytes, at most `largest`, the Pulsar brokers' own limit; 0 if
    the topic has no limit of its own, so that only theirs applies.
    """
    return min(_ENTRY_GROWTH * policy.max_message_bytes + _ENTRY_ROOM, largest) if policy.limits_messages else 0


async def differing_configs(admin: Admin, full_name: str, policy: LogPolicy, *, largest: int) -> Mapping[str, str]:
    """Return the Kafka configs that say what is in force in Pulsar, for each policy of the topic that differs from what
    `policy` asks for. PulsarError if Pulsar refuses it or does not answer.
    """
    retention = await admin.get_retention(full_name, applied=True) or Retention(0, 0)
    compact = bool(await admin.get_compaction_threshold(full_name, applied=True))
    max_size = await admin.get_max_message_size(full_name, applied=True) or largest
    differing: dict[str, str] = {}
    delete = policy.delete
    if retention != retention_of(policy):
        delete = retention != FOREVER or not compact
        differing["retention.ms"] = str(max(retention.minutes * _MINUTE, -1))
        differing["retention.bytes"] = str(min(max(retention.megabytes * _MIB, -1), _LONG_MAX))
    if max_size != (max_size_of(policy, largest) or largest) and max_size < policy.max_message_bytes:
        differing["max.message.bytes"] = str(max_size)
    if (delete, compact) != (policy.delete, policy.compact):
        differing["cleanup.policy"] = ",".join(["compact"] * compact + ["delete"] * delete)
    return differing


async def apply(
    admin: Admin,
    full_name: str,
    policy: LogPolicy,
    before: LogPolicy | None = None,
    *,
    named: Collection[str] = (),
    largest: int,
    internal: bool = False,
) -> None:
    """Set policies, and wait until Pulsar reads them back: those that differ from `before` (None: all, on a new topic).
    PulsarError if Pulsar refuses one; Timeout if one is not in force after 10 seconds.

    `before` is what was asked for last, which pulsar-admin or a namespace may have made untrue. So a policy that stands
    for one of the configs `named` is set, too, unless the topic itself has it in Pulsar. `largest` is the Pulsar
    brokers' own limit of an entry in bytes; `internal` is true of a state topic.
    """

    async def max_size_applied() -> int:
        return await admin.get_max_message_size(full_name, applied=True) or 0

    async def compaction_applied() -> int:
        return await admin.get_compaction_threshold(full_name, applied=True) or 0

    async def keeps_otherwise() -> bool:
        return await admin.get_retention(full_name) != retention

    async def compacts_otherwise() -> bool:
        own = await admin.get_compaction_threshold(full_name)
        return own is None or bool(own) != bool(compaction)  # how large a threshold is may be somebody's choice

    async def limits_otherwise() -> bool:
        return (await admin.get_max_message_size(full_name) or 0) != max_size

    retention, compaction = retention_of(policy), compaction_of(policy, internal)
    max_size = max_size_of(policy, largest)
    asks_for_retention = not _RETENTION_CONFIGS.isdisjoint(named) or (_CLEANUP in named and not policy.delete)
    changed: list[_Policy] = []
    if before is None or retention_of(before) != retention or (asks_for_retention and await keeps_otherwise()):
        changed.append(
            _Policy(
                partial(set_retention, admin, full_name, retention),
                partial(admin.get_retention, full_name, applied=True),
                retention,
            )
        )
    compaction_before = 0 if before is None else compaction_of(before, internal)
    if compaction_before != compaction or (_CLEANUP in named and await compacts_otherwise()):
        changed.append(
            _Policy(partial(admin.set_compaction_threshold, full_name, compaction), compaction_applied, compaction)
        )
    max_size_before = 0 if before is None else max_size_of(before, largest)
    if max_size_before != max_size or (_MAX_SIZE in named and await limits_otherwise()):
        changed.append(_Policy(partial(admin.set_max_message_size, full_name, max_size), max_size_applied, max_size))
    if before is None:
        changed.append(
            _Policy(
                partial(admin.set_deduplication, full_name, True),
                partial(admin.get_deduplication, full_name, applied=True),
                True,
            )
        )
        changed.append(
            _Policy(partial(admin.keep_when_idle, full_name), partial(admin.stays_when_idle, full_name), True)
        )
    await _bring_into_force(changed)


async def _bring_into_force(policies: Sequence[_Policy]) -> None:
    """Set the policies one after the other, and wait until all are in force. PulsarError Timeout if they are not after
    10 seconds.

    A policy that does not hold after a second is set again: docs/quirks.md, "Policies and properties that are set may
    be lost".
    """
    for policy in policies:
        await policy.set()
    loop = asyncio.get_running_loop()
    end, again = loop.time() + _IN_FORCE_SECONDS, loop.time() + _SET_AGAIN_SECONDS
    pause = 0.005
    while missing := [policy for policy in policies if await policy.applied() != policy.wanted]:
        if loop.time() > end:
            wanted = ", ".join(str(policy.wanted) for policy in missing)
            raise PulsarError("Timeout", f"policies did not come into force: {wanted}")
        if loop.time() > again:
            again = loop.time() + _SET_AGAIN_SECONDS
            for policy in missing:
                await policy.set()
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.2)


async def set_retention(admin: Admin, full_name: str, retention: Retention) -> None:
    """Set a topic's retention; if its backlog quota forbids that, raise the quota first, and try for 10 seconds.
    PulsarError if Pulsar refuses it or does not answer.
    """
    try:
        await admin.set_retention(full_name, retention)
    except PulsarError as error:
        if error.code != "PreconditionFailed":
            raise
        # The Pulsar broker wants retention to exceed the backlog quota (10 GB by default). Kafka knows no such quota.
        loop = asyncio.get_running_loop()
        end = again = loop.time()
        end += _IN_FORCE_SECONDS
        while True:
            if loop.time() >= again:  # a change that came at the same time may have undone it
                await admin.lift_backlog_quotas(full_name)
                again = loop.time() + _SET_AGAIN_SECONDS
            try:
                await admin.set_retention(full_name, retention)
                return
            except PulsarError as still:
                if still.code != "PreconditionFailed" or loop.time() > end:
                    raise
            await asyncio.sleep(0.02)


async def wait_for(seen: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until `seen`, which reads a policy in force, returns `wanted`. PulsarError Timeout if it does not within 10
    seconds.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _IN_FORCE_SECONDS
    pause = 0.005
    while (value := await seen()) != wanted:
        if loop.time() > end:
            raise PulsarError("Timeout", f"a policy did not come into force: it is {value}, not {wanted}")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.2)
