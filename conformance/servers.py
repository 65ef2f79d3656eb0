"""Servers that the harness starts itself and stops again: a `kop serve` of this checkout, an Apache Kafka.

Must not know: the suites.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent

# What makes waiting short: the cases about retention, compaction and first rebalances would pass without, later.
SETTINGS = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
}


class StartFailed(Exception):
    """The server did not come up; the text says why."""


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_port()
        try:
            for port in range(first + 1, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first


class Kop:
    """`kop serve` of a checkout (this one) on a free port with a store of its own, as a context manager: HOST:PORT.

    `folder` keeps its log; without one it has a folder that goes with it. A server that was killed starts again on the
    port that it had. `settings` are what it is told by `--set`. Workers have ports of their own behind the one of each
    listener.
    """

    def __init__(
        self, folder: Path | None = None, *, checkout: Path = HERE.parent, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self._checkout = checkout
        self._settings = settings
        self._kept = folder is not None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="kop-conformance-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.workers = 1
        self.more_settings: Mapping[str, str] = {}
        """What it is told beside `settings` at its next start."""

    @property
    def log(self) -> Path:
        return self._folder / "serve.log"

    def warnings(self, most: int = 15) -> list[str]:
        """The latest lines of its log that warn, cut to a terminal's width."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [f"  {line[:200]}" for line in lines if re.search(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ", line)][-most:]

    @property
    def pid(self) -> int:
        """The server's process, for the benchmark."""
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        """The command `kop` of the checkout."""
        beside = self._checkout / ".venv" / "bin" / "kop"
        if beside.exists():
            return [str(beside)]
        if self._checkout != HERE.parent:
            raise StartFailed(f"there is no {beside}: install that checkout (make -C {self._checkout} .venv/bin/kop)")
        command = shutil.which("kop")
        return [command] if command else [sys.executable, "-m", "kop.cli.main"]

    def _store(self) -> list[str]:
        return ["--store", f"sqlite:{self._folder / 'kop.db'}"]

    def __enter__(self) -> str:
        try:
            return self.start()
        except StartFailed:
            self.__exit__()
            raise

    def start(self, seconds: float = 60) -> str:
        """Start it, and wait until it listens. StartFailed."""
        self.address = self.address or f"127.0.0.1:{free_ports(self.ports)}"
        settings = {**self._settings, **self.more_settings}
        listen = [] if "listeners" in settings else ["--listen", self.address]
        command = [*self.command(), "serve", *listen, "--http", "", *self._store(), "--workers", str(self.workers)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        # The variables of the suites are none of the server's, which refuses a KOP_ that it does not know.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KOP_SPARK_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._checkout,
                env=environment,
                start_new_session=True,
            )
        host, port = self.address.split(":")
        awaited = [int(port) + number for number in range(self.ports)]
        end = time.monotonic() + seconds
        while True:
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                tail = self.log.read_text(errors="replace").splitlines()[-15:]
                raise StartFailed("kop serve did not come up:\n  " + "\n  ".join(tail))
            try:
                while awaited:
                    socket.create_connection((host, awaited[-1]), 1).close()
                    awaited.pop()
                return self.address
            except OSError:
                time.sleep(0.1)

    @property
    def ports(self) -> int:
        """How many ports a listener takes: a worker has one of its own."""
        return 1 if self.workers == 1 else 1 + self.workers

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL, workers, too."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """End it by SIGTERM; what it keeps stays."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                print("kop serve did not end within 15 s of SIGTERM", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        self.stop()
        if not self._kept and not os.environ.get("KEEP_LOGS"):
            shutil.rmtree(self._folder, ignore_errors=True)


