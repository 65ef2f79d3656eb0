"""A door by which a suite has the server killed and started again: a line `kill` or `start`, answered by `done`.

Owns: the socket, its address in the environment of suites (`CONFORMANCE_DOOR`), one deed at a time.
Must not know: what a server is beyond these two deeds, or who asks.
"""

from __future__ import annotations

import os
import socketserver
import threading
from typing import Protocol

from conformance.servers import StartFailed

VARIABLE = "CONFORMANCE_DOOR"


class Server(Protocol):
    """What can be killed, and started again with its data on its port."""

    def kill(self) -> None: ...
    def start(self) -> str: ...


class Door:
    """A context manager; while it is open the environment of suites names it, and no door that was opened before."""

    def __init__(self, server: Server) -> None:
        lock = threading.Lock()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    with lock:
                        self.wfile.write(_deed(server, line.decode().strip()).encode() + b"\n")

        self._listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._listener.daemon_threads = True
        self._before: str | None = None

    def __enter__(self) -> str:
        self._before = os.environ.get(VARIABLE)
        host, port = self._listener.server_address[:2]
        os.environ[VARIABLE] = f"{host!s}:{port}"
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()
        return os.environ[VARIABLE]

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before
        self._listener.shutdown()
        self._listener.server_close()


def _deed(server: Server, what: str) -> str:
    try:
        if what == "kill":
            server.kill()
        elif what == "start":
            server.start()
        else:
            return f"no such deed: {what!r}"
    except StartFailed as error:
        return " ".join(str(error).split())
    return "done"
