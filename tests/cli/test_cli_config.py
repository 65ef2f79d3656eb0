"""`kop config`: every setting with value, default and meaning."""

from __future__ import annotations

import json
from pathlib import Path

from cli.cli_support import Invoke

from kop.config import Config


def test_every_setting_is_shown_with_its_meaning(invoke: Invoke) -> None:
    result = invoke("config", terminal_width=80)
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for row in Config().table():
        shown = row.current if row.name != "store" else ""
        assert f" {row.name} = {shown}".rstrip() in f" {text}"
        assert f"{row.doc} ({row.type}, {row.env})" in text
    assert not any(line.startswith("*") for line in result.output.splitlines())


def test_changed_settings_are_marked_with_their_source(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "kop.toml"
    path.write_text("num.partitions = 3\nnode.id = 1\n")
    result = invoke(
        "config", "--config", str(path), "--set", "log.retention.ms=5", "--changed", env={"KOP_LOG_LEVEL": "debug"}
    )
    assert [line for line in result.output.splitlines() if " = " in line or "set by" in line] == [
        "* kop.log.level = debug",
        "      set by KOP_LOG_LEVEL; the default is info",
        "* num.partitions = 3",
        f"      set by {path}; the default is 1",
        "* log.retention.ms = 5",
        "      set by a flag; the default is empty",
    ]


def test_file_comes_from_the_environment(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "kop.toml"
    path.write_text("node.id = 4\n")
    assert "node.id = 4" in invoke("config", "node.id", env={"KOP_CONFIG": str(path)}).output


def test_a_secret_is_hidden(invoke: Invoke) -> None:
    for flags in (["--changed"], ["--json"], ["kop.pulsar.auth"]):
        result = invoke("config", "--set", "kop.pulsar.auth=token:very-secret", *flags)
        assert result.exit_code == 0
        assert "[hidden]" in result.output
        assert "very-secret" not in result.output
    misspelt = invoke("config", "--set", "kop.pulsar.auth:token:very-secret")
    assert misspelt.exit_code == 2
    assert "very-secret" not in misspelt.output


def test_named_flags_are_settings(invoke: Invoke) -> None:
    flags = ["--listen", "a:1", "--listen", "b:2", "--advertise", "c:3", "--store", "sqlite:/d", "--http", ""]
    rows = json.loads(invoke("config", "--json", *flags).output)
    current = {row["name"]: row["current"] for row in rows}
    assert current["listen"] == "a:1,b:2"
    assert current["advertise"] == "c:3"
    assert current["store"] == "sqlite:/d"
    assert current["http"] == ""


def test_json_has_the_whole_table(invoke: Invoke) -> None:
    rows = json.loads(invoke("config", "--json").output)
    assert [row["name"] for row in rows] == [row.name for row in Config().table()]
    assert next(row for row in rows if row["name"] == "node.id") == {
        "name": "node.id",
        "type": "int",
        "default": "1",
        "current": "1",
        "origin": "default",
        "doc": "Id of this broker, as clients see it.",
        "kafka": True,
        "env": "KOP_NODE_ID",
    }


def test_one_setting(invoke: Invoke) -> None:
    assert invoke("config", "fetch.max.bytes").output.splitlines() == [
        "  fetch.max.bytes = 57671680",
        "      Most bytes of records in one Fetch response, a first larger batch aside.",
        "      (int, KOP_FETCH_MAX_BYTES)",
    ]


def test_unknown_name_names_the_nearest(invoke: Invoke) -> None:
    result = invoke("config", "fetch.maxbytes")
    assert result.exit_code == 2
    assert result.stderr == "kop: unknown setting fetch.maxbytes; did you mean fetch.max.bytes?\n"


def test_problems_of_settings_are_exit_code_2(invoke: Invoke) -> None:
    result = invoke("config", "--set", "num.partitions=many", "--set", "nod.id=1")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "kop: unknown setting nod.id (flag); did you mean node.id?",
        "kop: num.partitions = 'many' (flag): must be a valid integer",
    ]
