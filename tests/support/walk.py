"""The commands of a page, run as a new user runs them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support.child import free_port
from support.waiting import SECONDS

ROOT = Path(__file__).parents[2]


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

    def run(self, block: str) -> subprocess.CompletedProcess[str]:
        """Run a block whose commands all end."""
        return subprocess.run(
            ["bash", "-uc", block],
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3 * SECONDS,
            check=False,
        )

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
