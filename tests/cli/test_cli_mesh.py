"""`kop mesh` without Spark: what is wrong with a file, and what is known of meshes on a server."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cli.cli_support import Invoke
from click.testing import Result
from kafka import KafkaAdminClient
from support.waiting import wait_until

from kop.address import Address
from kop.cli import mesh as mesh_command
from kop.cli.mesh_draw import live_mesh
from kop.cli.mesh_live import live_server
from kop.client.keyed_topic import KeyedTopic
from kop.client.properties import connection
from kop.client.write_client import WriteClient
from kop.functions.definitions import Definition
from kop.functions.metadata import DEFINITIONS
from kop.functions.topic_requests import new_registry
from kop.functions.topics import HOME
from kop.mesh import records
from kop.testing import Broker

NAME = "public/default/loud"
REPORT = {
    "mesh": NAME,
    "state": "running",
    "host": "there",
    "pid": 7,
    "started_ms": 1,
    "trigger": "continuous",
    "components": [
        {"name": "shout", "kind": "component", "state": "running", "reason": "it was slow",
         "since_ms": 1_767_225_600_000, "next_start_ms": None, "restarts": 2, "tasks": 1,
         "functions": ["public/default/shout"], "ended_calls": []},
    ],
    "parts": [
        {"name": "public/default/shout", "kind": "function", "component": "shout", "guarantee": "EFFECTIVELY_ONCE",
         "inputs": ["mesh-lines"], "inner_inputs": [], "output": "mesh-loud", "group": "public/default/shout",
         "received": 3, "processed": 2, "user_exceptions": 1, "rate": 2.5, "last_invocation_ms": 9,
         "latency_count": 2, "latency_sum_ms": 5.0, "received_1min": 2, "processed_1min": 1, "latency_count_1min": 1,
         "latency_sum_ms_1min": 3.0, "at": ["mesh-lines", 0, 1],
         "latest_user_exceptions": [{"text": "ValueError: no", "at_ms": 1}]},
        {"name": "public/default/bang", "kind": "function", "component": "shout", "guarantee": "EFFECTIVELY_ONCE",
         "inputs": ["mesh-loud"], "inner_inputs": ["mesh-loud"], "output": "mesh-out", "group": "", "rate": 0.0},
    ],
    "edges": [{"part": "public/default/shout", "topic": "mesh-lines", "rate": 2.5}],
}  # fmt: skip


def test_a_wrong_file_is_told_before_spark_starts(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text("name: a\nfunction: []\n")
    result = invoke("mesh", "run", str(path))
    assert (result.exit_code, "line 2" in result.stderr) == (2, True)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What was given to the processes that `kop mesh run` became."""
    given: list[dict[str, object]] = []
    monkeypatch.setattr(mesh_command, "spark_environment", lambda *_: {})
    monkeypatch.setattr(os, "execve", lambda _path, arguments, _: given.append(json.loads(arguments[-1])))
    return given


MESH = """\
name: loud
functions:
- {name: shout, className: loud.shout, py: loud.py, inputs: [mesh-lines], output: mesh-loud}
- {name: bang, className: loud.bang, py: loud.py, inputs: [mesh-loud], output: mesh-out}
"""


