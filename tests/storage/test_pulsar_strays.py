"""Partitions that a topic lost while strays of its name were removed: they are made again, and told of if any is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import PartitionedMetadata
from kop.pulsar_client.outage import Outage
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.settings import PulsarSettings
from kop.storage.pulsar.topics.strays import StrayPartitions

TOPIC = "persistent://public/default/t"


class Partitions:
    """The admin REST of a Pulsar with one topic of three partitions, of which these are there; None: no topic."""

    def __init__(self, there: set[int] | None) -> None:
        self.there = there

    async def partitioned_metadata(self, topic: str) -> PartitionedMetadata:
        if self.there is None:
            raise PulsarError("NotFound", "there is no such topic")
        return PartitionedMetadata(3, {})

    async def list_topics(self, namespace: str) -> list[str]:
        assert namespace == "public/default"
        return [f"{TOPIC}-partition-{index}" for index in self.there or ()] + [f"{TOPIC}2-partition-2"]

    async def create_missed_partitions(self, topic: str) -> None:
        assert topic == TOPIC
        self.there = {0, 1, 2}


@pytest.mark.parametrize(
    ("there", "afterwards", "told"),
    [
        pytest.param({0, 1}, {0, 1, 2}, 1, id="one is missing"),
        pytest.param({0, 1, 2}, {0, 1, 2}, 0, id="none is missing"),
        pytest.param(None, None, 0, id="no topic"),
    ],
)
async def test_partitions_that_are_made_again_are_told_of(
    there: set[int] | None, afterwards: set[int] | None, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    admin: Any = Partitions(there)
    client: Any = SimpleNamespace(outage=Outage())
    context = PulsarContext(client, admin, PulsarSettings())
    await StrayPartitions(context).complete(TOPIC)
    assert admin.there == afterwards
    assert context.faults.counts.get("topics_recreated/partition_missing", 0) == told
    assert caplog.text.count("are made again") == told
