"""Warnings of entries that Pulsar's compaction treats otherwise than Kafka's would.

Owns: which entries at the tail are worth a warning: one line for each topic, a count for each entry.
Must not know: how entries are read.

Kafka clients cannot write such entries to a compacted topic, Pulsar's own can.
"""

from __future__ import annotations

from kop.storage.pulsar.faults import Fault, Faults
from kop.storage.pulsar.partition.view import PartitionView


class CompactionWarnings:
    """Entries of one partition that compaction does not take as they are."""

    def __init__(self, faults: Faults, partition: PartitionView) -> None:
        self._faults = faults
        self._partition = partition

    def keyless(self, messages: int) -> None:
        """Count an entry that has messages without a key, and warn of it."""
        if self._partition.policy.compact:
            self._tell(
                Fault.COMPACTION_KEYLESS_MESSAGE,
                f"a Pulsar client writes messages without a key ({messages} in this entry): compaction will drop them. "
                "Let it set a key, or topicCompactionRetainNullKey=true in Pulsar's broker.conf",
            )

    def raw(self) -> None:
        """Warn of an entry that holds Kafka's batches as they came."""
        if self._partition.policy.compact:
            self._tell(
                Fault.COMPACTION_RAW_BATCH,
                "somebody writes batches in KoP's kafka entry format, on which Pulsar's compaction fails: "
                "nothing of the topic will be compacted. Write with kop.entry.format=pulsar",
            )

    def _tell(self, what: Fault, text: str) -> None:
        topic = self._partition.topic
        self._faults.count(what)
        self._faults.tell((topic.topic_id, what), f"topic {topic.name}: {text}")
