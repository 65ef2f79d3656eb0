"""Meshes by chance give the same topics fused, function by function, and with functions that run by themselves."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaProducer

from conformance.mesh.graphs import CODE, ChanceMesh, by_chance
from kop.client.offsets import LATEST, Offsets
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions import stand_in
from kop.functions.localrun import Running, load_here
from kop.functions.packages import read_package
from kop.functions.topics import TopicNames
from kop.mesh.file import read_mesh
from kop.mesh.spec import Mesh
from kop.spark.mesh.component import Work
from kop.spark.mesh.cutting import components_of
from kop.spark.mesh.followed_mesh import DefinedMesh
from kop.spark.mesh.link import Hub, PlanLink
from kop.spark.mesh.planning import Planner
from kop.spark.mesh.task import run_task
from kop.testing import Broker

Topics = dict[str, Counter[tuple[bytes | None, bytes | None]]]


class Graphs:
    """Meshes on one broker, each with topics of its own."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.settings = {"bootstrap_servers": [broker.bootstrap]}
        self.works: dict[str, Work] = {}
        self.hub = Hub(
            "127.0.0.1", lambda line: None, lambda line: None, lambda: True, lambda name: Planner(self.works[name])
        )
        self.fused_calls = 0
        self._folder = folder
        (folder / CODE.name).write_text(CODE.read_text())

    def fill(self, made: ChanceMesh) -> Mesh:
        """Make the topics, and produce the messages of the inputs."""
        for topic, count in made.partitions.items():
            self.broker.create_topic(topic, partitions=count)
        with KafkaProducer(bootstrap_servers=self.broker.bootstrap) as producer:
            for topic, messages in made.inputs.items():
                for key, value in messages:
                    producer.send(topic, value, key)
        return read_mesh(made.text, str(self._folder / "mesh.yaml"), TopicNames(has_namespaces=True))

    def components(self, mesh: Mesh, made: ChanceMesh) -> None:
        """Run all components until nothing is left, a batch of each in turn."""
        packages = {part.spec.fqfn: read_package(part.spec.py) for part in mesh.functions}
        components = components_of(DefinedMesh(mesh, packages), made.partitions)
        self.fused_calls += sum(len(part.steps) - 1 for part in components)
        with ExitStack() as stack:
            works = [
                Work(part, self.settings, 20.0, ("127.0.0.1", self.hub.port), self.hub.token, 2, None)
                for part in components
            ]
            self.works = {work.component.name: work for work in works}
            for name, work in self.works.items():  # each is behind those that it reads of
                planner = stack.enter_context(closing(PlanLink(work.hub, work.token, name)))
                for share in planner.shares():
                    run_task(work, share)

    def by_themselves(self, mesh: Mesh, made: ChanceMesh) -> None:
        """Run each function as an instance, until all groups are at the ends of their topics."""
        stand_in.install()
        reader, writer = ReadClient(self.settings, 20_000), WriteClient(self.settings, 20.0)
        with ExitStack() as stack:
            stack.callback(reader.close)
            stack.callback(writer.close)
            for part in mesh.functions:
                running = Running(part.spec, load_here(part.spec), self.settings, lambda _: None, fetch_wait_ms=50)
                stack.callback(running.start().stop)
            for part in sorted(mesh.functions, key=lambda part: int(part.name.rpartition("f")[2])):
                places = [(topic, n) for topic in part.inputs for n in range(made.partitions[topic])]
                wait_for(partial(_is_done, reader, writer, part.spec.group, places))

    def topics(self, made: ChanceMesh) -> Topics:
        """The committed records of the outputs, by the end of their names."""
        return {
            topic.rpartition("-")[2]: Counter(
                (record.key, record.value) for record in self.broker.records(topic, isolation_level="read_committed")
            )
            for topic in made.outputs
        }


def _is_done(reader: ReadClient, writer: WriteClient, group: str, places: list[tuple[str, int]]) -> bool:
    ends: Offsets = reader.list_offsets(dict.fromkeys(places, LATEST), 1)
    done = writer.committed(group, places, may_be_open=places)
    return all(end <= done.get(place, (0, ""))[0] for place, end in ends.items())


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # groups do not say when they have committed


@pytest.fixture(scope="module")
def graphs(kop_shared_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graphs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = Graphs(kop_shared_broker, tmp_path_factory.mktemp("graphs"))
        yield made
        made.hub.close()
        stand_in.uninstall()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_mesh_by_chance_gives_the_same_each_way(graphs: Graphs, seed: int) -> None:
    results: dict[str, Topics] = {}
    for way in ("fused", "apart", "functions"):
        made = by_chance(seed, f"g{seed}{way}")
        mesh = graphs.fill(made)
        if way == "functions":
            graphs.by_themselves(mesh, made)
        else:
            graphs.components(replace(mesh, fuse=way == "fused"), made)
        results[way] = graphs.topics(made)
    assert results["fused"] == results["apart"]
    assert results["fused"] == results["functions"]
    assert any(results["fused"].values())
