"""What the checker's clients do where they are not answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from conformance.checker.confluent_clients import GroupMember
from conformance.checker.recorder import Recorder
from conformance.checker.work import Work
from conformance.checker.workload import Settings


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    recorder = Recorder(tmp_path / "history.jsonl")
    yield Work(Settings("127.0.0.1:1", "run", 1), recorder)
    recorder.close()


def test_a_chain_begins_again_nowhere_until_it_is_told_the_committed_offsets(work: Work) -> None:
    """librdkafka names the offsets at which partitions were assigned, which lie before what was committed since."""
    with mock.patch("conformance.checker.confluent_clients.Consumer") as made:
        consumer = made.return_value
        member = GroupMember(work, "chain", "g", "committed", ["t"])
        consumer.assignment.return_value = [TopicPartition("t", 0, 338)]
        consumer.committed.side_effect = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        assert not member.rewind()
        consumer.assign.assert_not_called()
        consumer.committed.side_effect = None
        consumer.committed.return_value = [TopicPartition("t", 0, 416)]
        assert member.rewind()
        consumer.assign.assert_called_once_with([TopicPartition("t", 0, 416)])
