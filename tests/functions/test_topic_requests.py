"""Meshes as definitions, on a running broker: who is no worker asks, and leads if nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from functions.mesh_request_kit import MESH, SHOUT, wanted
from functions.registry_kit import FQFN, SECONDS, WorkerOfTest, WorkersOfTest
from support.waiting import wait_until

from kop.client.properties import connection
from kop.functions.packages import Package
from kop.functions.topic_requests import TopicRequests, new_registry, read_definitions
from kop.functions.topics import HOME
from kop.testing import Broker

CODE = Package("f.py", b"def process(text: str) -> str:\n    return text\n")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        made.create_topic("in", partitions=1)
        yield made


def settings_of(broker: Broker) -> dict[str, Any]:
    return dict(connection({"bootstrap.servers": broker.bootstrap}, "kop-mesh").settings)


def test_a_server_alone_is_enough_and_workers_leave_the_functions_of_meshes_alone(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.functions.registry.WAIT_MS", 50)
    settings = settings_of(broker)
    mesh = wanted("shout", package=CODE.digest)
    with TopicRequests(settings, 20.0, HOME, "ada") as asking:
        assert asking.ensure(MESH, mesh, [CODE], None).won
        there = asking.mesh(MESH)
        assert there is not None
        assert (there.by, there.functions) == ("ada", (SHOUT,))
        assert asking.change("stop", MESH, there.revision).won
        stopped = asking.mesh(MESH)
        assert stopped is not None
        late = asking.ensure(MESH, mesh, [CODE], there.revision)
        assert (late.won, late.revision) == (True, stopped.revision), "who has stopped it since is right"
        started = asking.ensure(MESH, mesh, [CODE], stopped.revision)
        assert (started.won, started.revision == stopped.revision) == (True, False)
        assert asking.ensure(MESH, mesh, [CODE], started.revision).revision == started.revision, "it is so"
        check_that_a_newer_definition_stays(asking)
    driver = new_registry(settings, str(tmp_path / "driver"), HOME, 20.0)
    driver.start()
    try:
        wait_until(lambda: driver.leads, "the driver to lead", SECONDS)
        with WorkersOfTest(broker, tmp_path, 1) as members:
            (worker,) = members.all
            check_that_a_driver_leads(worker)
            assert driver.metadata.meshes[MESH].functions == (SHOUT,)
            assert len(driver.workers()) == 1
            assert len(driver.members()) == 2
    finally:
        driver.close()
    meshes, functions = read_definitions(settings, 20.0)
    assert (set(meshes), set(functions)) == ({MESH}, {SHOUT, FQFN})


def check_that_a_newer_definition_stays(asking: TopicRequests) -> None:
    """Who has decided to change a mesh before somebody else has changed it does not take that back."""
    before = asking.mesh(MESH)
    assert before is not None
    mesh = wanted("shout", package=CODE.digest)
    first, second, third = (replace(mesh, text=f"{mesh.text}\n# {number}") for number in range(3))
    assert asking.apply(MESH, first, [CODE], before).won
    for seen in (before.revision, None):
        refused = asking.ensure(MESH, second, [CODE], seen)
        assert not refused.won
        assert "ada has sent another definition meanwhile (revision" in refused.reason
    now = asking.mesh(MESH)
    assert now is not None
    assert now.text == first.text
    assert asking.ensure(MESH, first, [CODE], before.revision).revision == now.revision, "it is as wanted"
    assert asking.change("stop", MESH, now.revision).won
    changed = asking.ensure(MESH, third, [CODE], now.revision)
    there = asking.mesh(MESH)
    assert there is not None
    assert changed.won
    assert (there.text, there.is_stopped) == (third.text, False), "a stop is no other definition"
    assert asking.change("delete", MESH, there.revision).won
    assert asking.ensure(MESH, third, [CODE], there.revision).reason == "it was deleted meanwhile"
    assert asking.ensure(MESH, mesh, [CODE], None).won


def check_that_a_driver_leads(worker: WorkerOfTest) -> None:
    """Functions that are no part of a mesh are dealt to workers, by the driver of a mesh."""
    assert worker.create().won
    assert {fqfn for fqfn, _ in worker.registry.metadata.assignments} == {FQFN}
    assert {made.worker for made in worker.registry.metadata.assignments.values()} == {worker.name}
    assert not worker.registry.leads
    assert worker.ask("stop", SHOUT, expects=1).status == 409