class OnBroker:
    """Runs `kop mesh` in this process, on a broker of this process."""

    def __init__(self, invoke: Invoke, bootstrap: str) -> None:
        self._invoke = invoke
        self.bootstrap = bootstrap

    def __call__(self, *arguments: str, **settings: str) -> Result:
        result = self._invoke("mesh", *arguments, "--bootstrap", self.bootstrap, **settings)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def ok(self, *arguments: str) -> str:
        """Run, insist on exit code 0, return what it printed."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
def mesh(invoke: Invoke) -> Iterator[OnBroker]:
    with Broker() as broker:
        broker.produce("mesh-lines", ["a", "b"])
        yield OnBroker(invoke, broker.bootstrap)


def test_a_mesh_is_defined_looked_at_and_changed(mesh: OnBroker, tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(MESH)
    (tmp_path / "loud.py").write_text("def shout(text: str) -> str:\n    return text\n\n\nbang = shout\n")
    assert f"there is no mesh {NAME}; kop mesh run FILE makes the first one" in mesh("status", "loud").stderr
    assert "created; kop mesh run" in mesh.ok("create", str(path), "--no-code"), "it leads itself if nobody else does"
    settings = connection({"bootstrap.servers": mesh.bootstrap}, "kop-mesh").settings
    driver = new_registry(settings, str(tmp_path / "driver"), HOME, 20.0)
    driver.start()
    try:
        wait_until(lambda: driver.leads, "the driver to lead", 120.0)
        check_changes(mesh, path)
    finally:
        driver.close()


def check_changes(mesh: OnBroker, path: Path) -> None:
    assert f"{NAME} exists already" in mesh("create", str(path), "--no-code").stderr
    assert mesh.ok("get", "loud") == MESH
    assert "waiting, no driver has run it" in mesh.ok("status", "loud")
    check_reports(mesh)
    path.write_text(MESH.replace("output: mesh-out", "output: mesh-end") + "fuse: false\n")
    shown = json.loads(mesh.ok("update", str(path), "--no-code", "--dry-run", "--json"))
    assert shown["applied"] is False
    assert {"of": "mesh", "name": "fuse", "what": "true -> false"} in shown["changes"]
    assert {"of": "part", "name": "bang", "what": "output: mesh-out -> mesh-end"} in shown["changes"]
    assert "was changed meanwhile" in mesh("update", str(path), "--no-code", "--yes", "--revision", "0").stderr
    assert f"{NAME}: updated (revision" in mesh.ok("update", str(path), "--no-code", "--yes")
    assert f"{NAME}: nothing changes" in mesh.ok("update", str(path), "--no-code", "--yes")
    assert "has no part boom; it has bang, shout" in mesh("restart", "loud", "boom").stderr
    assert "has no part boom; it has bang, shout" in mesh("stop", "loud", "boom").stderr
    assert f"{NAME}: bang stopped" in mesh.ok("stop", "loud", "bang")
    assert json.loads(mesh.ok("get", "loud", "--json"))["stopped_parts"] == ["bang"]
    assert f"{NAME}: bang started" in mesh.ok("start", "loud", "bang")
    assert f"{NAME}: stopped" in mesh.ok("stop", "loud")
    assert json.loads(mesh.ok("list", "--json"))[0]["state"] == "stopped"
    assert f"{NAME} is stopped as a whole: kop mesh start {NAME}" in mesh("start", "loud", "bang").stderr
    assert f"{NAME}: started" in mesh.ok("start", "loud")
    left = left_behind(mesh)
    next(left)
    assert "its topics and the state of its functions are still there" in mesh.ok("delete", "loud")
    assert json.loads(mesh.ok("list", "--json")) == []
    assert mesh("list").output == "there are no meshes; define one with: kop mesh create FILE\n"
    assert next(left) == {"public/default/kept": True, "public/default/gone": False}


def left_behind(mesh: OnBroker) -> Iterator[dict[str, bool]]:
    """Note groups of functions that the mesh has lost since a driver ran it; then tell which of them are there."""
    settings = {"bootstrap_servers": [mesh.bootstrap]}
    place = "mesh-lines", 0
    groups = [f"public/default/{name}" for name in ("kept", "gone")]
    with closing(KeyedTopic(settings, records.TOPIC, 20.0)) as topic, closing(WriteClient(settings, 20.0)) as writer:
        topic.put({records.key(records.GROUPS, NAME): records.encode({groups[1]: groups[1]})})
        for group in groups:
            assert writer.commit(group, {place: 1}) == {}
        yield {}
        yield {group: place in writer.committed(group, [place]) for group in groups}


def check_reports(mesh: OnBroker) -> None:
    """Look at what a driver has said."""
    topic = KeyedTopic({"bootstrap_servers": [mesh.bootstrap]}, records.TOPIC, 20.0)
    try:
        topic.make()

        def put(state: str, at_ms: int, **more: bool) -> None:
            report = records.encode({**REPORT, "state": state, "at_ms": at_ms, **more})
            topic.put({records.key(records.REPORT, NAME): report})

        put(records.RUNNING, int(time.time() * 1000) + 600_000)  # a slow machine does not make it old
        lines = mesh.ok("status", "loud").splitlines()
        assert lines[0].endswith("): running on there, process 7, continuous")
        assert lines[2].split() == ["shout", "function", "shout", "running", "3", "2", "1", "2.5", "2"]
        assert lines[3].split()[-2:] == ["0.0", "-"], "there is no lag within a component"
        assert lines[4] == "shout: it was slow, since 2026-01-01T00:00:00Z"
        assert lines[5] == "shout: ValueError: no"
        stats = mesh.ok("stats", "loud").splitlines()
        assert stats[1].split() == ["shout", "function", "3", "2", "1", "0", "2.50", "2.5", "2", "1", "3.00"]
        assert stats[5].split() == ["mesh-lines", "shout", "2.5", "2"]
        part = json.loads(mesh.ok("status", "loud", "--json"))["parts"][0]
        assert (part["running"], part["restarts"], part["error"]) == (True, 2, "it was slow")
        assert (part["since_ms"], part["next_start_ms"], part["last_ms"]) == (1_767_225_600_000, None, 9)
        assert part["at"] == {"topic": "mesh-lines", "partition": 0, "offset": 1}
        minute = json.loads(mesh.ok("stats", "loud", "--json"))["parts"][0]
        assert [minute[f"{name}_1min"] for name in ("received", "processed", "average_ms")] == [2, 1, 3.0]
        ready = json.loads(mesh.ok("status", "loud", "--json"))["conditions"]
        assert ready["condition"] == {"condition": "MeshReady", "status": "True", "action": "NoAction"}
        assert ready["functionConditions"]["bang"]["condition"] == "FunctionReady"
        assert mesh.ok("list").splitlines()[1].split()[:2] == [NAME, "running"]
        assert f"kop mesh stop {NAME} first" in mesh("delete", "loud").stderr
        check_the_live_picture(mesh)
        put(records.STOPPED, int(time.time() * 1000) + 600_000, ended=True)
        assert (
            mesh.ok("status", "loud")
            .splitlines()[0]
            .endswith("): stopped, no driver; the last one, on there, ended 0 s ago")
        )
        put(records.STARTING, int(time.time() * 1000) + 600_000, drives=False)
        assert "): starting on there, process 7, continuous" in mesh.ok("status", "loud")
        assert f"{NAME}: stopped" in mesh.ok("stop", "loud"), "nothing waits for a driver without Spark"
        mesh.ok("start", "loud")
        put(records.RUNNING, 1)
        assert "has said nothing for" in mesh.ok("status", "loud")
        part = json.loads(mesh.ok("status", "loud", "--json"))["parts"][0]
        assert (part["state"], part["running"], part["since_ms"]) == ("gone", False, None)
    finally:
        topic.close()


def check_the_live_picture(mesh: OnBroker) -> None:
    settings = dict(connection({"bootstrap.servers": mesh.bootstrap}, "kop-mesh").settings)
    server = live_server(live_mesh(settings, 20.0, NAME), Address("127.0.0.1", 0))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def ask(path: str, **headers: str) -> tuple[int, str]:
        client = HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        return answer.status, answer.read().decode()

    try:
        status, picture = ask("/mesh.svg")
        assert (status, picture.startswith("<svg"), "2.5/s, lag 2" in picture) == (200, True, True)
        assert f"<title>{NAME}</title>" in ask("/")[1]
        assert json.loads(ask("/mesh.json")[1])["state"] == "running"
        assert ask("/mesh.svg", Host="elsewhere.example:80")[0] == 403
        assert ask("/other")[0] == 404
    finally:
        server.shutdown()
        server.server_close()
    assert "is for this machine alone" in mesh("draw", "loud", "--live", "--listen", "0.0.0.0:0").stderr


def test_a_file_is_checked_before_it_runs(mesh: OnBroker, tmp_path: Path, started: list[dict[str, object]]) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(MESH)
    (tmp_path / "loud.py").write_text("import nothing_like_this\n")
    wrong = mesh("run", str(path))
    assert (wrong.exit_code, started) == (2, [])
    assert f"{path}, line 3: function shout: code: loud.py, line 1: ModuleNotFoundError" in wrong.stderr
    (tmp_path / "loud.py").write_text("def shout(text: str) -> str:\n    return text\n\n\nbang = shout\n")
    path.write_text(MESH + "fuse: false\n")
    few = mesh("run", str(path), "--master", "local[1]")
    assert (few.exit_code, started) == (2, [])
    assert "2 cores are needed, of 1" in few.stderr
    right = mesh("run", str(path), "--master", "local[2]")
    assert right.exit_code == 0, right.output
    assert right.stderr == "", "the server has mesh-lines"
    assert mesh("run", str(path), "--master", "local[1]", "--once", "--no-code", "--json").exit_code == 0
    assert [(given["file"], given["master"], given["json"]) for given in started] == [
        (str(path), "local[2]", False),
        (str(path), "local[1]", True),
    ]


def test_a_run_shows_what_goes_of_the_mesh_that_is_there_and_asks(
    mesh: OnBroker, tmp_path: Path, started: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(MESH)
    (tmp_path / "loud.py").write_text("def shout(text: str) -> str:\n    return text\n\n\nbang = shout\n")
    run = ("run", str(path), "--no-code")
    mesh.ok(*run)
    assert started.pop()["seen"] is None, "a first run makes it"
    mesh.ok("create", str(path), "--no-code")
    revision = json.loads(mesh.ok("get", "loud", "--json"))["revision"]
    mesh.ok(*run)
    path.write_text(MESH + MORE)
    more = mesh(*run)
    assert (more.exit_code, "WHAT" in more.stderr) == (0, False), "nothing goes"
    path.write_text(OTHER)
    refused = mesh(*run)
    assert refused.exit_code == 1
    *rows, last = (" ".join(line.split()) for line in refused.stderr.splitlines())
    assert "part bang goes: function" in rows
    assert "offsets bang those of the group public/default/bang are deleted with it" in rows
    assert last.startswith(f"kop: {NAME} would be replaced as above, and there is no terminal to ask on: add --yes")
    assert mesh(*run, "--json").stdout == "", "the change is no line of JSON"
    assert [given["seen"] for given in started] == [revision, revision], "it has not started"
    mesh.ok(*run, "--yes")
    monkeypatch.setattr("kop.cli.mesh_definitions.has_terminal", lambda: True)
    answered = mesh(*run, input="n\n")
    assert (answered.exit_code, f"Change {NAME}? [y/N]" in answered.stderr) == (1, True)
    assert [given["seen"] for given in started] == [revision] * 3
    assert mesh(*run, input="y\n").exit_code == 0
    assert [given["seen"] for given in started] == [revision] * 4


MORE = "- {name: more, className: loud.bang, py: loud.py, inputs: [mesh-out], output: mesh-more}\n"
OTHER = "".join(MESH.splitlines(keepends=True)[:-1])


def test_validate_asks_the_server_for_partitions_and_other_writers(mesh: OnBroker, tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(MESH.replace("mesh-out", "mesh-out, stateScope: partition").replace("mesh-loud}", LOUD))
    validate = ("validate", str(path), "--no-code")

    def components() -> list[list[str]]:
        shown = json.loads(mesh.ok(*validate, "--json"))
        return [component["functions"] for component in shown["components"]]

    assert components() == [["shout", "bang"]], "one partition each, as topics have that are made"
    with closing(KafkaAdminClient(bootstrap_servers=mesh.bootstrap)) as admin:
        admin.create_topics({"mesh-loud": {"num_partitions": 3}})
        admin.wait_for_topics(["mesh-loud"])
    assert "bang has state of each partition; mesh-loud has 3 and mesh-lines 1" in mesh.ok(*validate)
    path.write_text(MESH)
    assert components() == [["shout", "bang"]]
    define(mesh, "z", output="mesh-loud")
    told = mesh.ok(*validate)
    assert "bang reads mesh-loud from the server: the function public/default/z writes it, too" in told
    path.write_text(MESH.replace("[mesh-lines]", "[mesh-nothing]"))
    missing = mesh(*validate)
    assert missing.exit_code == 1
    assert f"{path}, line 3: function shout: inputs: mesh-nothing is not on the server" in missing.stderr
    path.write_text(MESH.replace("mesh-loud}", "mesh-loud, private: true}"))
    refused = mesh("create", str(path), "--no-code")
    assert refused.exit_code == 2
    assert "private: bang needs the topic mesh-loud: the function public/default/z writes it, too" in refused.stderr


LOUD = "mesh-loud, keepsKey: true}"


def define(mesh: OnBroker, name: str, **config: str) -> None:
    """Define a function as a worker does."""
    made = Definition(
        fqfn=f"public/default/{name}",
        config={"name": name, "className": "f", "py": "f.py", "inputs": ["mesh-other"], **config},
        revision=1,
        version=1,
    )
    topic = KeyedTopic({"bootstrap_servers": [mesh.bootstrap]}, DEFINITIONS, 20.0)
    try:
        topic.make()
        topic.put({made.fqfn: made.to_json()})
    finally:
        topic.close()
