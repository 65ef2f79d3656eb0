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
    assert told[0].startswith(": line 4: function b: parallelism: has no effect in a mesh")
    assert told[2:] == [
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


@pytest.mark.parametrize(
    "command",
    [
        ("mesh", "get", "FILE"),
        ("mesh", "draw", "FILE"),
        ("mesh", "list", "--client-config", "FILE"),
        ("topics", "list", "--client-config", "FILE"),
        ("functions", "localrun", "--function-config-file", "FILE"),
        ("functions", "list", "--token-file", "FILE"),
    ],
)
def test_files_that_are_no_text_are_told(folder: Path, invoke: Invoke, command: tuple[str, ...]) -> None:
    path = folder / "bytes.yaml"
    path.write_bytes(b"name: \xff")
    result = invoke(*(str(path) if word == "FILE" else word for word in command))
    said = "must hold a token" if "--token-file" in command else "no text in UTF-8"
    assert (result.exit_code, said in result.stderr, str(path) in result.stderr) == (2, True, True), result


def test_a_file_that_is_no_text_has_mistakes_as_json(folder: Path, invoke: Invoke) -> None:
    path = folder / "bytes.yaml"
    path.write_bytes(b"name: m\nsinks: \xff")
    result = invoke("mesh", "validate", str(path), "--json")
    mistakes = [{"line": 2, "text": "is no text in UTF-8: invalid start byte"}]
    assert (result.exit_code, json.loads(result.stdout)["mistakes"]) == (1, mistakes)


@pytest.mark.parametrize("name", ["n/m", "t/n/", "/n/m", "t//m", "a/b/c/d", ""])
def test_a_name_is_that_of_a_mesh_in_full_or_alone(name: str, invoke: Invoke) -> None:
    result = invoke("mesh", "get", name)
    assert (result.exit_code, f"{name!r} is no name of a mesh" in result.stderr) == (2, True), result


def test_a_picture_may_be_values(folder: Path, invoke: Invoke) -> None:
    path = str(folder / "good.yaml")
    (folder / "good.yaml").write_text(
        GOOD + "- {name: c, className: shout, py: shout.py, inputs: [u], output: v, private: true}\n"
        "- {name: d, className: shout, py: shout.py, inputs: [v], deadLetterTopic: dead, maxMessageRetries: 1}\n"
        "sinks: [{name: s, inputs: dead, format: json}]\n"
    )
    shown = json.loads(invoke("mesh", "draw", path, "--json").stdout)
    assert shown["mesh"] == "public/default/m"
    assert {(edge["topic"], edge["part"], edge["does"]) for edge in shown["edges"]} == {
        ("in", "a", "reads"),
        ("t", "a", "writes"),
        ("t", "b", "reads"),
        ("u", "b", "writes"),
        ("u", "c", "is called"),
        ("v", "c", "writes"),
        ("v", "d", "is called"),
        ("dead", "d", "writes aside"),
        ("dead", "s", "reads"),
    }
    (cut,) = [edge for edge in shown["edges"] if edge["cut"]]
    assert (cut["topic"], cut["part"], cut["cut"]) == ("t", "b", "b has state, and a has no keepsKey: true")
    assert [component["functions"] for component in shown["components"]] == [["a"], ["b", "c", "d"]]
    nodes = {(node["kind"], node["name"]): node for node in shown["nodes"]}
    assert nodes.keys() == {*(("topic", n) for n in ("in", "t", "u", "v", "dead")), *(("function", n) for n in "abcd"),
                            ("sink", "s")}  # fmt: skip
    assert [nodes["topic", name]["written"] for name in ("t", "v")] == [True, False]
    assert [nodes["topic", name]["component"] for name in ("t", "v")] == [None, "b"]
    for node in nodes.values():
        assert 0 <= node["x"] <= shown["width"] - node["width"]
        assert 0 <= node["y"] <= shown["height"] - node["height"]
    picture = invoke("mesh", "draw", path).stdout
    assert f'viewBox="0 0 {shown["width"]:g} {shown["height"]:g}"' in picture
    assert invoke("mesh", "draw", path, "--json", "--output", str(folder / "m.json")).exit_code == 0
    assert json.loads((folder / "m.json").read_text()) == shown
    assert "/mesh.json" in invoke("mesh", "draw", "m", "--live", "--json").stderr
