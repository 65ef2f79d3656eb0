"""A worker and the commands that ask it, from `create` to `delete`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.cli_support import Invoke, Kop
from cli.preloaded import Outcome
from support.child import free_port
from support.waiting import SECONDS, wait_until

WORDS = """
    from pulsar import Function

    class Words(Function):
        def process(self, input, context):
            if input == "bad":
                raise ValueError("a bad word")
            context.incr_counter(input, 1)
            return f"{input}:{context.get_counter(input)}"
"""


class Workers:
    """Runs `kop functions COMMAND` against a worker."""

    def __init__(self, kop: Kop, process: subprocess.Popen[bytes], url: str) -> None:
        self._kop = kop
        self.process = process
        self.url = url

    def outcome(self, *arguments: str) -> Outcome:
        """Run."""
        return self._kop("functions", *arguments, "--admin-url", self.url)

    def ok(self, *arguments: str) -> str:
        """Run, insist on exit code 0, return what it printed."""
        outcome = self.outcome(*arguments)
        assert outcome.code == 0, outcome
        return outcome.out

    def refused(self, *arguments: str) -> str:
        """Run, insist on exit code 1, return what it said."""
        outcome = self.outcome(*arguments)
        assert outcome.code == 1, outcome
        return outcome.err


@pytest.fixture
def workers(kop: Kop, tmp_path: Path) -> Iterator[Workers]:
    port = free_port()
    process = kop.start(
        *("functions", "worker", "--listen", f"127.0.0.1:{port}", "--folder", str(tmp_path / "cache")),
        *("--worker-id", f"w{port}"),
    )
    try:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        said = b""

        def begun() -> bool:
            nonlocal said
            assert process.poll() is None, said
            said += process.stderr.read() or b""  # type: ignore[union-attr]
            return b"Ctrl-C ends it" in said

        wait_until(begun, "a worker")
        yield Workers(kop, process, f"http://127.0.0.1:{port}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, rest


def test_from_create_to_delete(workers: Workers, kop: Kop, tmp_path: Path) -> None:
    py = tmp_path / "words.py"
    py.write_text(textwrap.dedent(WORDS))
    created = workers.ok(
        *("create", "--py", str(py), "--classname", "words.Words", "--name", "words", "--inputs", "words-in"),
        *("--output", "words-out", "--max-message-retries", "0", "--dead-letter-topic", "words-dead", "--json"),
    )
    revision = json.loads(created)["revision"]
    assert workers.ok("trigger", "words", "--trigger-value", "hello") == "hello:1\n"
    kop.ok("produce", "words-in", given=b"hello\n")
    assert kop.ok("consume", "words-out", "--from-beginning", "-n", "2", "--read-committed") == "hello:1\nhello:2\n"
    assert "ValueError: a bad word" in workers.refused("trigger", "words", "--trigger-value", "bad")
    assert workers.ok("querystate", "words", "-k", "hello") == "2\n"
    workers.ok("putstate", "words", "-s", '{"key": "hello", "numberValue": 10}')
    assert workers.ok("trigger", "words", "--trigger-value", "hello") == "hello:11\n"

    (status,) = json.loads(workers.ok("status", "words", "--json"))
    assert (status["running"], status["processed"], status["exceptions"]) == (True, 3, 1)
    assert [each["text"] for each in status["latest_exceptions"]] == ["ValueError: a bad word (at words-in-0 offset 2)"]
    (stats,) = json.loads(workers.ok("stats", "words", "--json"))
    assert stats["user_exceptions"] == 1

    py.write_text("def process(text: str) -> str:\n    return text.upper()\n")
    workers.ok("update", "--name", "words", "--py", str(py), "--classname", "words", "--revision", str(revision))
    assert "was changed meanwhile" in workers.refused("delete", "words", "--revision", str(revision))
    # An instance that is being ended for the new code answers so.
    wait_until(lambda: workers.outcome("trigger", "words", "--trigger-value", "hello").out == "HELLO\n")
    py.write_text("def process(text: str\n")
    assert "words.py, line 1: SyntaxError" in workers.refused("update", "--name", "words", "--py", str(py))

    workers.ok("stop", "words")
    wait_until(lambda: not json.loads(workers.ok("status", "words", "--json"))[0]["running"])
    workers.ok("delete", "words")
    assert json.loads(workers.ok("list", "--json")) == []
    outcomes = [(row["kind"], row["status"]) for row in json.loads(workers.ok("history", "words", "--json"))]
    assert outcomes == [("create", 200), ("update", 200), ("delete", 409), ("stop", 200), ("delete", 200)]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--listen", "0.0.0.0:0"], 1, "--token-file"),
        (["--listen", "here"], 2, "--listen"),
        (["--advertise", "0.0.0.0:6750"], 2, "no address that others reach"),
        (["--worker-id", "a b"], 1, "give the worker another id"),
        (["--scheduler", "no.such"], 1, "a scheduler that can be imported"),
        (["--topic-namespace", "x"], 2, "--topic-namespace"),
    ],
)
def test_a_worker_that_cannot_start_says_why(kop: Kop, tmp_path: Path, flags: list[str], code: int, said: str) -> None:
    outcome = kop("functions", "worker", "--folder", str(tmp_path), *flags)
    assert (outcome.code, outcome.out, said in outcome.err) == (code, "", True), outcome


def test_an_address_that_is_taken_is_said_as_by_serve(kop: Kop, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = kop("functions", "worker", "--listen", address, "--folder", str(tmp_path))
    assert outcome.code == 1
    assert f"kop: {address} is in use by another program; choose another with --listen\n" in outcome.err


def test_help_names_where_code_may_come_from(invoke: Invoke) -> None:
    assert "may run code" in " ".join(invoke("functions", "worker", "--help").output.split())


def test_a_second_signal_ends_a_worker_at_once(kop: Kop, tmp_path: Path) -> None:
    """Its server takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
        flags = ("--listen", "127.0.0.1:0", "--folder", str(tmp_path), "--bootstrap", bootstrap)
        process = kop.start("functions", "worker", *flags)
        try:
            server.settimeout(SECONDS)
            asked = False
            while not asked:
                connection, _ = server.accept()
                asked = bool(connection.recv(1))

            def ended() -> bool:
                process.send_signal(signal.SIGTERM)
                return process.poll() is not None

            wait_until(ended)
        finally:
            process.kill()
            _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, b"ends at once" in said) == (128 + signal.SIGTERM, True), said
