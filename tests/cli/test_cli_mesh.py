"""`kop mesh` without Spark: what is wrong with a file, and what is known of meshes on a server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cli.cli_support import Invoke
from click.testing import Result
from support.waiting import wait_until

from kop.address import Address
from kop.cli.mesh_draw import live_mesh
from kop.cli.mesh_live import live_server
from kop.client.keyed_topic import KeyedTopic
from kop.client.properties import connection
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
        {"name": "shout", "kind": "component", "state": "running", "reason": "", "restarts": 0, "tasks": 1,
         "functions": ["public/default/shout"], "ended_calls": []},
    ],
    "parts": [
        {"name": "public/default/shout", "kind": "function", "component": "shout", "guarantee": "EFFECTIVELY_ONCE",
         "inputs": ["mesh-lines"], "inner_inputs": [], "output": "mesh-loud", "group": "public/default/shout",
         "received": 3, "processed": 2, "user_exceptions": 1, "rate": 2.5,
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


MESH = """\
name: loud
functions:
- {name: shout, className: code.shout, py: code.py, inputs: [mesh-lines], output: mesh-loud}
- {name: bang, className: code.bang, py: code.py, inputs: [mesh-loud], output: mesh-out}
"""


class OnBroker:
    """Runs `kop mesh` in this process, on a broker of this process."""

    def __init__(self, invoke: Invoke, bootstrap: str) -> None:
        self._invoke = invoke
        self.bootstrap = bootstrap

    def __call__(self, *arguments: str) -> Result:
        result = self._invoke("mesh", *arguments, "--bootstrap", self.bootstrap)
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
    (tmp_path / "code.py").write_text("def shout(text: str) -> str:\n    return text\n\n\nbang = shout\n")
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
    assert f"{NAME}: started" in mesh.ok("start", "loud")
    assert "its topics and the state of its functions are still there" in mesh.ok("delete", "loud")
    assert json.loads(mesh.ok("list", "--json")) == []


def check_reports(mesh: OnBroker) -> None:
    """Look at what a driver has said."""
    topic = KeyedTopic({"bootstrap_servers": [mesh.bootstrap]}, records.TOPIC, 20.0)
    try:
        topic.make()

        def put(state: str, at_ms: int) -> None:
            report = records.encode({**REPORT, "state": state, "at_ms": at_ms})
            topic.put({records.key(records.REPORT, NAME): report})

        put(records.RUNNING, int(time.time() * 1000) + 600_000)  # a slow machine does not make it old
        lines = mesh.ok("status", "loud").splitlines()
        assert lines[0].endswith("): running on there, process 7, continuous")
        assert lines[2].split() == ["shout", "function", "shout", "running", "3", "2", "1", "2.5", "2"]
        assert lines[3].split()[-2:] == ["0.0", "-"], "there is no lag within a component"
        assert lines[4] == "shout: ValueError: no"
        stats = mesh.ok("stats", "loud").splitlines()
        assert stats[1].split() == ["shout", "function", "3", "2", "1", "0", "-", "2.5"]
        assert stats[5].split() == ["mesh-lines", "shout", "2.5", "2"]
        ready = json.loads(mesh.ok("status", "loud", "--json"))["conditions"]
        assert ready["condition"] == {"condition": "MeshReady", "status": "True", "action": "NoAction"}
        assert ready["functionConditions"]["bang"]["condition"] == "FunctionReady"
        assert mesh.ok("list").splitlines()[1].split()[:2] == [NAME, "running"]
        assert f"kop mesh stop {NAME} first" in mesh("delete", "loud").stderr
        check_the_live_picture(mesh)
        put(records.RUNNING, 1)
        assert "has said nothing for" in mesh.ok("status", "loud")
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
