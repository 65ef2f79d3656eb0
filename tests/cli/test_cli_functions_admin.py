"""`kop functions` against a worker's REST over a service of the test."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cli.cli_support import Invoke
from click.testing import Result
from functions.rest_kit import STATS, FakeService, Rest, serving, status_of
from support.child import free_port

TOKEN = "0123456789abcdef"
SHOUT = "def process(text: str) -> str:\n    return text.upper()\n"


class Admin:
    """Runs `kop functions COMMAND` against a worker."""

    def __init__(self, invoke: Invoke, rest: Rest, folder: Path) -> None:
        self._invoke = invoke
        self.service = rest.service
        self.url = rest.url
        self.py = str(folder / "shout.py")
        Path(self.py).write_text(SHOUT)

    def __call__(self, *arguments: str) -> Result:
        return self._invoke("functions", *arguments, "--admin-url", self.url)

    def ok(self, *arguments: str) -> str:
        """Run, insist on exit code 0, return what it printed."""
        outcome = self(*arguments)
        assert outcome.exit_code == 0, outcome.output
        return outcome.stdout

    def refused(self, *arguments: str) -> str:
        """Run, insist on exit code 1, return what it said."""
        outcome = self(*arguments)
        assert (outcome.exit_code, outcome.stdout) == (1, ""), outcome.output
        return outcome.stderr

    def create(self, *flags: str) -> str:
        """Create `shout`."""
        return self.ok(
            "create", "--py", self.py, "--classname", "shout", "--inputs", "lines", "--output", "loud", *flags
        )


@pytest.fixture
def admin(invoke: Invoke, tmp_path: Path) -> Iterator[Admin]:
    with serving(FakeService()) as rest:
        yield Admin(invoke, rest, tmp_path)


@pytest.fixture
def created(admin: Admin) -> Admin:
    """With a function of two instances, one of which does not run."""
    admin.create("--parallelism", "2")
    admin.service.statuses["public/default/shout", 0] = status_of()
    admin.service.statuses["public/default/shout", 1] = status_of(
        running=False,
        error="the call took longer than 500 ms",
        at=["lines", 0, 17],
        next_start_ms=1_700_000_060_000,
        stderr=["Killed"],
        stats=None,
    )
    return admin


def table(text: str) -> list[list[str]]:
    """The rows of a table by their columns, which begin where a word of the head begins or end where it ends."""
    return [line.split() for line in text.splitlines()]


def test_a_package_that_is_too_large_is_not_sent(admin: Admin, tmp_path: Path) -> None:
    large = tmp_path / "large.zip"
    with open(large, "wb") as file:
        file.truncate((128 << 20) + 1)
    assert "has more than 128 MiB: install" in admin.refused("update", "--name", "shout", "--py", str(large))


def test_from_create_to_delete(admin: Admin) -> None:
    assert admin.create() == "created public/default/shout, revision 101\n"
    assert admin.service.packages["public/default/shout"].data == SHOUT.encode()
    assert admin.service.definitions["public/default/shout"].config == {
        "tenant": "public",
        "namespace": "default",
        "name": "shout",
        "className": "shout",
        "inputs": ["lines"],
        "output": "loud",
        "py": "shout.py",
    }
    assert admin.ok("update", "--name", "shout", "--parallelism", "2") == (
        "updated public/default/shout, revision 102\n"
    )
    assert admin.service.sent[-1]["config"] == {"parallelism": 2}
    assert json.loads(admin.ok("update", "--name", "shout", "--py", admin.py, "--json")) == {
        "function": "public/default/shout",
        "revision": 103,
        "note": None,
    }
    assert admin.service.sent[-1]["config"] == {"py": "shout.py"}
    got = admin.ok("get", "shout")
    assert got.startswith("# public/default/shout, revision 103\n")
    assert yaml.safe_load(got) == json.loads(admin.ok("get", "--fqfn", "public/default/shout", "--json"))["config"]
    assert table(admin.ok("list")) == [["FUNCTION", "RUNNING", "INSTANCES"], ["shout", "0", "2"]]
    assert json.loads(admin.ok("list", "--tenant", "other", "--json")) == []
    assert admin("list", "--tenant", "other").output == "there are no functions in other/default\n"
    assert admin.ok("delete", "--name", "shout", "--tenant", "public") == "deleted public/default/shout\n"
    assert "Function public/default/shout doesn't exist" in admin.refused("get", "shout")


def test_what_is_wrong_with_a_definition_is_said_before_anything_is_sent(admin: Admin) -> None:
    outcome = admin("create", "--py", admin.py, "--classname", "shout", "--parallelism", "0", "--auto-ack", "false")
    assert outcome.exit_code == 2
    assert "--parallelism" in outcome.stderr
    assert "--inputs" in outcome.stderr
    for given, said in (
        (["update", "--name", "shout"], "nothing to change"),
        (["update", "--parallelism", "2"], "--name"),
        (["update", "--name", "shout", "--py", "no.py"], "no.py: there is no such file"),
        (["get"], "name a function"),
        (["get", "a", "--name", "b"], "not a and b"),
        (["get", "a/b"], "must be NAME or TENANT/NAMESPACE/NAME"),
        (["get", "a/b/c", "--tenant", "t"], "leave --tenant"),
        (["trigger", "shout"], "--trigger-value or --trigger-file"),
        (["putstate", "shout", "-s", "{"], "--state must be JSON"),
        (["download", "--destination-file", "x"], "name a function, or give --path"),
    ):
        outcome = admin(*given)
        assert (outcome.exit_code, said in outcome.stderr) == (2, True), (given, outcome.stderr)
    assert admin.service.sent == []


def test_history_shows_who_won_and_who_lost(created: Admin) -> None:
    created.ok("update", "--name", "shout", "--parallelism", "3", "--revision", "101")
    assert "is of revision 102" in created.refused(
        "update", "--name", "shout", "--parallelism", "4", "--revision", "101"
    )
    head, *rows = created.ok("history", "shout").splitlines()
    assert head.split() == ["TIME", "CHANGE", "OUTCOME", "REVISION", "BY", "REASON"]
    assert [row.split()[1:4] for row in rows] == [
        ["create", "won", "101"],
        ["update", "won", "102"],
        ["update", "lost", "-"],
    ]
    assert all(row.index("kop/") == head.index("BY") for row in rows), "columns line up"
    assert [row["status"] for row in json.loads(created.ok("history", "shout", "--json"))] == [200, 200, 409]
    assert [row["status"] for row in json.loads(created.ok("history", "shout", "--json", "--limit", "1"))] == [409]


def test_a_loop_is_noted_when_it_is_made_and_told_by_the_status(created: Admin) -> None:
    flags = ("--py", created.py, "--classname", "shout", "--name", "back", "--inputs", "loud", "--output", "lines")
    outcome = created("create", *flags)
    text = (
        "what public/default/back writes comes back to it: public/default/back writes lines, public/default/shout "
        "writes loud, which public/default/back reads"
    )
    assert (outcome.exit_code, text in outcome.stderr) == (0, True), outcome.output
    assert text in created.ok("status", "back")
    (row,) = json.loads(created.ok("status", "back", "--json"))
    assert row["loop"]["text"] == text


def test_status_says_what_at_which_record_and_since_when(created: Admin) -> None:
    text = created.ok("status", "shout")
    head, first, second, empty, *troubles = text.splitlines()
    assert head.split() == [
        *("INSTANCE", "RUNNING", "WORKER", "SINCE", "RECEIVED", "PROCESSED", "EXCEPTIONS", "LAG", "RESTARTS")
    ]
    assert first.split() == ["0", "yes", "w1", "2023-11-14T22:13:20Z", "7", "5", "2", "4", "1"]
    assert second.split()[:2] == ["1", "no"]
    assert (empty, troubles) == (
        "",
        [
            "instance 0:",
            "  2023-11-14T22:13:20Z ValueError: no",
            "",
            "instance 1:",
            "  the call took longer than 500 ms (at lines-0 offset 17)",
            "  next start at 2023-11-14T22:14:20Z",
            "  stderr: Killed",
        ],
    )
    (single,) = json.loads(created.ok("status", "shout", "--instance-id", "1", "--json"))
    assert (single["instance"], single["running"], single["at"]) == (
        1,
        False,
        {"topic": "lines", "partition": 0, "offset": 17},
    )
    assert single["since_ms"] == 1_700_000_000_000
    assert single["next_start_ms"] == 1_700_000_060_000
    assert "has no instance 5" in created.refused("status", "shout", "--instance-id", "5")


def test_status_shows_the_record_of_a_call_that_hangs_and_the_lag_of_what_is_down(created: Admin) -> None:
    statuses = created.service.statuses
    statuses["public/default/shout", 0] = status_of(at=["lines", 0, 5], stderr=["waiting for the bank"])
    statuses["public/default/shout", 1] = status_of(running=False, error="x", lag={"lines-1": 3}, stats=None)
    _, first, second, *troubles = created.ok("status", "shout").splitlines()
    assert (first.split()[7], second.split()[7]) == ("4", "3")
    assert troubles[2:4] == [
        "  calls lines-0 offset 5; the last call ended 2023-11-14T22:13:20Z",
        "  stderr: waiting for the bank",
    ]


def test_stats(created: Admin) -> None:
    text = created.ok("stats", "shout").splitlines()
    assert text[1].split() == ["0", "7", "5", "2", "0", "2", "3", "2", "3", "2023-11-14T22:13:20Z"]
    assert text[2].split() == ["1", "0", "0", "0", "0", "-", "0", "0", "-", "-"]
    assert text[4:] == ["INSTANCE  METRIC  AVERAGE", "       0  size        4.5"]
    (single,) = json.loads(created.ok("stats", "shout", "--instance-id", "0", "--json"))
    assert (single["received"], single["user_metrics"]) == (STATS["received"], {"size": 4.5})


@pytest.mark.parametrize(("kind", "done"), [("start", "started"), ("stop", "stopped"), ("restart", "restarted")])
def test_start_stop_restart(created: Admin, kind: str, done: str) -> None:
    assert created.ok(kind, "shout") == f"{done} public/default/shout\n"
    assert created.ok(kind, "shout", "--instance-id", "1") == f"{done} public/default/shout, instance 1\n"
    assert [(row["kind"], row["instance"]) for row in created.service.sent[1:]] == [(kind, None), (kind, 1)]


def test_trigger_prints_the_output_or_fails_with_the_exception(created: Admin, tmp_path: Path) -> None:
    created.service.answers = {
        "void": {"output": None, "error": None},
        "bad": {"output": None, "error": "ValueError: bad"},
        "raw": {"output": "/w==", "error": None},
    }
    file = tmp_path / "message"
    file.write_bytes(b"from a file")

    def trigger(*arguments: str) -> Result:
        return created("trigger", "shout", *arguments)

    assert trigger("--trigger-value", "hello").stdout == "HELLO\n"
    assert trigger("--trigger-file", str(file), "--topic", "lines", "--key", "k", "--json").stdout == (
        '{\n  "output": "FROM A FILE"\n}\n'
    )
    assert created.service.asked[-1][2]["topic"] == "lines"
    void = trigger("--trigger-value", "void")
    assert (void.exit_code, void.stdout, "no output" in void.stderr) == (0, "", True)
    assert json.loads(trigger("--trigger-value", "void", "--json").stdout) == {"output": None}
    assert json.loads(trigger("--trigger-value", "raw", "--json").stdout) == {"output_base64": "/w=="}
    assert "ValueError: bad" in created.refused("trigger", "shout", "--trigger-value", "bad")


def test_state(created: Admin) -> None:
    assert "key 'a/b' doesn't exist" in created.refused("querystate", "shout", "-k", "a/b")
    assert created.ok("putstate", "shout", "-s", '{"key": "a/b", "stringValue": "x"}') == (
        "set a/b of public/default/shout\n"
    )
    assert created.ok("querystate", "shout", "-k", "a/b") == "x\n"
    created.ok("putstate", "--name", "shout", "--state", '{"key": "n", "numberValue": 0}')
    assert created.ok("querystate", "shout", "--key", "n") == "0\n"
    assert json.loads(created.ok("querystate", "shout", "--key", "n", "--json"))["numberValue"] == 0


def test_files(created: Admin, tmp_path: Path) -> None:
    target = tmp_path / "down"
    created.ok("download", "shout", "--destination-file", str(target))
    assert target.read_text() == SHOUT
    created.ok("upload", "--source-file", created.py, "--path", "public/x & y.py")
    created.ok("download", "--path", "public/x & y.py", "--destination-file", str(target))
    assert target.read_text() == SHOUT
    assert "doesn't exist" in created.refused("download", "--path", "no", "--destination-file", str(target))


def test_workers(created: Admin) -> None:
    assert table(created.ok("workers")) == [
        ["WORKER", "ADDRESS", "LEADS", "DRAINED", "INSTANCES"],
        ["w1", "127.0.0.1:6750", "leader", "2"],
        ["w2", "10.0.0.2:6750", "0"],
    ]
    first, second = json.loads(created.ok("workers", "--rebalance", "--drain", "w2", "--json"))
    assert (first["drained"], second["drained"]) == (False, True)
    assert table(created.ok("workers"))[2] == ["w2", "10.0.0.2:6750", "drained", "0"]
    assert "no other worker is left" in created.refused("workers", "--drain", "w1")
    assert not json.loads(created.ok("workers", "--undrain", "w2", "--json"))[1]["drained"]
    created.service.moved.pop()
    assert first["instances"] == ["public/default/shout:0", "public/default/shout:1"]
    assert created.service.moved == ["rebalance", "w2"]
    assert "there is no worker w3" in created.refused("workers", "--drain", "w3")


def test_without_a_worker_the_command_is_named_that_starts_one(invoke: Invoke) -> None:
    outcome = invoke("functions", "list", "--admin-url", f"http://127.0.0.1:{free_port()}")
    assert outcome.exit_code == 1
    assert "start one with: kop functions worker" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
    assert invoke("functions", "list", "--admin-url", "ftp://x").exit_code == 2


def test_another_server_than_a_worker(invoke: Invoke) -> None:
    """A Kafka server, a web server that knows nothing of functions."""
    for answer, said in (
        (b"\x00\x00\x00", "does not answer as a worker"),
        (b"HTTP/1.1 404 No\r\n\r\nno", "answers 404"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve(server: socket.socket = server, answer: bytes = answer) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            outcome = invoke("functions", "list", "--admin-url", f"http://127.0.0.1:{server.getsockname()[1]}")
            thread.join()
        assert (outcome.exit_code, said in outcome.stderr) == (1, True), outcome.stderr


def test_a_token_is_read_from_a_file(invoke: Invoke, tmp_path: Path) -> None:
    good, bad, broken = tmp_path / "good", tmp_path / "bad", tmp_path / "broken"
    good.write_text(f"{TOKEN}\n")
    bad.write_text("another")
    broken.write_text("a\nb")
    with serving(FakeService(), TOKEN) as rest:
        codes = []
        for file in (good, bad, broken):
            outcome = invoke("functions", "list", "--admin-url", rest.url, "--token-file", str(file))
            codes.append(outcome.exit_code)
        none = invoke("functions", "list", "--admin-url", rest.url)
    assert codes == [0, 1, 2]
    assert (none.exit_code, "--token-file" in none.stderr) == (1, True)
