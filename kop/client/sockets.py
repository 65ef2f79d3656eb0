"""Sockets for kafka-python's clients that read much at a time.

Owns: these sockets, and how kafka-python comes to make them. Must not know: what is read.

kafka-python 3.0 reads 4 KiB at a time. Each read gives up the lock of Python's interpreter, so a thread that reads an
answer of megabytes waits a thousand times for the threads that work on the answer before it. With TLS it is still
4 KiB: Python wraps the socket in one of its own class.
"""

from __future__ import annotations

import socket
from typing import Any, ClassVar, Final, cast

from kafka.net.inet import KafkaNetSocket

SCHEME: Final = "kop-wide-reads"
WIDE_READS: Final = f"{SCHEME}://"
"""The `proxy_url` by which kafka-python, without a proxy, makes these sockets."""
READ_BYTES: Final = 64 << 10
"""The bytes that are read at a time."""


class WideSocket(socket.socket):
    """A socket that may read more than it is asked for: 64 KiB at a time."""

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return what is there to read, up to 64 KiB or `size` if that is more."""
        return super().recv(max(size, READ_BYTES), flags)


class WideReads(KafkaNetSocket):  # type: ignore[misc]
    """Makes the sockets of kafka-python's connections that go through no proxy."""

    SCHEMES: ClassVar = (SCHEME,)

    async def sock_connect(self, net: Any, sock: socket.socket, *given: Any, **more: Any) -> socket.socket:
        """Connect a socket, and return it; close it if that fails or is given up, which kafka-python leaves out."""
        try:
            return cast(socket.socket, await super().sock_connect(net, sock, *given, **more))
        except BaseException:
            sock.close()
            raise

    def socket(self, *given: Any) -> socket.socket:
        """Return a new socket; `given` are family, type and protocol, as for `socket.socket`."""
        return WideSocket(*given)
