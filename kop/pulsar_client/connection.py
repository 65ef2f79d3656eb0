"""One connection to a broker.

Owns: the handshake, requests and their answers by id, the keepalive, authentication during the connection's life, and
handing receipts, entries and events to whom they belong.
Must not know: which broker serves a topic, and what to do when the connection is gone (its users are told).

Nothing here retries. A connection that breaks tells every user once, in `on_disconnect`, and is never used again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from google.protobuf.message import Message

from kop.background import every
from kop.pulsar_client import wire
from kop.pulsar_client.errors import PulsarError, server_error
from kop.pulsar_client.frames import Frames
from kop.pulsar_client.outgoing import Outgoing
from kop.pulsar_client.outgoing import twin as outgoing_twin
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Auth, Receipt, Received

PROTOCOL_VERSION = 21
_WRITE_HIGH = 4 * 1024 * 1024
"""The number of unsent bytes from which on producers keep their entries back."""

_JOINED = 64 * 1024
"""The number of bytes of entries up to which they are written as one buffer."""
_WRITE_AT_ONCE = 1024 * 1024
"""The number of bytes of entries from which on they are written before the end of the loop's turn: only then does the
socket say that it is full.
"""

log = logging.getLogger(__name__)


class ConnectionUser(Protocol):
    """The method of a producer, reader or watch that its connection calls when it is gone."""

    def on_disconnect(self, error: PulsarError, assigned: str | None) -> None:
        """Handle that the broker has closed the producer or consumer, or that the connection is gone; called once.
        `assigned` is the URL of the broker to go to next; None if it was not told.
        """


class ProducerEvents(ConnectionUser, Protocol):
    """The methods of a producer that its connection calls."""

    def on_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Handle the receipts of entries that are stored, in the broker's order: all that one read of the socket
        brought.
        """

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """Handle the broker's refusal of an entry."""

    def on_writable(self) -> None:
        """Write entries that were kept back: the connection takes more now."""


class ReaderEvents(ConnectionUser, Protocol):
    """The methods of a reader that its connection calls."""

    def on_messages(self, received: Sequence[Received], at: int) -> int:
        """Handle the messages from place `at` on among those that a read of the socket brought, as many as can be taken
        together. Returns how many were taken. The bytes of their views exist during the call only.
        """

    def on_end(self) -> None:
        """Handle that the topic is terminated and read to its end."""


