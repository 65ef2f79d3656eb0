"""What `kop mesh run --json` tells: each change of a state, once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from kop.spark.mesh.run_states import RunStates
from kop.testing import Broker

NAME = "public/default/m"


def test_a_state_is_told_when_it_changes() -> None:
    told: list[dict[str, Any]] = []
    states = RunStates(NAME, told.append)

    def new() -> list[tuple[Any, ...]]:
        made = [tuple(each[name] for name in ("component", "state", "reason", "revision")) for each in told]
        told.clear()
        return made

    states.look("starting", "", None)
    states.look("starting", "", None)
    assert told[0]["mesh"] == NAME
    assert told[0]["at_ms"] > 0
    assert new() == [(None, "starting", "", None)]
    states.look("running", "", 3, [("a", "starting", ""), ("b", "running", "")])
    assert new() == [(None, "running", "", 3), ("a", "starting", "", 3), ("b", "running", "", 3)]
    states.look("running", "", 3, [("a", "failed", "no"), ("b", "running", "")])
    assert new() == [("a", "failed", "no", 3)]
    states.look("running", "", 3, [("a", "failed", "no")])
    states.look("running", "", 3, [("a", "failed", "no"), ("b", "running", "")])
    assert new() == [("b", "running", "", 3)], "it has begun anew"


def test_a_mesh_that_cannot_run_has_failed(kop_broker: Broker) -> None:
    given: dict[str, Any] = {
        **dict.fromkeys(("file", "checkpoints"), ""),
        **dict.fromkeys(("client_config", "master")),
        "mesh": NAME,
        "bootstrap": kop_broker.bootstrap,
        "topic_namespace": "public/default",
        "once": False,
        "settings": {},
    }

    def run(**more: Any) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "kop.spark.mesh", json.dumps({**given, **more})]
        return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)

    reason = f"there is no mesh {NAME}: kop mesh run FILE defines and runs one"
    ended = run(json=True)
    assert (ended.returncode, ended.stderr) == (1, f"kop: {reason}\n")
    (line,) = ended.stdout.splitlines()
    assert {**json.loads(line), "at_ms": 0} == {
        "at_ms": 0, "mesh": NAME, "component": None, "state": "failed", "reason": reason, "revision": None,
    }  # fmt: skip
    assert run().stdout == ""
