"""A broker that answers is told from a dead or stopped one, and from something else that listens at its address."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from support.gateway import gateway, run

from kop.cluster.liveness import answers
from kop.storage.base import LiveBroker


def test_a_gateway_that_serves_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            host, port = serving.listeners[0]
            assert await answers(LiveBroker(1, host, port), 10)

    run(main())


def test_one_that_is_dead_stopped_or_something_else_does_not() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # connections are accepted, nobody reads
            stopped = listener.getsockname()[1]
            assert not await answers(LiveBroker(1, "127.0.0.1", stopped), 0.1)
        assert not await answers(LiveBroker(1, "127.0.0.1", stopped))
        assert not await answers(LiveBroker(1, "no.such.host.invalid", 9092))

        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(other, "127.0.0.1", 0)
        assert not await answers(LiveBroker(1, "127.0.0.1", server.sockets[0].getsockname()[1]))
        server.close()

    run(main())
