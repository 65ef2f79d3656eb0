"""Compaction of topics while a run goes on, and at a moment.

Owns: how each kind of server is made to compact, how it is seen that it has.
Must not know: what the topics hold.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from conformance.functions.clients import Reader, Stored
from conformance.harness.targets import OverPulsar, Target

SECONDS = 60.0
EAGER = {"min.cleanable.dirty.ratio": "0", "segment.ms": "500"}
"""With these a server compacts whatever lies before the newest segment, each time that its cleaner looks."""


def compact_eagerly(bootstrap: str, topics: Iterable[str]) -> None:
    """Have a server compact topics from now on as soon as there is something to take."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = [
        ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in EAGER.items()
            ],
        )
        for topic in topics
    ]
    for future in admin.incremental_alter_configs(asked).values():
        future.result(SECONDS)


def compact(target: Target, topics: Sequence[str]) -> None:
    """Compact topics of one partition by REST if Pulsar has them; others do so by themselves. OSError."""
    if target.over is None:
        return
    paths = [f"persistent/{target.over.namespace}/{topic}-partition-0/compaction" for topic in topics]
    for path in paths:
        target.over.rest.call("PUT", path)
    for path in paths:
        _await_pulsar(target.over, path)
    for server in target.servers:  # one that starts now has not read what was there before
        server.kill()
        server.start()


def _await_pulsar(over: OverPulsar, path: str) -> None:
    until = time.monotonic() + SECONDS
    while (status := over.rest.call("GET", path)["status"]) != "SUCCESS":
        if time.monotonic() > until:
            raise OSError(f"the compaction {path} has not ended: {status}")
        if status == "ERROR":  # a broker on a busy machine loses its connection to itself
            over.rest.call("PUT", path)
        time.sleep(0.2)  # until Pulsar is asked again


def superseded(records: Sequence[Stored]) -> int:
    """Return how many records have a later one of their key."""
    return len(records) - len({record.key for record in records})


def await_compacted(reader: Reader, topics: Sequence[str], most: int) -> dict[str, int]:
    """Wait until topics have at most so many records that are superseded; return those of topics that have more."""
    until = time.monotonic() + SECONDS
    while True:
        counts = {topic: superseded(reader.records([(topic, 0)])[topic, 0]) for topic in topics}
        left = {topic: count for topic, count in counts.items() if count > most}
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.3)  # until the topics are read again: no client is told of a compaction
