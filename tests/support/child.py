"""`kop serve` in a process of its own, to be killed, drained, starved and measured."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.waiting import SECONDS


def free_port() -> int:
    """A port that nobody has now, nor takes by chance while its gateway is down.

    The kernel gives outgoing connections ports from 32768 on. A client that calls a dead gateway there may even get
    that port as its own, and be connected to itself.
    """
    while True:
        port = _random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(100):
        first = free_port()
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first
    raise AssertionError("no free ports in a row")


_random = random.SystemRandom()
"""Tests seed the usual one alike in all processes."""


class Child:
    """A gateway that can be started again on the same port and store."""

    def __init__(
        self, directory: Path, *, files: int | None = None, store: Sequence[str] = (), http: str = "", **settings: str
    ) -> None:
        """`store`: the options that name it; an embedded one in `directory` where there are none."""
        self.directory = directory
        self._store = list(store) or ["--store", f"sqlite:{directory}/kop.db"]
        self.port = free_port()
        self.http = http
        self.process: subprocess.Popen[bytes] | None = None
        self._files = files
        self._settings = {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "2",
        } | {name.replace("_", "."): value for name, value in settings.items()}

    @property
    def address(self) -> str:
        """Bootstrap address."""
        return f"127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> None:
        """Start, and wait until it takes connections."""
        listen = [] if "listeners" in self._settings else ["--listen", self.address]
        arguments = [sys.executable, "-m", "kop.cli.main", "serve", *listen, "--http", self.http, *self._store]
        for name, value in self._settings.items():
            arguments += ["--set", f"{name}={value}"]

        if self._files is not None:
            arguments = ["sh", "-c", f'ulimit -n {self._files}; exec "$@"', "sh", *arguments]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                arguments,
                env={name: value for name, value in os.environ.items() if not name.startswith("KOP_")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Until it takes connections."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process is not None
                assert self.process.poll() is None, f"kop serve ended:\n{self.log}"
                assert time.monotonic() < end, f"kop serve did not come up:\n{self.log}"
                time.sleep(0.02)  # asked again and again until it listens

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)
            self.process = None

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(signum)

    def wait(self, timeout: float = SECONDS) -> int:
        """The exit code."""
        assert self.process is not None
        code = self.process.wait(timeout)
        self.process = None
        return code

    @property
    def log(self) -> str:
        """All that it has written."""
        return (self.directory / "log").read_text(errors="replace")

    def busy(self) -> float:
        """Seconds of CPU time that its event loop's thread has had."""
        assert self.process is not None
        pid = self.process.pid
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        """How many files and sockets it has open."""
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self, line: str = "VmRSS") -> int:
        """Resident bytes now; `VmHWM`: the most so far."""
        assert self.process is not None
        for row in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if row.startswith(line + ":"):
                return int(row.split()[1]) * 1024
        raise LookupError(line)


@contextmanager
def child(directory: Path, *, files: int | None = None, **settings: str) -> Iterator[Child]:
    """A running gateway that is killed at the end."""
    process = Child(directory, files=files, **settings)
    try:
        process.start()
        yield process
    except BaseException as error:
        error.add_note(f"kop serve said:\n{process.log[-4000:]}")
        raise
    finally:
        process.kill()
