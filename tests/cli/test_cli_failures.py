"""A server that is not there or is none: one line that says what to do, exit code 1, no traceback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest
from cli.cli_support import Invoke, environment

from kop.cli import common
from kop.testing.broker import Broker

EVERY = [
    ["topics", "list"],
    ["topics", "create", "t"],
    ["topics", "describe"],
    ["topics", "delete", "t"],
    ["topics", "alter", "t", "-p", "2"],
    ["topics", "delete-records", "t", "--all"],
    ["brokers"],
    ["groups", "list"],
    ["groups", "describe", "--all"],
    ["groups", "describe", "g"],
    ["groups", "delete", "g"],
    ["groups", "reset-offsets", "g", "--all-topics", "--to-latest"],
    ["transactions", "list"],
    ["transactions", "describe", "t"],
    ["transactions", "abort", "t"],
    ["produce", "t"],
    ["consume", "t"],
]


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("arguments", EVERY, ids=" ".join)
def test_nobody_listens(invoke: Invoke, closed: str, arguments: list[str]) -> None:
    result = invoke(*arguments, "--bootstrap", closed)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"kop: cannot connect to {closed} (connection refused); start a server with: kop serve\n"


def test_check_stops_at_the_first_step(invoke: Invoke, closed: str) -> None:
    result = invoke("check", "--bootstrap", closed)
    assert result.exit_code == 1
    assert "FAIL  connect" in result.stdout
    assert result.stderr == "kop: 1 of 14 steps failed: connect; 13 not tried\n"


def test_bootstrap_comes_from_the_environment(invoke: Invoke, closed: str) -> None:
    result = invoke("topics", "list", env={"KOP_BOOTSTRAP": closed})
    assert f"cannot connect to {closed}" in result.stderr


def test_unknown_host_has_no_hint_about_a_server_here(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", fails)
    result = invoke("topics", "list", "--bootstrap", "broker.invalid:9092")
    assert result.stderr == "kop: cannot connect to broker.invalid:9092 (no such host)\n"


def test_several_addresses_are_all_named(invoke: Invoke, closed: str) -> None:
    result = invoke("topics", "list", "--bootstrap", f"{closed},[::1]:1")
    assert result.stderr.startswith(f"kop: cannot connect to {closed} (connection refused), [::1]:1 (")


@contextlib.contextmanager
def closing_all() -> Iterator[str]:
    """The address of an HTTP server, say: it takes each connection and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()
        listener.settimeout(0.1)

        def close_all() -> None:
            while not stop.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    pass

        thread = threading.Thread(target=close_all)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


def impatient(address: str, *arguments: str) -> subprocess.Popen[str]:
    """A command that gives a server one second to answer its first requests."""
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from kop.cli import common, main; common.BOOTSTRAP_MS = 1000; main.main()"),
            *(*arguments, "--bootstrap", address),
        ],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_something_else_listens() -> None:
    with closing_all() as address:
        process = impatient(address, "topics", "list")
        _, said = process.communicate()
    assert process.returncode == 1
    assert said == (
        f"kop: {address} accepts connections but does not answer as a Kafka server (1 s); "
        "if it asks for TLS or a login, give a --client-config\n"
    )


def test_produce_waits_for_a_server_that_does_not_answer_yet() -> None:
    with closing_all() as address:
        process = impatient(address, "produce", "t")
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write("a\n")
            process.stdin.close()
            process.stdin = None
            said = process.stderr.readline()
        except BaseException:
            process.kill()
            process.communicate()
            raise
    with Broker(listen=address) as broker:
        _, rest = process.communicate()
        sent = [record.value for record in broker.records("t")]
    assert said.startswith("the connection to the server failed (")
    assert said.endswith("; not connected yet, for 120 s at most (Ctrl-C ends)\n")
    assert (process.returncode, sent) == (0, [b"a"]), rest


def test_our_own_mistake_is_called_one(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(common, "reach", fails)
    result = invoke("topics", "list")
    assert result.exit_code == 1
    assert result.stderr == "kop: ZeroDivisionError: oh; this is a bug of kop, --debug shows where\n"
    with pytest.raises(ZeroDivisionError):
        invoke("topics", "list", "--debug", catch_exceptions=False)
