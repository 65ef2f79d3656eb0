"""`--json` of every table, whose field names last, and the commands for brokers, records and all groups."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from cli.cli_support import REPOSITORY, Invoke, Kop

PAGE = Path(REPOSITORY / "docs" / "commands.md").read_text()


def documented(command: str) -> set[str]:
    """The fields of a row of the page's table."""
    (row,) = re.findall(rf"^\| `{command}` +\| (.*) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


@pytest.fixture
def topic(kop: Kop) -> str:
    """A topic with ten records in partition 0 of two, and a group of its name that has read them."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kop.ok("topics", "create", name, "--partitions", "2")
    kop.ok("produce", name, "-p", "0", given=b"".join(b"%d\n" % number for number in range(10)))
    kop.ok("consume", name, "-g", name, "-B", "-n", "10")
    return name


def mine(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (row,) = (row for row in rows if name in row.values())
    return row


def test_tables_as_json(kop: Kop, topic: str) -> None:
    listed = mine(json.loads(kop.ok("topics", "list", "--json")), topic)
    assert listed == {"topic": topic, "partitions": 2, "internal": False}
    assert listed.keys() == documented("topics list")

    (described,) = json.loads(kop.ok("topics", "describe", topic, "--json"))
    assert described.keys() == documented("topics describe")
    first = described["partitions"][0]
    assert (first["partition"], first["leader"], first["start"], first["end"]) == (0, 1, 0, 10)
    assert first["size_bytes"] > 0
    assert first["older_entries"] is None
    assert [name for name in first if f"`{name}`" not in PAGE] == []

    group = mine(json.loads(kop.ok("groups", "list", "--json")), topic)
    assert group == {"group": topic, "state": "Empty", "type": "classic", "protocol": "consumer"}
    assert group.keys() == documented("groups list")

    shown = mine(json.loads(kop.ok("groups", "describe", "--all", "--json")), topic)
    assert shown.keys() == documented("groups describe")
    assert shown["members"] == []
    assert shown["offsets"] == [
        {"topic": topic, "partition": 0, "committed": 10, "end": 10, "lag": 0, "member_id": None},
    ]
    assert f"{topic}: state Empty, 0 members" in kop.ok("groups", "describe", "--all")

    moved = json.loads(kop.ok("groups", "reset-offsets", topic, "--topic", f"{topic}:0", "--to-offset", "4", "--json"))
    assert moved == [{"topic": topic, "partition": 0, "committed": 10, "new": 4, "lag": 6}]
    assert moved[0].keys() == documented("groups reset-offsets")
    assert json.loads(kop.ok("transactions", "list", "--open", "--json")) == []


def test_brokers(kop: Kop) -> None:
    (broker,) = json.loads(kop.ok("brokers", "--json"))
    assert broker.keys() == documented("brokers")
    assert (broker["id"], broker["address"], broker["controller"]) == (1, kop.bootstrap, True)
    assert (broker["engine"], broker["rack"]) == ("sqlite", None)
    assert re.fullmatch(r"\d+\.\d+", broker["version"])
    head, line = kop.ok("brokers").splitlines()
    assert head.split() == ["ID", "ADDRESS", "CONTROLLER", "CLUSTER-ID", "VERSION", "ENGINE"]
    assert line.split() == ["1", kop.bootstrap, "yes", broker["cluster_id"], broker["version"], "sqlite"]


def test_delete_records(kop: Kop, topic: str) -> None:
    deleted = json.loads(kop.ok("topics", "delete-records", f"{topic}:0", "--before", "4", "--json"))
    assert deleted == [{"topic": topic, "partition": 0, "start": 4}]
    assert deleted[0].keys() == documented("topics delete-records")
    assert kop.ok("consume", topic, "--to-offset", "6") == "4\n5\n"
    late = kop("topics", "delete-records", topic, "--before", "99")
    assert (late.code, late.out) == (1, "")
    ends = enumerate((10, 0))
    assert late.err == "".join(
        f"kop: {topic}-{number}: OFFSET_OUT_OF_RANGE: its records end before offset {end}\n" for number, end in ends
    )
    assert [line.split() for line in kop.ok("topics", "delete-records", topic, "--all").splitlines()] == [
        ["TOPIC", "PARTITION", "START"],
        [topic, "0", "10"],
        [topic, "1", "0"],
    ]


def test_config_says_that_nothing_is_changed(invoke: Invoke) -> None:
    result = invoke("config", "--changed")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "every setting is at its default\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(invoke: Invoke, shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0, result.output
    assert f"_KOP_COMPLETE={shell}_complete" in result.stdout
