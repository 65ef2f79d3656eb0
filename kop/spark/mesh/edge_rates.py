"""The messages a second that a part of a mesh does of each topic that it reads, by the offsets of its group.

Owns: what groups had committed at which time. Must not know: Spark, what parts do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kop.client.offsets import TopicPartition
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient

ASK_SECONDS: Final = 5.0
"""The seconds between two questions for the offsets of groups."""
KEPT: Final = 3
"""The number of answers that a rate is taken over."""
PATIENCE_SECONDS: Final = 2.0
"""Nothing waits for rates."""


class ReadingPart(NamedTuple):
    """A part, by its full name, the group that has its offsets, and the topics that it reads from the server."""

    name: str
    group: str
    topics: tuple[str, ...]


class EdgeRates:
    """Rates of all parts that have a group. `settings` are kafka-python's; for one thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._reader = ReadClient(settings, int(PATIENCE_SECONDS * 1000))
        self._writer = WriteClient(settings, PATIENCE_SECONDS)
        self._past: deque[tuple[float, dict[tuple[str, str], int]]] = deque(maxlen=KEPT)
        self._ask_at = float("-inf")

    def close(self) -> None:
        """Close the connections."""
        for client in (self._reader, self._writer):
            with suppress(Exception):
                client.close()

    def rates(self, parts: Sequence[ReadingPart], now: float) -> dict[tuple[str, str], float]:
        """Return the messages a second of each part and topic, by the full name of the part and the topic. Asks the
        server if the last question is 5 s old; the rate is that between the oldest and the newest of the last 3
        answers.

        A pair that is not in both is left out, and there are none if fewer than 2 answers have come. `now` is in
        seconds of the monotonic clock.
        """
        if not parts:
            return {}
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            with suppress(Exception):  # the server is away, or the group may not be read: no rate is told
                self._past.append((now, self._done(parts)))
        if len(self._past) < 2:
            return {}
        (before, first), (after, last) = self._past[0], self._past[-1]
        return {edge: max(0, done - first[edge]) / (after - before) for edge, done in last.items() if edge in first}

    def _done(self, parts: Sequence[ReadingPart]) -> dict[tuple[str, str], int]:
        """Return the sum of the offsets that the group of each part has committed in the partitions of each topic, by
        the full name of the part and the topic. Partitions whose offset an open transaction holds are left out.
        """
        topics = self._reader.topics({topic for part in parts for topic in part.topics})
        done: dict[tuple[str, str], int] = {}
        for part in parts:
            places: list[TopicPartition] = [
                (topic, number) for topic in part.topics if topic in topics for number in topics[topic].leaders
            ]
            if places:
                for (topic, _), (offset, _) in self._writer.committed(part.group, places, may_be_open=places).items():
                    done[part.name, topic] = done.get((part.name, topic), 0) + offset
        return done


def edge_rate(part: Mapping[str, Any], topic: str, rates: Mapping[tuple[str, str], float]) -> float | None:
    """Return the messages a second that go from a topic to a part that reads it; None if that is not known. `part` is
    what the driver reports of the part, `rates` is what `EdgeRates.rates` has returned.

    A part with one input counts them itself, and so does one of several inputs for the topics that other functions of
    its component hand over. For other topics it is the rate of the offsets that its group commits, in which markers of
    transactions count, too.
    """
    if len(part["inputs"]) == 1:
        return float(part.get("rate", 0.0))
    if topic in part["inner_inputs"]:
        return float(part.get("handed_rates", {}).get(topic, 0.0))
    return rates.get((part["name"], topic))
