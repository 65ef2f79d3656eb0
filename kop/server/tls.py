"""TLS between a socket and a client connection, by `ssl.MemoryBIO`.

Owns: the handshake and its time limit, the bytes in both directions, what is told of a peer that fails.
Must not know: what the bytes mean, where certificates come from.

The connection is made when the socket is accepted, not after the handshake: so that it counts against every limit from
then on, and its peer can be named. To the connection this object is its transport, to the socket its protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

from kop import clock
from kop.security.certificates import of_der

HANDSHAKE_SECONDS: Final = 10.0
BUFFER_BYTES: Final = 64 * 1024
"""Bytes that are read from a socket at a time."""
_PIECE: Final = 64 * 1024
"""Bytes that are encrypted at a time."""
_MOST_PENDING: Final = 256 * 1024
"""Encrypted bytes that wait to be given to the socket."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """One connection. `failed` is given the reason of a failure of TLS, and true if it is the client's certificate; the
    connection is closed then.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        inner: asyncio.BufferedProtocol,
        failed: Callable[[str, bool], None],
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        shown: Callable[[bytes], None],
    ) -> None:
        """Begin. All connections of a loop may have the same `buffer`: encrypted bytes are in it for a moment. `inner`
        is the connection. `failed` is called if TLS fails, with the reason, and true if that is the client's
        certificate.

        `shown` is called with the certificate of a client that has one, in DER, once it is checked; it raises
        ValueError to refuse the client, with the reason.
        """
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._inner = inner
        self._failed = failed
        self._shown = shown
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = buffer
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False
        """True once anything has come from the client."""
        self._told = False
        """True once a failure was told."""
        self._shaken = False
        self._paused = False
        self._unread = False
        """True while the client does not read."""
        self._feeding = False
        self._ended = False

    # --- the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, for which the client has ten seconds, and tell the inner connection that it is made."""
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, self._too_late)
        self._inner.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner connection that the socket is gone; if the client left in the middle of the handshake, report
        that as a failure first.
        """
        if self._begun and not self._shaken and not self._told:
            self._failed(_LEFT, False)
        self._shake_no_more()
        self._transport = None
        self._inner.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for encrypted bytes that arrive next."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Go on with the handshake by the bytes that arrived; once it is over, decrypt them and hand them to the inner
        connection.
        """
        self._begun = True
        self._incoming.write(self._buffer[:nbytes])
        if self._shaken or self._shake():
            self._feed()

    def eof_received(self) -> bool:
        """Handle that the client has closed its half of the connection; what it sent still takes effect, as without
        TLS. Return true if the connection stays open for that.
        """
        self._incoming.write_eof()
        if not self._shaken:
            return False
        self._feed()
        return self._paused or self._end_of_stream()

    def pause_writing(self) -> None:
        """Tell the inner connection that the client does not read."""
        self._unread = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the inner connection that the client reads again."""
        self._unread = False
        self._inner.resume_writing()

    # --- the handshake

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # the alert, which tells the client why
            self._fail(_told(error), of_certificate=_is_of_certificate(error))
            return False
        self._send()
        self._shake_no_more()
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is not None:
            try:
                if self._tls.session_reused:
                    _check_end(certificate)
                self._shown(certificate)
            except ValueError as error:
                self._fail(str(error), of_certificate=True)
                return False
        self._shaken = True
        return True

    def _shake_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        self._fail(f"no TLS handshake within {HANDSHAKE_SECONDS:.0f} s")

    def _fail(self, reason: str, *, of_certificate: bool = False) -> None:
        self._shake_no_more()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._told = True
        self._failed(reason, of_certificate)
        transport.close()

    # --- bytes in

    def _feed(self) -> None:
        """Give the inner connection the bytes that can be decrypted, until there are no more or it reads no more. Then
        send what TLS itself has to answer; a client that leaves such answers unread is closed.
        """
        if self._feeding:
            return
        self._feeding = True
        try:
            while not self._paused and self._transport is not None:
                room = cast(memoryview, self._inner.get_buffer(BUFFER_BYTES))
                count, end = self._decrypt(room)
                if count:
                    self._inner.buffer_updated(count)
                if end is not None:
                    end()
                    break
                if count < len(room):
                    break
        finally:
            self._feeding = False
        # What TLS itself has to say, such as a refusal to renegotiate. The connection bounds answers, and not these.
        if self._outgoing.pending and self._unread:
            self._fail("it asks for more and more of TLS, and does not read the answers")
        else:
            self._send()

    def _decrypt(self, room: memoryview) -> tuple[int, Callable[[], object] | None]:
        """Fill `room` with decrypted bytes; return their number, and the function to call after them if TLS has ended,
        else None.

        OpenSSL gives one record at a time, and some clients make one of each few bytes: the connection is to be told of
        all at once.
        """
        read, pending = self._tls.read, self._incoming
        size = len(room)
        filled = 0
        try:
            while True:
                count = read(size - filled, cast(Any, room[filled:] if filled else room))
                filled += cast(int, count)
                if not count:
                    return filled, self._end_of_stream
                # OpenSSL has no whole record left then; to ask it would cost an exception. At the end it tells that.
                if filled == size or not (pending.pending or pending.eof):
                    return filled, None
        except ssl.SSLWantReadError:
            return filled, None
        except ssl.SSLZeroReturnError:
            return filled, self._end_of_stream
        except ssl.SSLError as error:
            if self._incoming.eof:  # cut off without TLS's own end
                return filled, self._end_of_stream
            return filled, partial(self._fail, f"TLS has failed: {error.reason or error}")

    def _end_of_stream(self) -> bool:
        if self._ended:
            return True
        self._ended = True
        stays = bool(self._inner.eof_received())
        if not stays and self._transport is not None:
            self._transport.close()
        return stays

    # --- the connection's side: a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information of the socket's transport by its name; `ssl_object` is the TLS session."""
        if name == "ssl_object":
            return self._tls
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return true once the connection is closed or being closed."""
        return self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read no more from the socket, and hold back what was read already."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again from the socket; what was held back comes first."""
        self._paused = False
        if self._transport is None:
            return
        self._transport.resume_reading()
        if self._shaken:
            self._loop.call_soon(self._feed)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the number of encrypted bytes waiting to be sent from which on the client counts as not reading (`high`),
        and that from which on it counts as reading again (`low`).
        """
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt the data and send it."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt the pieces in order; send them together at the end, or before if 256 KiB are waiting. Nothing is sent
        on a connection that is closed or closing.
        """
        for data in list_of_data:
            view = memoryview(data).cast("B")
            begin = 0
            while begin < len(view):
                begin += self._tls.write(cast(Any, view[begin : begin + _PIECE]))
                if self._outgoing.pending >= _MOST_PENDING:  # its memory stays with the connection
                    self._send()
        self._send()

    def write_eof(self) -> None:
        """Tell the client that no more answers come; what it sends is still read."""
        if self._transport is None:
            return
        if self._shaken:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # the client's own end has not come yet; ours is in what is to be sent
            self._send()
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        """Return true: `write_eof` can be called."""
        return True

    def close(self) -> None:
        """Close the connection after all that was written is sent."""
        if self._transport is None:
            return
        if self._shaken and not self._transport.is_closing():
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # as in `write_eof`
            self._send()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, without sending what is left."""
        self._shake_no_more()
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())


_LEFT: Final = (
    "it left in the middle of the TLS handshake: see that it trusts the CA (ssl.truststore.location) and that the name "
    "it connects to is in the certificate"
)
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_REASONS: Final = {
    "HTTP_REQUEST": "this is HTTP on a listener with TLS",
    "HTTPS_PROXY_REQUEST": "this is HTTP on a listener with TLS",
    "WRONG_VERSION_NUMBER": "no TLS is spoken on a listener with TLS: set security.protocol to SSL or SASL_SSL",
    "UNKNOWN_PROTOCOL": "no TLS is spoken on a listener with TLS: set security.protocol to SSL or SASL_SSL",
    "BAD_RECORD_TYPE": "no TLS is spoken on a listener with TLS: set security.protocol to SSL or SASL_SSL",
    "RECORD_LAYER_FAILURE": "no TLS is spoken on a listener with TLS: set security.protocol to SSL or SASL_SSL",
    "UNSUPPORTED_PROTOCOL": "the client has no version of TLS that ssl.enabled.protocols has",
    "NO_SHARED_CIPHER": "the client has no cipher suite of this listener",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the certificate: give it the CA (ssl.truststore.location)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "the client does not take the certificate: see that it trusts the CA, and that the name it connects to is in it"
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "the client does not take the certificate: see that it trusts the CA, and that the name it connects to is in it"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the certificate has expired",
    _NO_CERTIFICATE: (
        "the client shows no certificate, and ssl.client.auth=required: give it one (ssl.keystore.location)"
    ),
    "EXCESSIVE_MESSAGE_SIZE": "the client sends more in the TLS handshake than any certificate has",
}


def _check_end(certificate: bytes) -> None:
    """Raise ValueError if a certificate, in DER, has expired. OpenSSL looks at it only when a session begins, and not
    when a connection resumes one.
    """
    if of_der(certificate).days_left(clock.wall()) <= 0:
        raise ValueError("the client resumes a TLS session, and its certificate has expired since that began")


def _is_of_certificate(error: ssl.SSLError) -> bool:
    """Return true if TLS failed because of the certificate that a client shows, or because it shows none."""
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason == _NO_CERTIFICATE


def _told(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the client's certificate is not taken, {error.verify_message}: see that it has not expired, is for "
            "clients (clientAuth), and that its CA is in ssl.truststore of the listener"
        )
    return _REASONS.get(error.reason or "", f"the TLS handshake has failed: {error.reason or error}")
