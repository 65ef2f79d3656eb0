"""`kop` as a user runs it: in a process of its own, against a `kop serve` of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.cli_support import REPOSITORY, Invoke, Kop, environment
from cli.preloaded import Preloaded
from click.testing import CliRunner, Result
from support.child import free_port
from support.waiting import SECONDS

from kop.cli.main import cli


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Run a command that talks to no server, in this process."""
    for name in list(os.environ):
        if name.startswith("KOP_") and not name.startswith("KOP_TEST_"):  # those are the run's own
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def run(*arguments: str, **settings: Any) -> Result:
        return CliRunner().invoke(cli, arguments, prog_name="kop", **settings)

    return run


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a `kop serve` whose groups do not wait for more members."""
    directory = tmp_path_factory.mktemp("serve")
    port = free_port()
    log = (directory / "log").open("wb+")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "kop.cli.main", "serve", "--listen", f"127.0.0.1:{port}", "--http", ""),
            *("--store", f"sqlite:{directory}/kop.db", "--set", "group.initial.rebalance.delay.ms=0"),
            *("--set", "offsets.topic.num.partitions=2"),
        ],
        env=environment(),
        stdout=log,
        stderr=log,
    )
    try:
        end = time.monotonic() + SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    pytest.fail(f"kop serve did not come up:\n{log.read().decode()}")
                time.sleep(0.1)  # asked again and again until it listens
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(SECONDS)
        log.close()
    assert code == 0, "SIGTERM ends kop serve with exit code 0"


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    process = Preloaded(REPOSITORY)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture
def kop(server: str, preloaded: Preloaded) -> Kop:
    return Kop(server, preloaded)
