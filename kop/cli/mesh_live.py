"""`kop mesh draw --live`: a page with the picture of a mesh, its rates and lags, for a browser on this machine.

Owns: the page, who may ask for it, how often the server is asked.
Must not know: what a picture looks like.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from kop import clock
from kop.address import Address, is_loopback
from kop.cli.common import CliError, CliUsageError, StopSignals, note

_PORT: Final = re.compile(r":\d+$")
LOOK_SECONDS: Final = 1.0
"""The seconds between two questions to the server at least, however many people look."""
PAGE: Final = """\
<!doctype html>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<p id="told"></p>
<div id="picture"></div>
<script>
async function look() {
  try {
    const answer = await fetch("mesh.svg");
    const text = await answer.text();
    if (answer.ok) document.getElementById("picture").innerHTML = text;
    document.getElementById("told").textContent = answer.ok ? answer.headers.get("Kop-State") : text;
  } catch (error) {
    document.getElementById("told").textContent = "kop mesh draw --live has ended";
  }
  setTimeout(look, 2000);
}
look();
</script>
"""
_POLICY: Final = "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


class Live:
    """The shown state of a mesh. `look` returns the state for people, the picture, and values; for any thread."""

    def __init__(self, name: str, look: Callable[[], tuple[str, str, Mapping[str, Any]]]) -> None:
        self.name = name
        self._look = look
        self._lock = threading.Lock()
        self._shown: tuple[str, str, Mapping[str, Any]] = "", "", {}
        self._due = float("-inf")

    def shown(self) -> tuple[str, str, Mapping[str, Any]]:
        """Return state, picture and values of the mesh, at most a second old; else they are asked for anew, by one
        thread at a time. Errors of that are raised, and the next call asks again.
        """
        with self._lock:
            if clock.monotonic() >= self._due:
                self._shown = self._look()
                self._due = clock.monotonic() + LOOK_SECONDS
            return self._shown


def live_server(live: Live, listen: Address) -> ThreadingHTTPServer:
    """Return the HTTP server of the page, which listens already and serves nothing yet. A usage error if other machines
    than this one could reach its address, or the address cannot be used.
    """
    if not is_loopback(listen.host):
        raise CliUsageError(f"--listen {listen}: the page is for this machine alone, as on 127.0.0.1:8080")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer a browser of this machine: the page, the picture or its values; 503 with the reason if the mesh's
            server cannot be asked. 403 if the Host header names another host than this machine.
            """
            host = _PORT.sub("", self.headers.get("Host", "")).strip("[]")
            if not is_loopback(host):  # a page of others that has its name point here
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", "ask by 127.0.0.1")
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html", PAGE % live.name)
            elif self.path in {"/mesh.svg", "/mesh.json"}:
                self._answer_mesh()
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there are /, /mesh.svg and /mesh.json")

        def _answer_mesh(self) -> None:
            try:
                state, picture, values = live.shown()
            except Exception as error:
                why = error.message if isinstance(error, CliError) else f"the server cannot be asked: {error}"
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", why)
                return
            if self.path == "/mesh.svg":
                self._answer(HTTPStatus.OK, "image/svg+xml", picture, state)
            else:
                self._answer(HTTPStatus.OK, "application/json", json.dumps(values, default=str), state)

        def _answer(self, status: HTTPStatus, kind: str, text: str, state: str = "") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("Cache-Control", "no-store")
            if state:
                self.send_header("Kop-State", state.encode("ascii", "backslashreplace").decode())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: each picture is a request."""

    try:
        server = ThreadingHTTPServer((listen.host, listen.port), Handler)
    except OSError as error:
        raise CliUsageError(f"--listen {listen}: {error.strerror}") from None
    server.daemon_threads = True
    return server


def serve(live: Live, listen: Address) -> None:
    """Serve the page, whose address is told on stderr, until SIGINT or SIGTERM; then close it and return."""
    server = live_server(live, listen)
    stop = StopSignals()
    threading.Thread(target=server.serve_forever, name="kop-mesh-live", daemon=True).start()
    note(f"{live.name} is at http://{Address(listen.host, server.server_address[1])}; Ctrl-C ends it")
    while not stop.came:
        threading.Event().wait(0.2)
    server.shutdown()
    server.server_close()
