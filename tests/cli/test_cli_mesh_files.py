"""`kop mesh validate` and `kop mesh draw`, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli.cli_support import Invoke

GOOD = """\
name: m
functions:
- {name: a, className: shout, py: shout.py, inputs: [in], output: t}
- {name: b, className: shout, py: shout.py, inputs: [t], output: u, stateScope: partition}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shout.py").write_text("def process(text: str) -> str:\n    return text.upper()\n")
    (tmp_path / "count.py").write_text("def process(text, context):\n    context.incr_counter(text, 1)\n")
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def test_a_mesh_that_is_right_is_shown(folder: Path, invoke: Invoke) -> None:
    result = invoke("mesh", "validate", str(folder / "good.yaml"))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "public/default/m: 2 parts, 2 components, continuous",
        "PART  KIND      COMPONENT  READS  WRITES",
        "a     function  a          in     t",
        "b     function  b          t      u",
        "b reads t from the server: b has state, and a has no keepsKey: true",
    ]
    assert result.stderr.endswith("good.yaml: topics that others have to write: in\n")


def test_all_mistakes_are_told_with_those_of_code(folder: Path, invoke: Invoke) -> None:
    path = folder / "bad.yaml"
    path.write_text(
        GOOD.replace("output: u", "output: u, parallelism: 9")
        + "- {name: c, className: count, py: count.py, inputs: [u], output: t}\n"
        + "- {name: d, className: d, py: d.py, inputs: [t]}\n"
    )
    result = invoke("mesh", "validate", str(path), "--master", "local[4,4]")
    assert result.exit_code == 1
    told = [line.partition("bad.yaml")[2] for line in result.stderr.splitlines()]
    assert told[1:] == [
        ", line 4: function b: a cycle, b -(u)-> c -(t)-> b: let one of them write another topic",
        ", line 5: function c: code: count.py, line 2: incr_counter needs state: give the function stateScope: "
        "partition, or function",
        f", line 6: function d: code: there is no file {folder / 'd.py'}",
        ": 3 mistakes",
    ]
    as_json = invoke("mesh", "validate", str(path), "--json", "--no-code")
    assert as_json.exit_code == 1
    (mistake,) = json.loads(as_json.stdout)["mistakes"]
    assert mistake["line"] == 4


def test_cores_and_json(folder: Path, invoke: Invoke) -> None:
    path = str(folder / "good.yaml")
    few = invoke("mesh", "validate", path, "--no-code", "--cores", "1")
    assert few.exit_code == 1
    assert "2 cores are needed, of 1, one at all times for each of a, b: --master local[2]" in few.stderr
    assert invoke("mesh", "validate", path, "--no-code", "--master", "local").stderr == few.stderr
    shown = json.loads(invoke("mesh", "validate", path, "--no-code", "--json").stdout)
    assert [component["functions"] for component in shown["components"]] == [["a"], ["b"]]
    assert (shown["mesh"], shown["mistakes"]) == ("public/default/m", [])


def test_a_mesh_is_drawn(folder: Path, invoke: Invoke) -> None:
    path = str(folder / "good.yaml")
    result = invoke("mesh", "draw", path)
    assert ElementTree.fromstring(result.stdout).tag.endswith("svg")
    assert invoke("mesh", "draw", path, "--output", str(folder / "m.svg")).exit_code == 0
    assert (folder / "m.svg").read_text() == result.stdout
    (folder / "bad.yaml").write_text("name: m\nfunctions: 3\n")
    refused = invoke("mesh", "draw", str(folder / "bad.yaml"))
    assert refused.exit_code == 2
    assert "line 2: functions: must be a list" in refused.stderr
    assert invoke("mesh", "draw", path, "--output", str(folder / "no" / "m.svg")).exit_code == 1
    (folder / "bytes.yaml").write_bytes(b"name: \xff")
    assert "is no text in UTF-8" in invoke("mesh", "draw", str(folder / "bytes.yaml")).stderr
