"""What becomes of requests for meshes, and of requests for their functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from functions.mesh_request_kit import MESH, SHOUT, SINK, wanted

from kop.functions.definitions import MeshDefinition, Request, WantedMesh, mesh_key, mesh_of
from kop.functions.leader import Leader
from kop.functions.request_effects import Effects


class MeshLog:
    """Requests of a test, each at the next offset."""

    def __init__(self) -> None:
        self.leader = Leader({})
        self.offset = 0

    def ask(self, kind: Any, fqfn: str = mesh_key(MESH), **fields: Any) -> Effects:
        self.offset += 3
        asked: dict[str, Any] = {"id": f"request {self.offset}", "by": "ada", "at_ms": 1_700_000_000_000} | fields
        request = Request(kind=kind, fqfn=fqfn, **asked)
        return self.leader.take(self.offset, request, is_whole={"sha-1", "sha-2"}.__contains__, workers=("w1",))

    def function(self, name: str, kind: Any = "create", **fields: Any) -> Effects:
        config = {"name": name, "className": "f", "py": "f.py", "inputs": ["in"]}
        return self.ask(kind, f"public/default/{name}", config=config, package="sha-1", package_name="f.py", **fields)


@pytest.fixture
def log() -> MeshLog:
    made = MeshLog()
    assert made.ask("create", mesh=wanted("shout", "count")).answer.revision == 3
    return made


def test_a_mesh_and_its_functions_are_defined_together(log: MeshLog) -> None:
    mesh = log.leader.meshes[MESH]
    assert (mesh.revision, mesh.version, mesh.by, mesh.functions) == (3, 3, "ada", (SHOUT, "public/default/count"))
    assert log.leader.definitions[SHOUT].mesh == MESH
    assert log.leader.deployed == {}
    assert log.leader.wishes({}) == {}, "workers leave them alone"
    assert MeshDefinition.from_json(mesh.to_json()) == mesh
    assert (mesh_of(mesh.key), mesh_of(SHOUT), mesh_of("mesh/default/shout")) == (MESH, None, None)


def test_the_first_change_of_a_mesh_wins(log: MeshLog) -> None:
    again = log.ask("create", mesh=wanted("shout"), by="bob").answer
    assert (again.status, "exists already: ada has sent create" in again.reason) == (409, True)
    assert log.ask("update", expects=3, mesh=wanted("shout", text="name: m # 2")).answer.revision == 9
    lost = log.ask("update", expects=3, mesh=wanted("count"), by="bob").answer
    assert (lost.status, lost.revision, "expected was revision 3" in lost.reason) == (409, 9, True)
    assert log.ask("stop", "mesh/public/default/n").answer.reason == "there is no mesh public/default/n"


def test_an_update_changes_what_is_another_one(log: MeshLog) -> None:
    effects = log.ask("update", expects=3, mesh=wanted("shout", "new", package="sha-2"))
    assert {fqfn: made and made.version for fqfn, made in effects.definitions.items()} == {
        SHOUT: 6,
        "public/default/new": 6,
        "public/default/count": None,
    }
    assert effects.packages == ["sha-1"]
    same = log.ask("update", expects=6, mesh=wanted("shout", "new", package="sha-2"))
    made = same.meshes[MESH]
    assert made is not None
    assert (made.version, made.revision, same.definitions) == (6, 9, {}), "nothing starts anew"


def test_a_mesh_is_stopped_started_and_restarted(log: MeshLog) -> None:
    log.ask("stop", expects=3)
    assert log.leader.meshes[MESH].is_stopped
    log.ask("update", expects=6, mesh=wanted("shout", "count", text="name: m # 2"))
    assert log.leader.meshes[MESH].is_stopped, "a change does not start it"
    log.ask("start", expects=9)
    log.ask("restart", expects=12, part="shout")
    log.ask("restart", expects=15)
    mesh = log.leader.meshes[MESH]
    assert (mesh.is_stopped, mesh.restarts, mesh.version) == (False, {"shout": 15, "": 18}, 9)
    wrong = log.ask("restart", expects=18, part="boom").answer
    assert (wrong.status, wrong.reason) == (404, f"{MESH} has no part boom; it has archive, count, shout")


def test_a_part_is_stopped_and_started(log: MeshLog) -> None:
    def stopped(kind: str, part: str, **fields: Any) -> tuple[bool, set[str]]:
        assert log.ask(kind, expects=log.leader.meshes[MESH].revision, part=part, **fields).answer.won
        mesh = log.leader.meshes[MESH]
        assert MeshDefinition.from_json(mesh.to_json()) == mesh
        return mesh.is_stopped, set(mesh.stopped)

    assert stopped("stop", "shout") == (False, {"shout"})
    assert stopped("stop", "archive") == (False, {"shout", "archive"})
    assert stopped("update", "", mesh=wanted("shout", "new")) == (False, {"shout", "archive"}), "an update leaves it"
    assert stopped("update", "", mesh=wanted("new")) == (False, {"archive"}), "what is gone is not stopped"
    assert stopped("stop", "new") == (False, {"archive", "new"})
    assert stopped("restart", "new") == (False, {"archive"})
    assert stopped("stop", "new") == (False, {"archive", "new"})
    assert stopped("start", "new") == (False, {"archive"})
    assert stopped("stop", "") == (True, {"archive"})
    for kind in ("start", "restart"):
        refused = log.ask(kind, expects=log.leader.meshes[MESH].revision, part="archive").answer
        told = f"{MESH} is stopped as a whole: kop mesh start {MESH} starts it with all parts"
        assert (refused.status, refused.reason) == (409, told)
    assert stopped("stop", "new") == (True, {"archive", "new"})
    assert stopped("start", "") == (False, set()), "all of it"
    wrong = log.ask("stop", expects=log.leader.meshes[MESH].revision, part="boom").answer
    assert (wrong.status, "has no part boom" in wrong.reason) == (404, True)


def test_names_are_taken_once(log: MeshLog) -> None:
    taken = log.function("shout").answer
    assert (taken.status, taken.reason) == (409, f"{SHOUT} is a part of the mesh {MESH}: change that, by kop mesh")
    assert log.function("shout", "delete", expects=3).answer.status == 409
    assert log.function("archive").answer.status == 409, "a sink has a group of its name"
    assert log.function("mine").answer.won
    others = log.ask("update", expects=3, mesh=wanted("mine")).answer
    assert (others.status, "is a function that workers run" in others.reason) == (409, True)
    second = log.ask("create", "mesh/public/default/n", mesh=wanted("shout")).answer
    assert (second.status, f"{SHOUT} is a part of the mesh {MESH}" in second.reason) == (409, True)


def test_what_cannot_be_is_refused(log: MeshLog) -> None:
    def refused(mesh: WantedMesh | None) -> tuple[int, str]:
        answer = log.ask("update", expects=3, mesh=mesh).answer
        return answer.status, answer.reason

    assert refused(wanted("shout", package="sha-3"))[0] == 412
    assert refused(None)[0] == 400
    assert "is it parallelism?" in refused(wanted("shout", paralelism=2))[1]
    assert "is that of public/default/g" in refused(wanted("shout", name="g"))[1]
    assert "takes more than" in refused(replace(wanted("shout"), text="x" * 600_000))[1]
    assert log.ask("drained-by-nobody", expects=3).answer.status == 400
    assert log.leader.meshes[MESH].revision == 3


def test_a_mesh_is_deleted_with_its_offsets_and_code(log: MeshLog) -> None:
    log.function("mine", expects=None)
    effects = log.ask("delete", expects=3)
    assert effects.answer.revision is None
    assert sorted(effects.cleaned) == [SINK, "public/default/count", SHOUT]
    assert effects.packages == ["sha-1"]
    assert (log.leader.meshes, set(log.leader.definitions)) == ({}, {"public/default/mine"})
    assert log.function("shout").answer.won
