"""The planning of a read: offsets of a batch, and tasks that read them. Pure: offsets in, ranges out.

Owns: limits of a batch, the cut into tasks, and what counts as lost data.
Must not know: pyspark, sockets, the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kop.client.offsets import Offsets, TopicPartition


class DataLossError(Exception):
    """An error for records that a read asks for and that are gone: by retention, a deletion of records, or another
    topic of the same name.
    """


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The range of offsets of a partition that a task reads, from `start` up to `end`, without it. `topic_id` is None
    if the servers have no topic ids.
    """

    topic: str
    topic_id: str | None
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets in the range; compaction and transactions may have left fewer records."""
        return max(0, self.end - self.start)


def split(ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Cut ranges into tasks: of `max_records` offsets at most, and as many tasks as `min_partitions` or more.

    Ranges without an offset take no task. A task more goes to the range whose tasks are the largest; there are never
    more tasks than offsets.
    """
    ranges = [r for r in ranges if r.size]
    tasks = [math.ceil(r.size / max_records) if max_records else 1 for r in ranges]
    wanted = min(min_partitions or 0, sum(r.size for r in ranges))
    missing = wanted - sum(tasks)
    if missing > 0:
        total = sum(r.size for r in ranges)
        tasks = [max(had, min(r.size, wanted * r.size // total)) for had, r in zip(tasks, ranges, strict=True)]
        for _ in range(wanted - sum(tasks)):
            largest = max(range(len(ranges)), key=lambda i: ranges[i].size / tasks[i])
            tasks[largest] += 1
    pieces: list[OffsetRange] = []
    for whole, count in zip(ranges, tasks, strict=True):
        cuts = [whole.start + whole.size * i // count for i in range(count + 1)]
        pieces += [replace(whole, start=a, end=b) for a, b in pairwise(cuts)]
    return pieces


def limit(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Return the end of a batch of `most` offsets, or of more if more partitions have something new: each gives its
    share of what is new in all of them.

    Each partition that has something new gives one offset at least, as in Spark's Kafka source: a partition with a few
    records does not wait until a long one is read. Else the shares are rounded down, and what is left goes to the
    largest remainders. A partition that is not in `start` must be given with the offset where it begins.
    """
    new = {partition: end - start[partition] for partition, end in latest.items() if end > start[partition]}
    total, most = sum(new.values()), max(most, len(new))
    if total <= most:
        return dict(latest)
    to_share, more = most - len(new), total - len(new)
    shares = {partition: 1 + to_share * (size - 1) // more for partition, size in new.items()}
    left = most - sum(shares.values())
    for partition in sorted(new, key=lambda p: (-(to_share * (new[p] - 1) % more), p))[:left]:
        shares[partition] += 1
    return dict(latest) | {partition: start[partition] + share for partition, share in shares.items()}


def limit_bytes(
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    each: Mapping[TopicPartition, float],
    most: int,
) -> Offsets:
    """Return the offsets at which a batch of about `most` bytes ends.

    `each` is the bytes that an offset takes in a partition, for partitions with new ones. Each partition gives the same
    part of its new offsets, and one offset at least.
    """
    new = {partition: latest[partition] - start[partition] for partition in each}
    total = sum(count * each[partition] for partition, count in new.items())
    if total <= most:
        return dict(latest)
    return dict(latest) | {p: start[p] + max(1, int(count * most / total)) for p, count in new.items()}


def count_new(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets from `start` up to `latest`, over the partitions that both have."""
    return sum(max(0, end - start[partition]) for partition, end in latest.items() if partition in start)
