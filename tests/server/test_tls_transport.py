"""TLS between a socket and a connection, without either: how records become bytes of the connection, how it ends."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import pytest
from support.certificates import self_signed

from kop import clock
from kop.server.tls import BUFFER_BYTES, TlsTransport


class Inner(asyncio.BufferedProtocol):
    """A connection with so much room at a time; `got` is each part that it was given, then "end"."""

    def __init__(self, room: int = BUFFER_BYTES) -> None:
        self.buffer = memoryview(bytearray(room))
        self.got: list[bytes | str] = []

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got.append(bytes(self.buffer[:nbytes]))

    def eof_received(self) -> bool:
        self.got.append("end")
        return False


class Socket(asyncio.Transport):
    """What goes to the client is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nor here."""


def contexts_of(files: tuple[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A context of a server, and of a client that trusts it."""
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(*files)
    return of_server, ssl.create_default_context(cafile=files[0])


class Pair:
    """A connection behind the handshake, and its client."""

    def __init__(
        self,
        files: tuple[str, str],
        inner: Inner,
        contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        """Shake hands by the server's and the client's context, those of a client without a certificate if none are
        given; the client resumes a session if one is given.
        """
        of_server, of_client = contexts or contexts_of(files)
        self.failures: list[str] = []
        self.inner, self.socket = inner, Socket()
        buffer = memoryview(bytearray(BUFFER_BYTES))
        loop = asyncio.get_running_loop()

        def failed(reason: str, _of_certificate: bool) -> None:
            self.failures.append(reason)

        self.tls = TlsTransport(of_server, inner, failed, loop, buffer, lambda _: None)
        self.tls.connection_made(self.socket)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = of_client.wrap_bio(self._in, self._out, server_hostname="localhost", session=session)
        for _ in range(3):
            try:
                self._client.do_handshake()
            except ssl.SSLWantReadError:
                pass  # the server's turn
            self.arrive(self._out.read())
            self._in.write(bytes(self.socket.sent))
            self.socket.sent.clear()

    @property
    def session(self) -> ssl.SSLSession | None:
        """The client's session."""
        return self._client.session

    @property
    def resumed(self) -> bool:
        """True if the client has resumed a session."""
        return bool(self._client.session_reused)

    def record(self, data: bytes) -> bytes:
        """A record of the client's."""
        self._client.write(data)
        return self._out.read()

    def end(self) -> bytes:
        """TLS's own end, by the client."""
        with pytest.raises(ssl.SSLWantReadError):
            self._client.unwrap()
        return self._out.read()

    def arrive(self, data: bytes) -> None:
        """Give what comes from the socket."""
        if data:
            self.tls.get_buffer(-1)[: len(data)] = data
            self.tls.buffer_updated(len(data))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return self_signed(tmp_path_factory.mktemp("tls"), "server", "DNS:localhost")


async def test_records_that_come_together_are_given_together(files: tuple[str, str]) -> None:
    pair = Pair(files, Inner())
    pair.arrive(b"".join(pair.record(b"%d" % number) for number in range(10)))
    assert pair.inner.got == [b"0123456789"]


async def test_a_record_in_pieces_is_given_once_it_is_whole(files: tuple[str, str]) -> None:
    pair = Pair(files, Inner())
    whole = pair.record(b"a") + pair.record(b"bc" * 1000) + pair.record(b"d")
    for at in range(0, len(whole), 700):
        pair.arrive(whole[at : at + 700])
    assert pair.inner.got == [b"a", b"bc" * 1000 + b"d"]


async def test_what_does_not_fit_is_given_in_parts(files: tuple[str, str]) -> None:
    pair = Pair(files, Inner(room=1000))
    pair.arrive(pair.record(b"x" * 2500) + pair.record(b"y"))
    assert pair.inner.got == [b"x" * 1000, b"x" * 1000, b"x" * 500 + b"y"]


async def test_the_end_comes_behind_what_was_sent(files: tuple[str, str]) -> None:
    pair = Pair(files, Inner())
    pair.arrive(pair.record(b"a") + pair.record(b"b") + pair.end())
    assert pair.inner.got == [b"ab", "end"]


@pytest.mark.parametrize("told", [True, False], ids=["by TLS", "cut off"])
async def test_the_end_comes_behind_what_was_not_read_before(files: tuple[str, str], *, told: bool) -> None:
    pair = Pair(files, Inner())
    pair.tls.pause_reading()
    pair.arrive(pair.record(b"a") + pair.record(b"b") + (pair.end() if told else b""))
    assert pair.tls.eof_received()  # it stays: there is something to read
    assert pair.inner.got == []
    pair.tls.resume_reading()
    await asyncio.sleep(0)  # the loop's next turn
    assert pair.inner.got == [b"ab", "end"]
    assert pair.failures == []


async def test_a_forged_record_fails_behind_what_was_sent(files: tuple[str, str]) -> None:
    pair = Pair(files, Inner())
    right, forged = pair.record(b"a"), bytearray(pair.record(b"b"))
    forged[-1] ^= 1
    pair.arrive(right + forged)
    assert pair.inner.got == [b"a"]
    (failure,) = pair.failures
    assert failure.startswith("TLS has failed: ")
    assert pair.socket.closed


@pytest.mark.parametrize("tickets", [True, False])
async def test_a_session_is_not_resumed_beyond_the_end_of_its_certificate(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, *, tickets: bool
) -> None:
    of_server, of_client = contexts = contexts_of(files)
    of_server.verify_mode = ssl.CERT_REQUIRED
    of_server.load_verify_locations(files[0])
    of_server.maximum_version = ssl.TLSVersion.TLSv1_2
    if not tickets:
        of_server.options |= ssl.OP_NO_TICKET
    of_client.load_cert_chain(*files)
    first = Pair(files, Inner(), contexts)
    again = Pair(files, Inner(), contexts, first.session)
    assert (again.resumed, again.failures) == (True, [])
    again.arrive(again.record(b"a"))
    assert again.inner.got == [b"a"]
    in_three_days = time.time() + 3 * 86_400
    monkeypatch.setattr(clock, "wall", lambda: in_three_days)
    late = Pair(files, Inner(), contexts, first.session)
    assert late.resumed
    assert late.failures == ["the client resumes a TLS session, and its certificate has expired since that began"]
    late.arrive(late.record(b"a"))
    assert late.inner.got == []
    assert late.socket.is_closing()
