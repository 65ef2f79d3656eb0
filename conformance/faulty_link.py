"""A TCP link to a server on this machine, that is cut, stalls, is slow, or passes crumbs when a test says so.

Owns: the two connections of each client, and what is let through.
Must not know: what the bytes say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Link:
    """A TCP link to a server that can be cut, stalled, slowed down, or made to pass crumbs."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._flows = asyncio.Event()
        self._flows.set()
        self.crumbs = 0
        """Pass so many bytes at a time; 0 for as they come."""
        self.cut_after: int | None = None
        """Cut every connection once so many more bytes have come from the server."""
        self.delay = 0.0
        """Seconds that all of a connection waits for, again and again as it comes."""
        self.refuse = False
        self.connections = 0
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"pulsar://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        while self._pairs:  # noqa: ASYNC110 - their tasks end by themselves
            await asyncio.sleep(0.001)  # they have no event

    def cut(self) -> None:
        """Reset every connection, whatever is on its way."""
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()
        self._flows.set()

    def stall(self) -> None:
        """Let nothing through; connections stay."""
        self._flows.clear()

    def go_on(self) -> None:
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the server is down
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        if self.refuse:  # looked at only now, so that `cut` misses no connection that was being made
            for side in pair:
                side.transport.abort()
            return
        self.connections += 1
        self._pairs.append(pair)
        try:
            await asyncio.gather(self._pass(reader, far_writer, False), self._pass(far_reader, writer, True))
        finally:
            for side in pair:
                side.transport.abort()
            self._pairs.remove(pair)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
        try:
            while data := await reader.read(self.crumbs or 65536):
                await self._flows.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)  # what it is for
                if back and self.cut_after is not None:
                    data, self.cut_after = data[: self.cut_after], self.cut_after - len(data)
                    if self.cut_after <= 0:
                        self.cut_after = None
                        writer.write(data)
                        await writer.drain()
                        self.cut()
                        return
                writer.write(data)
                await writer.drain()
        except (ConnectionError, RuntimeError, asyncio.CancelledError):  # uvloop: the handler is closed
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def link(port: int) -> AsyncIterator[Link]:
    """A link to a port of this machine, for the length of a block."""
    made = Link(port)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
