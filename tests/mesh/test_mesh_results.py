"""A mesh gives the same fused and function by function: topics, and what stateful functions count, in a model of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

import pytest
from mesh.mesh_kit import mesh_by_chance

from kop.mesh.graph import Graph
from kop.mesh.plan import Component, Facts, Plan, plan
from kop.mesh.spec import FunctionPart, Mesh

KEYS = 5


@dataclass(frozen=True)
class Message:
    key: str
    way: str
    """Where it began, and through what it went."""


@dataclass
class Model:
    """Topics with partitions, read component by component until nothing is left."""

    mesh: Mesh
    made: Plan
    partitions: dict[str, int]
    logs: dict[tuple[str, int], list[Message]] = field(default_factory=lambda: defaultdict(list))
    state: Counter[tuple[object, ...]] = field(default_factory=Counter)
    counted: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    tasks: dict[tuple[str, str], set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    """Function and key to the partitions of whose tasks it was called for the key."""

    def write(self, topic: str, message: Message) -> None:
        self.logs[topic, crc32(message.key.encode()) % self.partitions[topic]].append(message)

    def run(self) -> None:
        done: Counter[tuple[str, str, int]] = Counter()
        moved = True
        while moved:
            moved = False
            for component in self.made.components:
                for task, message in list(self.left(component.name, component.inputs, done)):
                    self.call(component, task[0], task, message)
                    moved = True
            for query in self.mesh.queries:
                for _, message in list(self.left(query.name, query.inputs, done)):
                    self.write(query.output, replace(message, way=f"{message.way}/{query.name}"))
                    moved = True

    def left(
        self, reader: str, inputs: tuple[str, ...], done: Counter[tuple[str, str, int]]
    ) -> Iterator[tuple[tuple[str, int], Message]]:
        for topic in inputs:
            for number in range(self.partitions[topic]):
                log = self.logs[topic, number]
                for message in log[done[reader, topic, number] :]:
                    yield (topic, number), message
                done[reader, topic, number] = len(log)

    def call(self, component: Component, topic: str, task: tuple[str, int], message: Message) -> None:
        parts = {part.name: part for part in component.functions}
        for name in component.calls.get(topic, ()):
            part = parts[name]
            self.count(part, task, message)
            for output in part.outputs:
                result = self.result(part, message)
                if output in component.calls and output not in component.inputs:
                    self.call(component, output, task, result)
                if output in component.written:
                    self.write(output, result)

    def count(self, part: FunctionPart, task: tuple[str, int], message: Message) -> None:
        if part.has_state:
            shard = (part.name, message.key, *(() if part.is_whole else task))
            self.state[shard] += 1
            self.counted[part.name, message.key, self.state[shard]] += 1
        if part.holds_order == "key order":
            self.tasks[part.name, message.key].add(task)

    @staticmethod
    def result(part: FunctionPart, message: Message) -> Message:
        way = f"{message.way}/{part.name}"
        return Message(message.key if part.keeps_key else f"k{crc32(way.encode()) % KEYS}", way)


def run(mesh: Mesh, made: Plan, partitions: dict[str, int], outside: list[str]) -> Model:
    model = Model(mesh, made, partitions)
    for topic in outside:
        for number in range(2 * KEYS):
            model.write(topic, Message(f"k{number % KEYS}", f"{topic}-{number}"))
    model.run()
    return model


@pytest.mark.parametrize("start", range(4))
def test_fused_and_function_by_function_are_the_same(start: int) -> None:
    fused_calls = 0
    for seed in range(start, 160, 4):
        chance = Random(seed)
        mesh = mesh_by_chance(chance, 7)
        graph = Graph(mesh.parts)
        partitions = {topic: chance.choice([1, 1, 2, 3]) for topic in graph.topics}
        known = Facts({topic: count for topic, count in partitions.items() if chance.random() < 0.7})
        outside = [topic for topic in graph.topics if topic in mesh.external_writers or not graph.writers[topic]]
        outside += [source.output for source in mesh.sources if source.output in graph.topics]
        outside = list(dict.fromkeys(outside))
        made = plan(replace(mesh, fuse=True), known)
        fused = run(mesh, made, partitions, outside)
        single = run(mesh, plan(replace(mesh, fuse=False), known), partitions, outside)
        unwritten = {topic for component in made.components for topic in component.unwritten}
        topics = [
            Counter(
                (topic, m.key, m.way) for (topic, _), log in each.logs.items() for m in log if topic not in unwritten
            )
            for each in (fused, single)
        ]
        assert topics[0] == topics[1], seed
        assert fused.counted == single.counted, seed
        for (name, _), tasks in fused.tasks.items():
            component = made.of_function[name]
            if any(name in called for topic, called in component.calls.items() if topic not in component.inputs):
                assert len(tasks) == 1, seed
        fused_calls += sum(len(component.names) - 1 for component in made.components)
    assert fused_calls > 10