class Pulsar:
    """The Apache Pulsar of KOP_TEST_PULSAR=pulsar://...,http://..., else one of pulsar_server.sh: both URLs."""

    def __init__(self, **environment: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pulsar-conformance-"))
        ours = {"DIR": str(self._folder / "pulsar"), "OWNER": str(os.getpid())}  # it does not outlive us
        self._environment = os.environ | environment | ours

    def _call(self, what: str) -> subprocess.CompletedProcess[str]:
        script = str(HERE / "pulsar_server.sh")
        return subprocess.run([script, what], env=self._environment, stdout=subprocess.PIPE, text=True, check=False)

    def __enter__(self) -> tuple[str, str]:
        urls = os.environ.get("KOP_TEST_PULSAR", "")
        if not urls:
            done = self._call("start")
            if done.returncode:
                self.__exit__()
                raise StartFailed("no Apache Pulsar could be started (see above)")
            urls = done.stdout.strip().splitlines()[-1]
        service, _, admin = urls.partition(",")
        return service, admin

    def restart(self) -> None:
        """SIGKILL and start again, with its data and its ports: one that was made with KEEP="1". StartFailed."""
        self._call("kill")
        if self._call("start").returncode:
            raise StartFailed("the Apache Pulsar that was killed did not start again (see above)")

    def copy_log(self, folder: Path) -> None:
        """The broker's log, as `pulsar.log` of `folder`, where the broker is one that was started here."""
        if self.own:
            shutil.copy(self._log_path, folder / "pulsar.log")

    def log(self) -> str:
        """The broker's log until now; empty if the broker was not started here."""
        return self._log_path.read_text(errors="replace") if self.own else ""

    @property
    def _log_path(self) -> Path:
        return self._folder / "pulsar" / "server.log"

    @property
    def own(self) -> bool:
        """Whether it is one that was started here."""
        return (self._folder / "pulsar").exists()

    def __exit__(self, *_: object) -> None:
        if self.own:
            self._call("kill")  # its data goes with the folder: nothing is to be closed
        shutil.rmtree(self._folder, ignore_errors=True)


class KopOverPulsar(Kop):
    """As `Kop`, over the Apache Pulsar of `urls`, else over a `Pulsar` of its own, in a namespace that nobody has."""

    def __init__(
        self,
        urls: tuple[str, str] | None = None,
        namespace: str = "",
        cluster: str = "",
        *,
        folder: Path | None = None,
        checkout: Path = HERE.parent,
        settings: Mapping[str, str] = SETTINGS,
        token: str = "",
    ) -> None:
        """`token`: a superuser's, of a Pulsar that asks for tokens."""
        super().__init__(folder, checkout=checkout, settings=settings)
        self._token = token
        self._urls = urls
        self._namespace = namespace
        self._cluster = cluster
        self._pulsar = None if urls else Pulsar()

    def _store(self) -> list[str]:
        assert self._urls is not None
        service, admin = self._urls
        if not self._namespace:
            self._namespace = f"public/conformance-{secrets.token_hex(4)}"
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            url = f"{admin}/admin/v2/namespaces/{self._namespace}"
            request = urllib.request.Request(url, headers=headers, method="PUT")
            urllib.request.urlopen(request, timeout=30).close()
        command = ["--store", service, "--admin-url", admin, "--cluster", self._cluster or f"{self._namespace}-kop"]
        if self._token:
            command += ["--set", f"kop.pulsar.auth=token:{self._token}"]
        return [*command, "--set", f"kop.pulsar.namespace={self._namespace}"]

    @property
    def behind(self) -> str:
        """The admin URL of its Pulsar, its namespace there, and the service URL, with commas between; it has to run."""
        assert self._urls is not None
        return f"{self._urls[1]},{self._namespace},{self._urls[0]}"

    def __enter__(self) -> str:
        if self._pulsar is not None:
            try:
                self._urls = self._pulsar.__enter__()
            except StartFailed:
                self.__exit__()
                raise
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            if self._pulsar is not None:
                self._pulsar.__exit__()


class Kafka:
    """The Apache Kafka of kafka_server.sh, as a context manager: HOST:PORT.

    `folder` keeps its log and its data, which it has again when it is started again, on the port that it had.
    """

    def __init__(self, folder: Path | None = None, **environment: str) -> None:
        self._kept = folder is not None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="kafka-conformance-"))
        self._environment = os.environ | environment | {"KAFKA_DIR": str(self._folder), "KEEP": str(int(self._kept))}
        self.address = ""

    @property
    def log(self) -> Path:
        return self._folder / "server.log"

    @property
    def pid(self) -> int:
        """The server's process, for the benchmark."""
        return int((self._folder / "pid").read_text())

    @property
    def running(self) -> bool:
        """Whether it was started and not ended since."""
        return (self._folder / "pid").exists()

    def _call(self, what: str) -> subprocess.CompletedProcess[str]:
        environment = dict(self._environment)
        if self.address:
            environment["KAFKA_PORT"] = self.address.rpartition(":")[2]
        script = str(HERE / "kafka_server.sh")
        return subprocess.run([script, what], env=environment, stdout=subprocess.PIPE, text=True, check=False)

    def start(self) -> str:
        """Start it, and wait until it listens. StartFailed."""
        done = self._call("start")
        if done.returncode:
            raise StartFailed("Apache Kafka did not come up (see above)")
        self.address = done.stdout.split()[-1]
        return self.address

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._call("kill")

    def stop(self) -> None:
        """End it by SIGTERM."""
        self._call("stop")

    def __enter__(self) -> str:
        try:
            return self.start()
        except StartFailed:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
        if not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)
