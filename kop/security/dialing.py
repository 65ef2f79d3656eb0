"""A connection to another broker, with TLS and a login if the listener between brokers asks for them.

Owns: the order of the steps on the side of the broker that calls.
Must not know: what is asked on the connection then.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kop.errors import ConfigError
from kop.security.jaas import parse_jaas
from kop.security.sasl.exchange import AuthenticationError
from kop.security.sasl.scram import HASHES, ScramLogin
from kop.security.tls import TlsContext

_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_HEADER: Final = struct.Struct(">ihhih")
"""Size, API, version, correlation id, length of the client id."""
_MODULES: Final = {"PLAIN": "PlainLoginModule", **dict.fromkeys(HASHES, "ScramLoginModule")}
"""The login modules of the mechanisms that brokers may use."""
_LARGEST_ANSWER: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """The name by which brokers log in at one another."""

    mechanism: str
    name: str
    password: str = field(repr=False)


def broker_login(mechanism: str, jaas: str) -> BrokerLogin:
    """Return the login in a JAAS line as Kafka has it, for brokers at one another. ConfigError if the line has no user
    and password, or is for another mechanism, or brokers cannot use the mechanism.
    """
    module = _MODULES.get(mechanism)
    if module is None:
        raise ConfigError([f"sasl.mechanism.inter.broker.protocol is {mechanism}; there are {', '.join(_MODULES)}"])
    setting = "sasl.jaas.config of the listener between brokers"
    try:
        line = parse_jaas(jaas)
    except ValueError as error:
        raise ConfigError([f"{setting}: {error}"]) from None
    name, password = line.options.get("username"), line.options.get("password")
    if line.name != module or not name or not password:
        name_of_class = f"org.apache.kafka.common.security.{module.partition('Login')[0].lower()}.{module}"
        raise ConfigError([f'{setting} has to be: {name_of_class} required username="..." password="...";'])
    return BrokerLogin(mechanism, name, password)


class Dialer:
    """Opens connections. `nonce` returns fresh text for each login."""

    def __init__(self, tls: TlsContext | None, login: BrokerLogin | None, nonce: Callable[[], str]) -> None:
        self.tls = tls
        """The context of its connections; None if they go without TLS."""
        self._login = login
        self._nonce = nonce

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return reader and writer of a connection, with TLS if that is to be spoken, that is not logged in: only
        ApiVersions is answered on it. OSError if the other side cannot be reached.
        """
        if self.tls is None:
            return await asyncio.open_connection(host, port)
        self.tls.look()
        return await asyncio.open_connection(host, port, ssl=self.tls.context)

    async def open(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return reader and writer of a connection that is logged in, if there is a login. OSError if the other side
        cannot be reached or refuses.
        """
        reader, writer = await self.connect(host, port)
        if self._login is not None:
            try:
                await self._log_in(self._login, reader, writer)
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer

    async def _log_in(self, login: BrokerLogin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            mechanism = login.mechanism.encode()
            body = struct.pack(">h", len(mechanism)) + mechanism
            answer = await _asked(reader, writer, _SASL_HANDSHAKE, body)
            if code := int.from_bytes(answer[:2], "big", signed=True):
                raise ConnectionError(f"the other broker refuses {login.mechanism} (error {code})")
            if login.mechanism == "PLAIN":
                await _authenticated(reader, writer, f"\0{login.name}\0{login.password}".encode())
                return
            scram = ScramLogin(login.mechanism, login.name, login.password, self._nonce())
            first = await _authenticated(reader, writer, scram.first())
            # The hash of the password takes milliseconds.
            final = await asyncio.to_thread(scram.final, first)
            scram.check(await _authenticated(reader, writer, final))
        except AuthenticationError as error:
            raise ConnectionError(f"login as {login.name}: {error}") from None
        except EOFError:
            raise ConnectionError(f"login as {login.name}: the other broker has closed the connection") from None
        except struct.error:
            raise ConnectionError(f"login as {login.name}: an answer of the other broker is too short") from None


async def _authenticated(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> bytes:
    answer = await _asked(reader, writer, _SASL_AUTHENTICATE, struct.pack(">i", len(token)) + token)
    code, length = struct.unpack_from(">hh", answer)
    if code:
        text = answer[4 : 4 + max(length, 0)].decode(errors="replace")
        raise AuthenticationError(f"the other broker refuses it (error {code}): {text}")
    begin = 4 + max(length, 0)
    (size,) = struct.unpack_from(">i", answer, begin)
    return answer[begin + 4 : begin + 4 + size]


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, api: int, body: bytes) -> bytes:
    """Send a request of version 1 with that body, and return the body of its answer. ConnectionError if the answer is
    larger than 64 KiB, or is none.
    """
    writer.write(_HEADER.pack(_HEADER.size - 4 + len(body), api, 1, 0, -1) + body)
    size = int.from_bytes(await reader.readexactly(4), "big")
    if not 6 <= size <= _LARGEST_ANSWER:
        raise ConnectionError(f"an answer of {size} bytes to a login")
    return (await reader.readexactly(size))[4:]
