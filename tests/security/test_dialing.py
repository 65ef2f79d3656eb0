"""Logins at another broker: what it answers that is no answer to a login."""

from __future__ import annotations

import asyncio
import struct

import pytest
from support.gateway import run

from kop.security.dialing import Dialer, broker_login

LINE = 'PlainLoginModule required username="bob" password="builder";'
OK = struct.pack(">hi", 0, 0)
"""The body of an answer to SaslHandshake: no error, no mechanisms."""


@pytest.mark.parametrize(
    "body",
    [b"\0\0", b"\0\0\xff", b"\0\0\xff\xff", b"\0\0\xff\xff\0\0\0", b"\0\0\0\5abc"],
    ids=["code", "cut text", "no token", "cut token", "text beyond the end"],
)
def test_an_answer_that_is_too_short_is_an_error_of_the_connection(body: bytes) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for rest in (OK, body):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(struct.pack(">ii", 4 + len(rest), 1) + rest)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        dialer = Dialer(None, broker_login("PLAIN", LINE), lambda: "nonce")
        async with server:
            with pytest.raises(ConnectionError, match="login as bob: an answer of the other broker is too short"):
                await dialer.open(*server.sockets[0].getsockname())

    run(main())
