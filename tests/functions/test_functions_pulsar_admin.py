"""Pulsar's own `pulsar-admin functions` against a worker: each of its commands, in one process of Java."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from functions.worker_kit import working

from kop.testing import Broker

COMMANDS = """
functions create --py {folder}/words.py --classname words.Words --inputs a --output b --name words \
--max-message-retries 0 --dead-letter-topic dead --user-config {{"v":11}}
functions trigger --name words --trigger-value hello
functions trigger --name words --trigger-file {folder}/message --topic a
functions trigger --name words --trigger-value void
functions trigger --name words --trigger-value bad
functions status --name words
functions status --name words --instance-id 0
functions stats --name words
functions stats --name words --instance-id 0
functions querystate --name words -k hello
functions putstate --name words -s {{"key":"k","stringValue":"x"}}
functions querystate --name words -k k
functions update --name words --timeout-ms 5000
functions update --name words --py {folder}/words.py --classname words.Words --inputs a
functions get --name words
functions list
functions stop --name words --instance-id 0
functions start --name words
functions restart --name words
functions upload --source-file {folder}/words.py --path public/x/words.py
functions download --name words --destination-file {folder}/code
functions download --path public/x/words.py --destination-file {folder}/upload
functions available-functions
functions reload
functions-worker get-cluster
functions-worker get-cluster-leader
functions-worker get-function-assignments
functions-worker rebalance
functions-worker function-stats
functions-worker monitoring-metrics
functions create --py http://x/y.py --classname y --inputs a --name y
functions create --py {folder}/broken.py --classname broken --inputs a --name y
functions delete --name words
functions status --name words
"""
WORDS = """
from pulsar import Function

class Words(Function):
    def process(self, input, context):
        if input == "bad":
            raise ValueError("a bad word")
        context.incr_counter(input, 1)
        return None if input == "void" else f"{input}:{context.get_user_config_value('v')}"
"""


@pytest.fixture
def said(pulsar_home: Path, tmp_path: Path) -> dict[str, str]:
    """What each command has printed."""
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "broken.py").write_text("def process(x)\n")
    (tmp_path / "message").write_text("from a file")
    commands = COMMANDS.replace("\\\n", "").format(folder=tmp_path).strip().splitlines()
    (tmp_path / "commands").write_text("".join(f"admin {command}\n" for command in commands))
    with Broker() as broker, working(broker.bootstrap, tmp_path / "cache") as url:
        broker.create_topic("a", partitions=2)
        (tmp_path / "client.conf").write_text(f"webServiceUrl={url}\nbrokerServiceUrl=pulsar://127.0.0.1:1\n")
        shell = [str(pulsar_home / "bin" / "pulsar-shell"), "--no-progress"]
        output = subprocess.run(
            [*shell, "-c", str(tmp_path / "client.conf"), "-f", str(tmp_path / "commands")],
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
    assert (tmp_path / "code").read_text() == (tmp_path / "upload").read_text() == WORDS
    return {command.replace(str(tmp_path), "."): text for command, text in told.items()}


@pytest.mark.pulsar
def test_every_command_of_pulsar_admin(said: dict[str, str]) -> None:
    wanted = {
        "trigger --name words --trigger-value hello": "hello:11",
        "trigger --name words --trigger-file ./message --topic a": "from a file:11",
        "trigger --name words --trigger-value void": "",
        "trigger --name words --trigger-value bad": "ValueError: a bad word",
        "status --name words": "Function public/default/words doesn't exist",
        "status --name words --instance-id 0": '"exceptionString" : "ValueError: a bad word (at a-',
        "stats --name words": '"userExceptionsTotal" : 1',
        "stats --name words --instance-id 0": '"processedSuccessfullyTotal" : 3',
        "querystate --name words -k hello": '"numberValue": 1',
        'putstate --name words -s {"key":"k","stringValue":"x"}': "",
        "querystate --name words -k k": '"stringValue": "x"',
        "update --name words --timeout-ms 5000": "Updated successfully",
        "update --name words --py ./words.py --classname words.Words --inputs a": "Updated successfully",
        "get --name words": '"timeoutMs": 5000',
        "list": "words",
        "stop --name words --instance-id 0": "Stopped successfully",
        "start --name words": "Started successfully",
        "restart --name words": "Restarted successfully",
        "upload --source-file ./words.py --path public/x/words.py": "Uploaded successfully",
        "download --name words --destination-file ./code": "Downloaded successfully",
        "download --path public/x/words.py --destination-file ./upload": "Downloaded successfully",
        "available-functions": "",
        "reload": "",
        "create --py http://x/y.py --classname y --inputs a --name y": "packages of a URL are not fetched",
        "create --py ./broken.py --classname broken --inputs a --name y": "broken.py, line 1: SyntaxError",
        "delete --name words": "Deleted successfully",
        "get-cluster": '"workerId" : "w1"',
        "get-cluster-leader": '"workerId" : "w1"',
        "get-function-assignments": "w1    [public/default/words:0]",
        "rebalance": "Rebalance command sent successfully",
        "function-stats": '"name" : "public/default/words:0"',
        "monitoring-metrics": "[ ]",
    }
    ((create, created),) = [each for each in said.items() if "--user-config" in each[0]]
    assert created == "Created successfully"
    texts = {command.partition(" ")[2]: text for command, text in said.items() if command != create}
    assert wanted.keys() == texts.keys()
    assert {command: texts[command] for command, text in wanted.items() if text not in texts[command]} == {}
    silent = [command for command, text in wanted.items() if not text]
    assert [texts[command] for command in silent] == [""] * len(silent)
    got = json.loads(texts["get --name words"])
    assert (got["output"], got["deadLetterTopic"], got["maxMessageRetries"]) == ("b", "dead", 0), "an update keeps them"
    assert got["userConfig"] == {"v": 11}
