"""The first minutes that README.md promises, run word for word: only addresses differ."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.child import free_port
from support.pulsar import Pulsar
from support.waiting import SECONDS

from kop.pulsar_client.admin import Admin

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(section: str, language: str = "sh") -> list[str]:
    """The blocks of a section of README."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", README, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Walk:
    """Runs shell blocks as a new user: a home with nothing in it, in a folder that looks like a clone."""

    def __init__(self, home: Path) -> None:
        (home / "Makefile").symlink_to(ROOT / "Makefile")
        (home / ".venv").symlink_to(sys.prefix)
        (home / "kop" / "_native").mkdir(parents=True)
        for source in ("pyproject.toml", "kop/_native/Cargo.lock"):  # old ones: what is installed stays as it is
            (home / source).touch()
            os.utime(home / source, (0, 0))
        self.home = home
        self.kafka, self.http = (f"127.0.0.1:{free_port()}" for _ in range(2))
        ours = ("KOP_", "PYTHON", "XDG_", "MAKE", "VIRTUAL_ENV")
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environ["KOP_GROUP_INITIAL_REBALANCE_DELAY_MS"] = "0"  # spares each walk three seconds
        self.environ |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    @contextlib.contextmanager
    def running(self, block: str, until: str, **environ: str) -> Iterator[str]:
        """Run a block whose last command goes on, wait for a text, end it as Ctrl-C does; what it said so far."""
        with subprocess.Popen(
            ["bash", "-euc", block],
            cwd=self.home,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                yield self._read(process, until)
                os.killpg(process.pid, signal.SIGINT)
                assert process.wait(SECONDS) in {0, -signal.SIGINT}, "make ends by the signal itself"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    @staticmethod
    def _read(process: subprocess.Popen[bytes], until: str) -> str:
        assert process.stdout is not None
        said = ""
        end = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while until not in said:
                assert ready.select(max(end - time.monotonic(), 0)), said
                data = os.read(process.stdout.fileno(), 65536)
                assert data, f"it ended: {said}"
                said += data.decode()
        return said


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    return Walk(tmp_path)


def test_sixty_seconds_on_sqlite(walk: Walk) -> None:
    assert "\n`make run` keeps all records in an SQLite database. In another terminal:\n" in README
    other_ports = 'make run ARGS="--listen 127.0.0.1:9093 --http 127.0.0.1:7093"'
    assert f"`{other_ports}`" in README
    (block,) = blocks("Sixty seconds on SQLite")
    serve = other_ports.replace("127.0.0.1:9093", walk.kafka).replace("127.0.0.1:7093", walk.http)
    with (
        walk.running(serve, "kop check --bootstrap"),
        walk.running(block, '{"id": 1}\n', KOP_BOOTSTRAP=walk.kafka) as said,
    ):
        assert f"Everything works: all 14 steps against {walk.kafka}." in said
        assert "orders: created\n" in said
    assert (walk.home / ".local/share/kop/kop.db").exists()


def test_sixty_seconds_over_pulsar(walk: Walk, pulsar: Pulsar) -> None:
    section = "Sixty seconds over Apache Pulsar"
    (settings,) = blocks(section, "")
    in_force = asyncio.run(_settings(pulsar))
    for line in settings.splitlines():
        name, _, value = line.partition("=")
        assert in_force[name].strip("[]").replace(", ", ",") == value
    (block,) = blocks(section)
    assert {"http://pulsar:8080", "pulsar://pulsar:6650"} == set(re.findall(r"\w+://[\w:]+", block))
    block = block.replace("http://pulsar:8080", pulsar.admin_url).replace("pulsar://pulsar:6650", pulsar.service_url)
    ours = {
        "KOP_LISTEN": walk.kafka,
        "KOP_HTTP": walk.http,
        # Beside other tests.
        "KOP_PULSAR_NAMESPACE": pulsar.namespace,
        "KOP_PULSAR_METADATA_NAMESPACE": f"{pulsar.namespace}-kop",
    }
    (clients,) = blocks("Sixty seconds on SQLite")
    with (
        walk.running(block, "kop check --bootstrap", **ours) as served,
        walk.running(clients, '{"id": 1}\n', KOP_BOOTSTRAP=walk.kafka) as said,
    ):
        assert re.search(r"^ok +entry index ", served, re.MULTILINE)
        assert f"all 14 steps against {walk.kafka}." in said


async def _settings(pulsar: Pulsar) -> dict[str, str]:
    async with Admin(pulsar.admin_url) as admin:
        return await admin.broker_config()
