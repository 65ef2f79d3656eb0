"""Meshes by chance whose topics are the same whichever way they run: fused, function by function, without Spark.

Owns: which functions a graph may have, so that what comes out does not depend on how messages of different partitions
follow each other. Must not know: how meshes are run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

CODE = Path(__file__).with_name("graph_functions.py")
WORDS = 5


@dataclass
class ChanceMesh:
    """A mesh: its text, its topics with the numbers of their partitions, and the messages of its inputs."""

    name: str
    text: str
    partitions: dict[str, int]
    inputs: dict[str, list[tuple[bytes, bytes]]]
    outputs: list[str]
    """The topics that its functions write."""


def by_chance(seed: int, name: str, most: int = 6, messages: int = 12) -> ChanceMesh:
    """Return a mesh of some functions between topics of one to three partitions; topics go to later functions."""
    chance = Random(seed)
    roots = [f"{name}-in{number}" for number in range(chance.randint(1, 2))]
    partitions = {topic: chance.randint(1, 3) for topic in roots}
    topics, lines = list(roots), []
    for number in range(chance.randint(2, most)):
        code = chance.choice(["mark", "mark", "some", "two", "count"])
        inputs = [chance.choice(topics[-3:])]
        if code != "count" and len(topics) > 1 and chance.random() < 0.3:
            inputs = chance.sample(topics, 2)
        output = f"{name}-t{number}"
        if code != "count" and chance.random() < 0.2 and topics[-1] not in {*inputs, *roots}:
            output = topics[-1]  # a second writer
        more = ["keepsKey: true"] if code in {"mark", "some", "count"} and chance.random() < 0.7 else []
        if code == "count":
            more.append("stateScope: partition")
        if output not in partitions:
            partitions[output] = chance.randint(1, 3)
            topics.append(output)
        lines.append(
            f"  - {{name: {name}-f{number}, className: graph_functions.{code}, py: graph_functions.py, "
            f"inputs: [{', '.join(inputs)}], output: {output}, processingGuarantees: EFFECTIVELY_ONCE, "
            f"subscriptionPosition: Earliest{''.join(f', {text}' for text in more)}}}"
        )
    given: dict[str, list[tuple[bytes, bytes]]] = {}
    for topic in roots:
        words = [f"w{chance.randrange(WORDS)}" for _ in range(messages)]
        given[topic] = [
            (word.encode(), f"{word}/{topic.rpartition('-')[2]}-{number}".encode()) for number, word in enumerate(words)
        ]
    text = "\n".join([f"name: {name}", "trigger: batch", "functions:", *lines, ""])
    return ChanceMesh(name, text, partitions, given, topics[len(roots) :])
