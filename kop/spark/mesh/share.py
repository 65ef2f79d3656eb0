"""The share of a batch that one task has, as it goes from the driver to Spark and on to the task.

Owns: this description. Must not know: who plans, Spark; it imports next to nothing, since the process that Spark starts
for each query needs shares alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kop.client.offsets import TopicPartition


@dataclass(frozen=True)
class Share:
    """The partitions of one task, and where it ends; without an end it goes on as long as a batch lasts."""

    number: int
    partitions: tuple[TopicPartition, ...]
    ends: Mapping[TopicPartition, int] | None = field(default=None)

    def plain(self) -> list[Any]:
        """Return the share as values of JSON; `of_plain` makes it of them again."""
        ends = None if self.ends is None else [[*place, end] for place, end in self.ends.items()]
        return [self.number, [[*place] for place in self.partitions], ends]

    @classmethod
    def of_plain(cls, values: list[Any]) -> Share:
        """Return the share that `plain` has made these values of."""
        number, partitions, ends = values
        return cls(
            number,
            tuple((topic, partition) for topic, partition in partitions),
            None if ends is None else {(topic, partition): end for topic, partition, end in ends},
        )
