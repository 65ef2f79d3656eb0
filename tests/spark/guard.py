"""What stands before a gateway where its clients come by TLS or have to log in: a proxy that does either, or both.

Owns: the end of TLS, and SaslHandshake and SaslAuthenticate with PLAIN (KIP-43, KIP-152). All else is passed on.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from threading import Thread

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse

HANDSHAKE, AUTHENTICATE, AUTHENTICATION_FAILED = 17, 36, 58


class Guard:
    """Listens from the beginning, at `address`, and serves from `guard` on: the gateway has to be told the address."""

    def __init__(self, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None) -> None:
        """`login`: the one user and password that are let in."""
        self._tls = tls
        self._login = login
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._socket]
        self._threads: list[Thread] = []
        self._behind = ("", 0)
        self.logins: list[str] = []
        """The users that were let in, one for each connection."""

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def guard(self, bootstrap: str) -> None:
        """Pass connections on to this gateway."""
        host, _, port = bootstrap.rpartition(":")
        self._behind = (host, int(port))
        self._run(self._accept)

    def close(self) -> None:
        """End every connection."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        def quietly() -> None:
            with contextlib.suppress(OSError):  # either side may end at any time
                work(*arguments)

        thread = Thread(target=quietly)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            client, _ = self._socket.accept()
            self._sockets.append(client)
            self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
                self._sockets.append(client)
            with socket.create_connection(self._behind) as gateway:
                self._sockets.append(gateway)
                if self._login is None or self._log_in(client, gateway, self._login):
                    self._run(_pass_on, gateway, client)
                    _pass_on(client, gateway)
        finally:
            client.close()

    def _log_in(self, client: socket.socket, gateway: socket.socket, login: tuple[str, str]) -> bool:
        """Answer until the client is let in; no request but ApiVersions is passed on before."""
        while True:
            request = _frame(client)
            api, version, correlation = struct.unpack_from(">hhi", request)
            if api == HANDSHAKE:
                made = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"], version=version)
            elif api == AUTHENTICATE:
                asked = SaslAuthenticateRequest.decode(request, version=version, header=True)
                _, user, password = bytes(asked.auth_bytes).decode().split("\0")
                right = (user, password) == login
                made = SaslAuthenticateResponse(
                    error_code=0 if right else AUTHENTICATION_FAILED,
                    error_message=None if right else "the password is not the right one",
                    auth_bytes=b"",
                    session_lifetime_ms=0,
                    version=version,
                )
            elif api == 18:
                gateway.sendall(struct.pack(">i", len(request)) + request)
                answer = _frame(gateway)
                client.sendall(struct.pack(">i", len(answer)) + answer)
                continue
            else:
                return False
            made.with_header(correlation_id=correlation)
            client.sendall(made.encode(header=True, framed=True))
            if api == AUTHENTICATE:
                if made.error_code:
                    client.recv(1)  # until the client has read the answer and closes
                    return False
                self.logins.append(user)
                return True


def _frame(peer: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(peer, 4))
    return _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(1 << 16):
        target.sendall(data)
    target.shutdown(socket.SHUT_RDWR)
