"""Pulsar's own `pulsar-admin functions` against a worker's REST: each of its commands, in one process of Java."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from functions.rest_kit import FakeService, serving, status_of

COMMANDS = """
functions create --py {folder}/shout.py --classname shout --inputs a --output b --name shout --user-config {{"v":11}}
functions update --name shout --parallelism 2
functions update --name shout --py {folder}/shout.py --classname shout --inputs a
functions get --name shout
functions list
functions status --name shout
functions status --name shout --instance-id 0
functions stats --name shout
functions stats --name shout --instance-id 0
functions trigger --name shout --trigger-value hello
functions trigger --name shout --trigger-file {folder}/message --topic a
functions trigger --name shout --trigger-value void
functions trigger --name shout --trigger-value bad
functions querystate --name shout -k k
functions putstate --name shout -s {{"key":"k","stringValue":"x"}}
functions querystate --name shout -k k
functions start --name shout
functions stop --name shout --instance-id 0
functions restart --name shout
functions upload --source-file {folder}/shout.py --path public/x/shout.py
functions download --name shout --destination-file {folder}/code
functions download --path public/x/shout.py --destination-file {folder}/upload
functions available-functions
functions reload
functions-worker get-cluster
functions-worker get-cluster-leader
functions-worker get-function-assignments
functions-worker rebalance
functions-worker function-stats
functions-worker monitoring-metrics
functions create --py http://x/y.py --classname y --inputs a --name y
functions delete --name shout
"""
SHOUT = "def process(text: str) -> str:\n    return text.upper()\n"


@pytest.fixture
def said(pulsar_home: Path, tmp_path: Path) -> dict[str, str]:
    """What each command has printed."""
    (tmp_path / "shout.py").write_text(SHOUT)
    (tmp_path / "message").write_text("from a file")
    commands = COMMANDS.format(folder=tmp_path).strip().splitlines()
    (tmp_path / "commands").write_text("".join(f"admin {command}\n" for command in commands))
    service = FakeService()
    service.statuses = {("public/default/shout", number): status_of() for number in (0, 1)}
    service.answers = {"void": {"output": None, "error": None}, "bad": {"output": None, "error": "ValueError: bad"}}
    with serving(service) as api:
        (tmp_path / "client.conf").write_text(f"webServiceUrl={api.url}\nbrokerServiceUrl=pulsar://127.0.0.1:1\n")
        shell = [pulsar_home / "bin" / "pulsar-shell", "--no-progress"]
        output = subprocess.run(
            [*shell, "-c", tmp_path / "client.conf", "-f", tmp_path / "commands"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
    # Each command is named before what it prints.
    parts = re.split(r"^\[\d+/\d+\] Executing admin (.*)$", output.stdout, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))
    assert list(told) == list(dict.fromkeys(commands)), output
    assert [row["config"] for row in service.requests if row["kind"] == "update"] == [
        {"parallelism": 2},
        {"className": "shout", "inputs": ["a"], "py": "shout.py"},
    ]
    assert service.requests[0]["config"]["userConfig"] == {"v": 11}
    assert service.moved == ["rebalance"]
    assert (tmp_path / "code").read_text() == (tmp_path / "upload").read_text() == SHOUT
    return {command.replace(str(tmp_path), "."): text for command, text in told.items()}


@pytest.mark.pulsar
def test_every_command_of_pulsar_admin(said: dict[str, str]) -> None:
    expected = {
        'create --py ./shout.py --classname shout --inputs a --output b --name shout --user-config {"v":11}': "Created",
        "update --name shout --parallelism 2": "Updated successfully",
        "update --name shout --py ./shout.py --classname shout --inputs a": "Updated successfully",
        "get --name shout": '"py": "shout.py"',
        "list": "shout",
        "status --name shout": '"numRunning" : 2',
        "status --name shout --instance-id 0": '"exceptionString" : "ValueError: no"',
        "stats --name shout": '"receivedTotal" : 14',
        "stats --name shout --instance-id 0": '"size" : 4.5',
        "trigger --name shout --trigger-value hello": "HELLO",
        "trigger --name shout --trigger-file ./message --topic a": "FROM A FILE",
        "trigger --name shout --trigger-value void": "",
        "trigger --name shout --trigger-value bad": "ValueError: bad",
        "querystate --name shout -k k": '"stringValue": "x"',  # the second time
        'putstate --name shout -s {"key":"k","stringValue":"x"}': "",
        "start --name shout": "Started successfully",
        "stop --name shout --instance-id 0": "Stopped successfully",
        "restart --name shout": "Restarted successfully",
        "upload --source-file ./shout.py --path public/x/shout.py": "Uploaded successfully",
        "download --name shout --destination-file ./code": "Downloaded successfully",
        "download --path public/x/shout.py --destination-file ./upload": "Downloaded successfully",
        "available-functions": "",
        "reload": "",
        "create --py http://x/y.py --classname y --inputs a --name y": "packages of a URL are not fetched",
        "delete --name shout": "Deleted successfully",
    }
    of_workers = {
        "get-cluster": '"workerId" : "w2"',
        "get-cluster-leader": '"workerId" : "w1"',
        "get-function-assignments": "w1    [public/default/shout:0, public/default/shout:1]",
        "rebalance": "Rebalance command sent successfully",
        "function-stats": '"name" : "public/default/shout:1"',
        "monitoring-metrics": "[ ]",
    }
    wanted = {f"functions {command}": text for command, text in expected.items()}
    wanted |= {f"functions-worker {command}": text for command, text in of_workers.items()}
    assert wanted.keys() == said.keys()
    assert {command: said[command] for command, text in wanted.items() if text not in said[command]} == {}
    silent = [command for command, text in wanted.items() if not text]
    assert [said[command] for command in silent] == [""] * len(silent)
