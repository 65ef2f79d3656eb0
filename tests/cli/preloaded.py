"""A process that has loaded the commands of `kop`, and becomes one of them, once for each command that a test runs.

Most of what a short command costs is loading its modules. This process loads them once; each command then runs in a
fork of it, with arguments, environment, stdin, stdout and stderr of its own, and ends as every Python process does.
Owns: the fork and how the two sides talk: `Preloaded` is the side of the test, `serve` the side of the process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

_CODE = struct.Struct(">i")


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class Preloaded:
    """The process, from its start to `close`. It runs one command at a time."""

    def __init__(self, repository: Path) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": str(repository)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], given: bytes, limit: float) -> Outcome:
        """Run `kop` with these arguments and `given` as stdin. TimeoutError after `limit` seconds."""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            stdin.write(given)
            stdin.seek(0)
            command = json.dumps([list(arguments), dict(environment)]).encode()
            self._socket.settimeout(limit)
            socket.send_fds(self._socket, [command], [stdin.fileno(), stdout.fileno(), stderr.fileno()])
            (code,) = _CODE.unpack(self._socket.recv(_CODE.size))
            return Outcome(code, _all_of(stdout), _all_of(stderr))

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve(control: socket.socket) -> None:
    """Fork for each command that `control` asks for, and answer with its exit code. Returns in the forks, to end."""
    cli = importlib.import_module("kop.cli")
    for module in pkgutil.iter_modules(cli.__path__, "kop.cli."):
        if module.name not in {"kop.cli.serve", "kop.cli.spark"}:
            importlib.import_module(module.name)
    importlib.import_module("kafka")
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the memory of all modules
    while request := socket.recv_fds(control, 1 << 20, 3):
        command, files, _, _ = request
        if not command:
            return
        child = os.fork()
        if child == 0:
            control.close()
            for standard, file in enumerate(files):
                os.dup2(file, standard)
                os.close(file)
            arguments, environment = json.loads(command)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["kop", *arguments]
            importlib.import_module("kop.cli.main").main()
            return
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        control.send(_CODE.pack(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
