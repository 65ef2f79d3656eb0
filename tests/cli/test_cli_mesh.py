"""`kop mesh` without Spark: what is wrong with a file, and what is known of meshes on a server."""

from __future__ import annotations

import json
import time
from pathlib import Path

from cli.cli_support import Invoke, Kop

from kop.client.keyed_topic import KeyedTopic
from kop.mesh import records

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
}  # fmt: skip


def test_a_wrong_file_is_told_before_spark_starts(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text("name: a\nqueries:\n  - {name: q, sql: SELECT * FROM t, output: o}\n")
    result = invoke("mesh", "run", str(path))
    assert (result.exit_code, "queries are not run yet" in result.stderr) == (2, True)
    path.write_text("name: a\nfunction: []\n")
    result = invoke("mesh", "run", str(path))
    assert (result.exit_code, "line 2" in result.stderr) == (2, True)


def test_what_a_driver_has_reported(kop: Kop) -> None:
    assert f"no mesh {NAME} has run here" in kop("mesh", "status", "loud").err
    kop("produce", "mesh-lines", given=b"a\nb\n")
    topic = KeyedTopic({"bootstrap_servers": [kop.bootstrap]}, records.TOPIC, 20.0)
    try:
        topic.make()

        def put(state: str, at_ms: int) -> None:
            report = records.encode({**REPORT, "state": state, "at_ms": at_ms})
            topic.put(
                {records.key(records.REPORT, NAME): report, records.key(records.DEFINITION, NAME): b"name: loud\n"}
            )

        put(records.RUNNING, int(time.time() * 1000) + 600_000)  # a slow machine does not make it old
        lines = kop.ok("mesh", "status", "loud").splitlines()
        assert lines[0] == f"{NAME}: running on there, process 7, continuous"
        assert lines[2].split() == ["shout", "function", "shout", "running", "3", "2", "1", "2.5", "2"]
        assert lines[3].split()[-2:] == ["0.0", "-"], "there is no lag within a component"
        assert lines[4] == "shout: ValueError: no"
        assert kop.ok("mesh", "list").splitlines()[1].split() == [NAME, "running", "there", "2"]
        assert kop.ok("mesh", "get", "loud") == "name: loud\n"
        assert "no part boom" in kop("mesh", "restart", "loud", "boom").err
        assert "kop mesh stop loud first" in kop("mesh", "delete", "loud").err
        put(records.RUNNING, 1)
        assert "said nothing for" in kop("mesh", "stop", "loud").err
        kop.ok("mesh", "delete", "loud")
        assert json.loads(kop.ok("mesh", "list", "--json")) == []
    finally:
        topic.close()
