"""Workers of functions as processes, and calls of their REST.

Owns: how a worker is started and ended, what its REST is asked.
Must not know: what is done when, and what is right.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from conformance.servers import HERE, StartFailed

START_SECONDS = 60.0
ANSWER_SECONDS = 40.0
STOP_SECONDS = 30.0
MARK = "CONFORMANCE_WORKER"
"""The variable by which processes of a worker are known."""


class RestAnswer(NamedTuple):
    """`status` is 0 if there was no answer; `reason` says why, or why not."""

    status: int
    body: bytes
    revision: int | None
    reason: str


class WorkerProcess:
    """`kop functions worker`, which can be ended and started again on its port."""

    def __init__(self, name: str, bootstrap: str, port: int, folder: Path) -> None:
        self.name = name
        self.port = port
        self.log = folder / f"{name}.log"
        self.ended: list[str] = []
        """The marks of those that were ended, whose processes have to be gone."""
        self._bootstrap = bootstrap
        self._folder = folder / name
        self.revived = 0
        """The number of times that it was started again after it had ended by itself."""
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._wanted = False
        self._turn = threading.Lock()

    @property
    def pid(self) -> int:
        """The worker's own process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Start it, and return its address."""
        with self._turn:
            return self._start()

    def _start(self) -> str:
        self._wanted = True
        self._mark = f"{self.name}-{secrets.token_hex(4)}"
        command = [sys.executable, "-m", "kop.cli.main", "functions", "worker", "--bootstrap", self._bootstrap]
        command += ["--worker-id", self.name, "--listen", f"127.0.0.1:{self.port}", "--folder", str(self._folder)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=HERE.parent,
                env=os.environ | {"PYTHONFAULTHANDLER": "1", MARK: self._mark},
                start_new_session=True,
            )
        return f"127.0.0.1:{self.port}"

    def revive(self) -> None:
        """Start it again if it ended by itself, as a service manager does (a server that stays away for a minute)."""
        with self._turn:
            if self._wanted and not self.running:
                self.revived += 1
                self._start()

    def await_ready(self) -> None:
        """Wait until it says that it works. StartFailed."""
        self.revive()
        until = time.monotonic() + START_SECONDS
        while (answer := self.ask("GET", "/readyz", seconds=5)).status != 200:
            if not self.running or time.monotonic() > until:
                tail = self.log.read_text(errors="replace").splitlines()[-10:]
                raise StartFailed(f"{self.name} does not get ready ({answer.reason}):\n  " + "\n  ".join(tail))
            time.sleep(0.2)  # until it is asked again

    def kill(self) -> None:
        """End it by SIGKILL."""
        with self._turn:
            self._wanted = False
        if self._process is not None:
            self.ended.append(self._mark)
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it by SIGTERM. OSError if it does not."""
        with self._turn:
            self._wanted = False
        if self._process is None or not self.running:
            return
        self.ended.append(self._mark)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait()
            raise OSError(f"{self.name} did not end within {STOP_SECONDS:g} s of SIGTERM") from None

    def orphans(self) -> list[int]:
        """Return the processes that those have left which were ended."""
        marks = {f"{MARK}={mark}".encode() for mark in self.ended}
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marks & _environment(pid)]

    # -- its REST

    def ask(
        self,
        method: str,
        path: str,
        *,
        form: Mapping[str, tuple[str, bytes]] | None = None,
        who: str = "conformance",
        revision: int | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> RestAnswer:
        """Ask for something. `form`: file name, which may be empty, and value of each part."""
        headers = {"User-Agent": who}
        body = b"" if method in ("POST", "PUT") else None
        if form is not None:
            boundary = secrets.token_hex(16)
            headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
            body = (
                b"".join(_part(boundary, name, *part) for name, part in form.items()) + f"--{boundary}--\r\n".encode()
            )
        if revision is not None:
            headers["If-Match"] = f'"{revision}"'
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            tag = answer.headers.get("ETag", "").strip('"')
            return RestAnswer(answer.status, content, int(tag) if tag.isdigit() else None, _reason(content))
        except (OSError, http.client.HTTPException) as error:
            return RestAnswer(0, b"", None, repr(error))
        finally:
            connection.close()

    def leader(self) -> str:
        """Return the name of the worker that leads, as this one knows it; empty if it knows none."""
        answer = self.ask("GET", "/admin/v2/worker/cluster/leader", seconds=3)
        return str(json.loads(answer.body)["workerId"]) if answer.status == 200 else ""

    def revision(self, fqfn: str) -> tuple[int, int | None]:
        """Return the status of the answer, and the revision of a function, None if there is none."""
        answer = self.ask("GET", f"/admin/v3/functions/{fqfn}", seconds=10)
        return answer.status, answer.revision


def config_part(config: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the part of a form that is a FunctionConfig."""
    return "", json.dumps(config).encode()


def _part(boundary: str, name: str, file_name: str, value: bytes) -> bytes:
    file = f'; filename="{file_name}"' if file_name else ""
    return f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["reason"])
    except (ValueError, KeyError, TypeError):
        return ""


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
