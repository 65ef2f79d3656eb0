"""Components of meshes without Spark: records through functions, what a failure and a kill leave, state, ends of batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kop.functions.packages import Package
from kop.functions.spec import FunctionSpec, Guarantee, InputSpec
from kop.spark.mesh.component import Component, Share, Step, Work
from kop.spark.mesh.link import Hub
from kop.spark.mesh.planning import Planner
from kop.spark.mesh.task import run_task
from kop.testing import Broker

ONCE = Guarantee.EFFECTIVELY_ONCE


class Meshes:
    """Components on one broker, with a hub that keeps what tasks tell."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.told: list[Any] = []
        self.hub = Hub("127.0.0.1", lambda line: self.told.append(line.told), lambda line: None)

    def step(self, code: str, source: str, output: str, *, inner: bool = False, **fields: Any) -> Step:
        """A function `process` between two topics; its name is that of its output."""
        name = fields.pop("name", output)
        spec = FunctionSpec(
            name=name,
            class_name="code_of_mesh.process",
            py="code_of_mesh.py",
            inputs={source: InputSpec()},
            output=output,
            **{"processing_guarantees": ONCE, "subscription_position": "Earliest"} | fields,
        )
        topics = {"inner_inputs": (source,), "inputs": ()} if inner else {"inputs": (source,)}
        return Step(spec, Package("code_of_mesh.py", code.encode()), **topics)

    def work(self, *steps: Step, seconds: float | None = None, **fields: Any) -> Work:
        """A component of these functions."""
        inputs = tuple(dict.fromkeys(topic for step in steps for topic in step.inputs))
        inner = frozenset(topic for step in steps for topic in step.inner_inputs)
        guarantee = steps[0].spec.processing_guarantees
        component = Component("public/default/mesh/c", steps, guarantee, inputs, inner, **fields)
        settings = {"bootstrap_servers": [self.broker.bootstrap]}
        return Work(component, settings, 20.0, ("127.0.0.1", self.hub.port), self.hub.token, 2, seconds)

    def drain(self, work: Work) -> list[dict[str, Any]]:
        """Plan a batch and do it."""
        planner = Planner(work)
        try:
            return [row for share in planner.shares() for row in run_task(work, share)]
        finally:
            planner.close()

    def values(self, topic: str) -> list[str]:
        """The committed values of a topic."""
        return [(r.value or b"").decode() for r in self.broker.records(topic, isolation_level="read_committed")]


@pytest.fixture
def meshes(kop_shared_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meshes]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Meshes(kop_shared_broker)
    yield made
    made.hub.close()


A = "def process(text: str) -> str:\n    return text + '{}'\n"


def test_records_go_through_two_functions_in_one_transaction(meshes: Meshes) -> None:
    meshes.broker.create_topic("in1", partitions=2)
    work = meshes.work(
        meshes.step(A.format("a"), "in1", "mid1"), meshes.step(A.format("b"), "mid1", "out1", inner=True)
    )
    for number in range(6):
        meshes.broker.produce("in1", [(f"k{number}", str(number))])
    rows = meshes.drain(work)
    assert Counter(meshes.values("out1")) == Counter(f"{number}ab" for number in range(6))
    assert Counter(meshes.values("mid1")) == Counter(f"{number}a" for number in range(6))
    assert sum(row["processed"] for row in rows) == 12
    assert sum(meshes.broker.committed("public/default/mid1").values()) == 6
    assert meshes.drain(work)[0]["received"] == 0, "nothing is done again"
    assert meshes.told[-1]["last"]
