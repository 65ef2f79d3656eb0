"""Offsets of partitions as Spark's Kafka source writes them: JSON, `{"topic": {"0": 23, "1": -2}}`.

Owns: what is read from and written to that JSON.
Must not know: pyspark, sockets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from kop.client.offsets import Offsets, TopicPartition

OffsetDict: TypeAlias = dict[str, dict[str, int]]
"""The type of offsets as Spark keeps them in its checkpoint: topic -> partition, as text -> offset."""


_LIMIT: Final = 2**63


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. ValueError if the JSON is malformed, or an object in it has a name twice."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error})") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"has {next(name for name in names if names.count(name) > 1)!r} twice: write it once")
    return made


def parse_offsets(text: str) -> Offsets:
    """Return the number for each partition in JSON such as `{"topic": {"0": 23}}`, also below 0: an offset, or a time.
    ValueError if the JSON is malformed, or a number takes more than 64 bits.
    """
    topics = parse_json(text)
    offsets: Offsets = {}
    for topic, partitions in _object(topics).items():
        for partition, number in _object(partitions).items():
            if not partition.isdecimal():
                raise ValueError(f"names a partition {partition!r} of {topic}, which is no number")
            if type(number) is not int:
                raise ValueError(f"gives {topic} partition {partition} {number!r}, which is no whole number")
            if not -_LIMIT <= number < _LIMIT:
                raise ValueError(f"gives {topic} partition {partition} {number}, which takes more than 64 bits")
            if (topic, int(partition)) in offsets:
                raise ValueError(f"names partition {partition} of {topic} twice")
            offsets[topic, int(partition)] = number
    return offsets


def parse_assignment(text: str) -> list[TopicPartition]:
    """Return the partitions in JSON such as `{"topic": [0, 1]}`, in its order, and as often as it has them; ValueError
    if it is malformed.
    """
    topics = parse_json(text)
    assigned: list[TopicPartition] = []
    for topic, partitions in _object(topics).items():
        if not isinstance(partitions, list) or not all(type(p) is int and p >= 0 for p in partitions):
            raise ValueError(f"gives {topic} {partitions!r}, which is no list of partitions")
        assigned += [(topic, partition) for partition in partitions]
    return assigned


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"has {json.dumps(value)} where an object belongs (is no object)")
    return value


def to_dict(offsets: Mapping[TopicPartition, int]) -> OffsetDict:
    """Return offsets as Spark keeps them, in order of topic and partition: equal offsets are equal text."""
    by_topic: OffsetDict = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return by_topic


def from_dict(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of a dict that `to_dict` made."""
    return {(topic, int(p)): offset for topic, partitions in offsets.items() for p, offset in partitions.items()}
