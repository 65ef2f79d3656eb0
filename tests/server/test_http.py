"""The HTTP server: a table of pages, which may be any."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from support.gateway import run
from support.waiting import until

from kop.server import http
from kop.server.http import health_page, serve_http


async def _status(request: web.BaseRequest) -> web.Response:
    return web.Response(status=203, text=f"asked for {request.path}")


def test_each_route_of_the_table_is_served_and_no_other() -> None:
    async def main() -> None:
        runner, port = await serve_http("127.0.0.1", 0, {"/status": _status, "/healthz": health_page})
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                for path, status, text in (("/status", 203, "asked for /status"), ("/healthz", 200, "ok\n")):
                    async with session.get(path) as answer:
                        assert (answer.status, await answer.text()) == (status, text)
                for method, path, status in (("GET", "/metrics", 404), ("POST", "/status", 405)):
                    async with session.request(method, path) as answer:
                        assert answer.status == status
        finally:
            await runner.cleanup()

    run(main())


async def _large(request: web.BaseRequest) -> web.Response:
    return web.Response(body=bytes(32 * 1024 * 1024))


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    """Return true if a connection is closed, before it has given anything."""
    try:
        return not await asyncio.wait_for(reader.read(1), 5)
    except ConnectionError:
        return True
    except TimeoutError:
        return False


class Clients:
    """Clients of an HTTP port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def ask(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(request)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # transports end in the next turns


@asynccontextmanager
async def _clients(page: http.Handler = health_page) -> AsyncIterator[Clients]:
    """Serve a page as /healthz, and give its clients."""
    runner, port = await serve_http("127.0.0.1", 0, {"/healthz": page})
    clients = Clients(port)
    try:
        yield clients
    finally:
        await clients.close()
        await runner.cleanup()


HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def test_connections_are_few_and_end_without_a_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "PATIENCE_SECONDS", 1.0)

    async def main() -> None:
        async with _clients() as clients:
            halves = [await clients.ask(HALF) for _ in range(32)]
            for _ in range(3):
                reader, _ = await clients.ask(WHOLE)
                assert await _is_closed(reader)
            began = time.monotonic()
            assert [await _is_closed(reader) for reader, _ in halves] == [True] * 32
            assert time.monotonic() - began < 4
            reader, _ = await clients.ask(WHOLE)
            assert await reader.readuntil(b"ok\n")

    run(main())
    assert caplog.text.count("closing a connection of the HTTP port: it has 32, and further ones are closed") == 1
    assert caplog.text.count("a client has sent no request within 1 s") == 1


def test_connections_end_that_are_idle_behind_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_SECONDS", 0.5)

    async def main() -> None:
        async with _clients() as clients:
            for more in (b"", HALF):
                reader, writer = await clients.ask(WHOLE)
                assert await reader.readuntil(b"ok\n")
                writer.write(more)
                assert await _is_closed(reader)

    run(main())


def test_connections_end_whose_clients_do_not_read_and_slow_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_SECONDS", 0.5)

    async def main() -> None:
        async with _clients(_large) as clients:
            unread, _ = await clients.ask(WHOLE)
            slow, _ = await clients.ask(WHOLE)
            left = 32 * 1024 * 1024
            for _ in range(10):
                left -= len(await slow.readexactly(2 * 1024 * 1024))
                await asyncio.sleep(0.2)  # a slow client
            await slow.readexactly(left)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await unread.readexactly(32 * 1024 * 1024)

    run(main())


def _files() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_a_flood_of_half_requests_takes_few_files_and_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with _clients() as clients:
            before = _files()
            for _ in range(200):
                await clients.ask(HALF)
            await until(lambda: _files() <= before + 200 + 32)

    run(main())
    assert [record.name for record in caplog.records] == ["kop.server.http"]