class WatchEvents(ConnectionUser, Protocol):
    """The methods of a watch of a namespace that its connection calls."""

    def on_update(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Handle the broker's news of topics that came or went."""


class Connection(asyncio.BufferedProtocol):
    """A connection to a Pulsar broker, as asyncio's protocol object; made by `connect`."""

    def __init__(
        self,
        name: str,
        *,
        auth: Auth | None,
        client_version: str,
        proxy_to: str | None,
        keepalive: float,
        shared: memoryview,
        on_closed: Callable[[Connection, PulsarError, int], None],
    ) -> None:
        """Prepare a connection. `on_closed` is called once, with the reason and the number of producers, readers and
        watches that it had.
        """
        self.name = name
        """The connection's name in log lines and errors: the address and its purpose."""
        self._auth = auth
        self._client_version = client_version
        self._proxy_to = proxy_to
        self._keepalive = keepalive
        self._on_closed = on_closed
        self._frames = Frames(self._on_received, shared)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._next_request = 1
        self._connected: asyncio.Future[pb.CommandConnected] = self._loop.create_future()
        self._end_ticks: Callable[[], None] | None = None
        self._heard = False
        self._asked = False
        self._silent = 0
        """The number of calls of `is_silent` since anything came from the broker."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocked: dict[int, ProducerEvents] = {}
        self.outgoing: Outgoing = outgoing_twin.Outgoing(_WRITE_AT_ONCE, self._write_soon, self._write_entries)
        """The SEND frames that are written at the end of this turn of the loop, earlier if they have 1 MiB together: a
        system call costs more than a frame.
        """
        self.producers: dict[int, ProducerEvents] = {}
        self.readers: dict[int, ReaderEvents] = {}
        self.watches: dict[int, WatchEvents] = {}
        self.max_message_size = wire.DEFAULT_MAX_MESSAGE_SIZE
        self.features = pb.FeatureFlags()
        self.server_version = ""
        self.closed = False
        self.idle_since: float | None = None

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection, and let it pause producers from 4 MiB of unsent bytes on."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell all users of the connection that it is gone, and fail the requests that wait for answers."""
        self.abort(PulsarError("ConnectionLost", f"{self.name}: {exc or 'closed by the peer'}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the bytes that arrive next."""
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that arrived: hand on the receipts, messages and commands in them. If a frame is faulty or
        cannot be handled, the connection is closed.
        """
        self._heard = True
        self._silent = 0
        try:
            self._frames.updated(nbytes)
        except PulsarError as error:
            self.abort(error)
        except Exception as error:
            log.exception("%s: a frame of Pulsar could not be handled, the connection is closed", self.name)
            self.abort(PulsarError("FrameError", f"{self.name}: {error!r}"))

    def pause_writing(self) -> None:
        """Make producers keep their entries back, because the socket accepts no more."""
        self.outgoing.paused = True

    def resume_writing(self) -> None:
        """Let producers send again, those that waited longest first."""
        self.outgoing.paused = False
        while self._blocked and not self.outgoing.paused:
            producer_id, producer = next(iter(self._blocked.items()))
            del self._blocked[producer_id]
            self._tell(producer.on_writable)

    # --- lifetime

    async def handshake(self) -> None:
        """Send CONNECT, with credentials if there are any, and wait for the answer, without a time limit of its own.
        Then keep the broker's version, features and largest message, and begin to look for signs of life. PulsarError
        if Pulsar refuses it or the connection is lost.
        """
        connect = pb.CommandConnect(client_version=self._client_version, protocol_version=PROTOCOL_VERSION)
        flags = connect.feature_flags
        flags.supports_auth_refresh = True
        flags.supports_broker_entry_metadata = True
        flags.supports_partial_producer = True
        flags.supports_topic_watchers = True
        flags.supports_get_partitioned_metadata_without_auto_creation = True
        if self._auth is not None:
            connect.auth_method_name = self._auth.method
            connect.auth_data = await self._credentials(self._auth)
        if self._proxy_to is not None:
            connect.proxy_to_broker_url = self._proxy_to
        self.write(connect)
        answer = await self._connected
        self.server_version = answer.server_version
        self.features = answer.feature_flags
        if answer.max_message_size > 0:
            self.max_message_size = answer.max_message_size
            self._frames.limit = answer.max_message_size + wire.FRAME_PADDING
        what = "the look whether a broker still answers"
        self._end_ticks = every(self._loop, self._keepalive, what, self._tick)

    def abort(self, error: PulsarError) -> None:
        """Close the connection at once; its users are told `error`, and requests that wait for answers fail with it."""
        if self.closed:
            return
        self.closed = True
        self.outgoing.close()
        if self._transport is not None:
            self._transport.abort()
        if self._end_ticks is not None:
            self._end_ticks()
        for task in self._tasks:
            task.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # may have nobody who asks
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._blocked.clear()
        users: list[ConnectionUser] = [*self.producers.values(), *self.readers.values(), *self.watches.values()]
        self.producers, self.readers, self.watches = {}, {}, {}
        self._on_closed(self, error, len(users))
        for user in users:
            self._tell(user.on_disconnect, error, None)

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a user of the connection; if it raises, that is logged, so that the other users are called, too."""
        try:
            call(*arguments)
        except Exception:
            log.exception("%s: %r failed", self.name, call)

    def _tick(self) -> None:
        if self._asked and not self._heard:
            self.abort(
                PulsarError(
                    "ConnectionLost",
                    f"{self.name}: nothing came for {self._keepalive:g} s, not even the answer to a ping",
                )
            )
            return
        self._heard, self._asked = False, True
        self.write_frame(wire.PING_FRAME)

    def is_silent(self, looks: int) -> bool:
        """Return true if nothing came since the call of this method that lies `looks` calls back. Each call that finds
        nothing new since the one before it sends a ping.
        """
        self._silent += 1
        if self._silent > 1:  # nothing came since the last call
            self.write_frame(wire.PING_FRAME)
        return self._silent > looks

    @property
    def in_use(self) -> bool:
        """True while a producer, a reader, a watch or a request uses this connection."""
        return bool(self.producers or self.readers or self.watches or self._requests)

    # --- what goes out

    def write_frame(self, frame: bytes) -> None:
        """Write a whole frame, behind all entries that wait to be written; dropped when the connection is closed."""
        if not self.closed and self._transport is not None:
            self._write_entries()
            self._transport.write(frame)

    def _write_soon(self) -> None:
        self._loop.call_soon(self._write_entries)

    def _write_entries(self) -> None:
        size = self.outgoing.size
        if size:
            frames = self.outgoing.take()
            if self.closed or self._transport is None:
                return
            if size <= _JOINED:  # copying small frames costs less than naming each to the system
                self._transport.write(b"".join(frames))
            else:
                self._transport.writelines(frames)

    def write(self, content: Message) -> None:
        """Write a command of Pulsar's binary protocol as a frame, behind all entries. `content` is the command's own
        message, such as CommandFlow.
        """
        self.write_frame(wire.command_frame(content))

    def write_request(self, asked: Any) -> None:
        """Write a command under a new request id, which is set in it; nobody waits for the answer."""
        asked.request_id = self._next_request
        self._next_request += 1
        self.write(asked)

    def when_writable(self, producer_id: int, producer: ProducerEvents) -> None:
        """Call the producer's `on_writable` once when the socket takes entries again."""
        self._blocked[producer_id] = producer

    async def request(self, asked: Any, limit: float, what: str) -> Any:
        """Write a command under a new request id, which is set in it, and wait `limit` seconds for its answer, which is
        returned. PulsarError if the broker refuses it, Timeout, or ConnectionLost. `what` names the request in errors.
        """
        if self.closed:
            raise PulsarError("ConnectionLost", f"{self.name}: closed")
        request_id = self._next_request
        future = self.expect(request_id)
        self.write_request(asked)
        try:
            async with asyncio.timeout(limit):
                return await future
        except TimeoutError:
            raise PulsarError("Timeout", f"{self.name}: no answer to {what} in {limit:g} s") from None
        except PulsarError as error:
            raise PulsarError(error.code, f"{what}: {error.message}", retriable=error.retriable) from None
        finally:
            if self._requests.get(request_id) is future:
                del self._requests[request_id]

    def forget(self, request_id: int) -> None:
        """Drop the future of a request whose answer nobody waits for any more."""
        self._requests.pop(request_id, None)

    def expect(self, request_id: int) -> asyncio.Future[Any]:
        """Return a future for the answer, or the next of several, that carries this request id."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._requests[request_id] = future
        return future

    # --- what comes in

    def _on_received(self, received: Sequence[Received]) -> None:
        at = 0
        while at < len(received):
            if self.closed:
                return
            item = received[at]
            if isinstance(item, tuple):
                reader = self.readers.get(item[0])
                if reader is not None:  # else of a consumer that is closed already
                    at += reader.on_messages(received, at)
                    continue
            elif isinstance(item, list):
                producer = self.producers.get(item[0][0])
                if producer is not None:
                    producer.on_receipts(item)
            else:
                command = wire.read_command(item)
                handle = self._HANDLERS.get(command.type)
                if handle is None:
                    log.debug("%s: command %s is not known to this client", self.name, command.type)
                else:
                    handle(self, command)
            at += 1

    def _answer(self, answer: Any, *, failed: bool) -> None:
        if failed:
            self._refuse(answer.request_id, server_error(answer.error, f"{self.name}: {answer.message}"))
            return
        future = self._requests.pop(answer.request_id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _refuse(self, request_id: int, error: PulsarError) -> None:
        future = self._requests.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def _on_ping(self, command: pb.BaseCommand) -> None:
        self.write_frame(wire.PONG_FRAME)

    def _on_pong(self, command: pb.BaseCommand) -> None:
        """Do nothing: that bytes came is already noted, and the answer to a ping has no other meaning."""

    def _on_connected(self, command: pb.BaseCommand) -> None:
        if not self._connected.done():
            self._connected.set_result(command.connected)

    def _on_error(self, command: pb.BaseCommand) -> None:
        error = server_error(command.error.error, f"{self.name}: {command.error.message}")
        if not self._connected.done():
            self.abort(error)
        else:
            self._refuse(command.error.request_id, error)

    def _on_producer_success(self, command: pb.BaseCommand) -> None:
        success = command.producer_success
        future = self._requests.pop(success.request_id, None)
        # One that waits for its turn has a second answer, which may come in the same read.
        follow = None if success.producer_ready else self.expect(success.request_id)
        if future is not None and not future.done():
            future.set_result((success, follow))

    def _on_send_error(self, command: pb.BaseCommand) -> None:
        refusal = command.send_error
        producer = self.producers.get(refusal.producer_id)
        if producer is not None:
            producer.on_send_error(refusal.sequence_id, server_error(refusal.error, refusal.message))

    def _on_close_producer(self, command: pb.BaseCommand) -> None:
        closing = command.close_producer
        producer = self.producers.pop(closing.producer_id, None)
        self._blocked.pop(closing.producer_id, None)
        if producer is not None:
            producer.on_disconnect(
                PulsarError("ConnectionLost", f"{self.name}: the broker closed the producer"), self._assigned(closing)
            )

    def _on_close_consumer(self, command: pb.BaseCommand) -> None:
        closing = command.close_consumer
        reader = self.readers.pop(closing.consumer_id, None)
        if reader is not None:
            reader.on_disconnect(
                PulsarError("ConnectionLost", f"{self.name}: the broker closed the consumer"), self._assigned(closing)
            )

    def _assigned(self, closing: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> str | None:
        """Return the URL of the broker that has the topic now, if the command that closes a producer or reader names
        it; else None.
        """
        secure = self._transport is not None and self._transport.get_extra_info("sslcontext") is not None
        return (closing.assignedBrokerServiceUrlTls if secure else closing.assignedBrokerServiceUrl) or None

    def _on_end_of_topic(self, command: pb.BaseCommand) -> None:
        reader = self.readers.get(command.reachedEndOfTopic.consumer_id)
        if reader is not None:
            reader.on_end()

    def _on_lookup(self, command: pb.BaseCommand) -> None:
        """Give the answer of a look-up to the request that waits for it: two of its fields may say that it failed."""
        answer = wire.content_of(command)
        self._answer(answer, failed=answer.response == answer.Failed or answer.HasField("error"))

    def _on_answer(self, command: pb.BaseCommand) -> None:
        answer = wire.content_of(command)
        self._answer(answer, failed="error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error"))

    def _on_watch_update(self, command: pb.BaseCommand) -> None:
        update = command.watchTopicUpdate
        watch = self.watches.get(update.watcher_id)
        if watch is not None:
            watch.on_update(list(update.new_topics), list(update.deleted_topics))

    def _on_challenge(self, command: pb.BaseCommand) -> None:
        task = self._loop.create_task(self._respond())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _credentials(auth: Auth) -> bytes:
        try:
            return await auth.data()
        except PulsarError:
            raise
        except Exception as error:
            raise PulsarError("AuthFailed", f"no credentials to show: {error!r}") from error

    async def _respond(self) -> None:
        """Answer the broker's AUTH_CHALLENGE with fresh credentials; close the connection if there are none."""
        if self._auth is None:
            self.abort(PulsarError("AuthenticationError", f"{self.name} asks for credentials, none are configured"))
            return
        try:
            data = await self._credentials(self._auth)
        except PulsarError as error:
            self.abort(
                PulsarError("ConnectionLost", f"{self.name} asks for fresh credentials, there are none: {error}")
            )
            return
        response = pb.AuthData(auth_method_name=self._auth.method, auth_data=data)
        self.write(
            pb.CommandAuthResponse(
                client_version=self._client_version, response=response, protocol_version=PROTOCOL_VERSION
            )
        )

    _HANDLERS: ClassVar[Mapping[int, Callable[[Connection, pb.BaseCommand], None]]] = {
        pb.BaseCommand.PING: _on_ping,
        pb.BaseCommand.PONG: _on_pong,
        pb.BaseCommand.CONNECTED: _on_connected,
        pb.BaseCommand.SUCCESS: _on_answer,
        pb.BaseCommand.ERROR: _on_error,
        pb.BaseCommand.PRODUCER_SUCCESS: _on_producer_success,
        pb.BaseCommand.SEND_ERROR: _on_send_error,
        pb.BaseCommand.CLOSE_PRODUCER: _on_close_producer,
        pb.BaseCommand.CLOSE_CONSUMER: _on_close_consumer,
        pb.BaseCommand.REACHED_END_OF_TOPIC: _on_end_of_topic,
        pb.BaseCommand.LOOKUP_RESPONSE: _on_lookup,
        pb.BaseCommand.PARTITIONED_METADATA_RESPONSE: _on_lookup,
        pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: _on_answer,
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: _on_answer,
        pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS: _on_answer,
        pb.BaseCommand.WATCH_TOPIC_UPDATE: _on_watch_update,
        pb.BaseCommand.AUTH_CHALLENGE: _on_challenge,
        pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE: _on_answer,
        pb.BaseCommand.NEW_TXN_RESPONSE: _on_answer,
        pb.BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE: _on_answer,
        pb.BaseCommand.END_TXN_RESPONSE: _on_answer,
        pb.BaseCommand.END_TXN_ON_PARTITION_RESPONSE: _on_answer,
    }


async def connect(
    make: Callable[[], Connection],
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None,
    server_hostname: str | None,
    limit: float,
) -> Connection:
    """Connect and shake hands within `limit` seconds. PulsarError if that fails; its text says what was tried."""
    where = f"{host}:{port}"
    connection: Connection | None = None
    try:
        async with asyncio.timeout(limit):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    make, host, port, ssl=context, server_hostname=server_hostname if context else None
                )
            except ssl.SSLError as error:
                raise PulsarError("TlsError", f"{where}: {error}") from error
            except OSError as error:
                raise PulsarError("ConnectionLost", f"cannot connect to {where}: {error.strerror or error}") from error
            await connection.handshake()
    except TimeoutError:
        late = PulsarError("Timeout", f"{where} does not answer the connection's first command in {limit:g} s")
        if connection is not None:
            connection.abort(late)
        raise late from None
    except BaseException as error:
        if connection is not None:
            connection.abort(error if isinstance(error, PulsarError) else PulsarError("Closed", str(error)))
        raise
    return connection
