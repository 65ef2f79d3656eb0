"""The peer of a connection: its name for the log, its address, and the look if it has gone.

Owns: that. Must not know: requests.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from fcntl import ioctl
from termios import TIOCOUTQ

from kop.handlers.api import ConnectionInfo

_SHOWN = 100
"""The number of characters of a client's text that a log line shows."""
_TCP_INFO = getattr(socket, "TCP_INFO", -1)
"""The socket option TCP_INFO; -1 if the system lacks it, so that getsockopt fails with OSError."""
_ESTABLISHED = 1


def plain_host(host: str) -> str:
    """Return an IPv4 address as such if a dual-stack socket shows it mapped into IPv6; any other address unchanged."""
    return host.removeprefix("::ffff:") if "." in host else host


def describe(info: ConnectionInfo) -> str:
    """Return the text by which a log line names the peer of a connection."""
    software = f" ({info.software_name} {info.software_version})"[:_SHOWN] if info.software_name else ""
    tenant = "" if info.space.is_home else f" of {info.space.name}"
    return f"{info.client_host}{software}{tenant}"


def has_closed(transport: asyncio.Transport) -> bool:
    """Return true if the peer has closed or reset, on a socket that is not read and so does not say it by itself; false
    if the system does not tell.
    """
    sock = transport.get_extra_info("socket")
    try:
        return sock is not None and bool(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED)
    except OSError:
        return False


def in_system(transport: asyncio.Transport) -> int:
    """Return the number of written bytes that the system has not sent yet; 0 if the system does not tell.

    A socket takes more only once a good part of its buffer is free, megabytes of it: until then nothing else shows that
    the peer reads.
    """
    sock = transport.get_extra_info("socket")
    try:
        return 0 if sock is None else int.from_bytes(ioctl(sock.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0
