"""The attachment of producers, readers and watches to a broker, and their return after their connection is lost.

Owns: the loop of asking `before_attach`, lookup, connection and attaching, with its waits; which errors are worth
another try. Must not know: whether it is a producer, a reader or a watch.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from kop.pulsar_client.backoff import Backoff
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.outage import Outage
from kop.turns import Turns

BeforeAttach = Callable[[], Awaitable[None]]
Find = Callable[[str | None], Awaitable[Connection]]
OnLost = Callable[[PulsarError], None]

_AT_FIRST = frozenset({"ConnectionLost", "ServiceNotReady", "TooManyRequests", "MetadataError", "PersistenceError"})
"""The codes of errors after which the first opening tries again until its time is up. Later ones retry all retriable
errors for ever.
"""
_TELL_EVERY = 10
"""The number of failed attempts after which a line is logged."""
_STABLE_SECONDS = 5.0
"""The seconds on one broker after which the first wait after a loss is short again."""

log = logging.getLogger(__name__)


class BrokerAttachment(ABC):
    """The attachment of a producer, reader or watch to the broker that has its topic. It follows the topic to other
    brokers.
    """

    def __init__(
        self,
        what: str,
        find: Find,
        *,
        timeout: float,
        before_attach: BeforeAttach | None,
        on_lost: OnLost | None,
        turns: Turns | None = None,
        outage: Outage,
    ) -> None:
        """Prepare to attach. `find` returns the connection to attach to, given the URL of the broker that the former
        broker named for the topic, or None if the topic's broker has to be looked up. It raises PulsarError if Pulsar
        refuses that or does not answer.
        """
        self._what = what
        self._find = find
        self._outage = outage
        self._turns = turns or Turns(1)
        self._timeout = timeout
        self._before_attach = before_attach
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._connection: Connection | None = None
        self._broken: PulsarError | None = None
        self._attached_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._end: PulsarError | None = None
        """The error with which it ended: it is closed, or lost for good; None while it lives."""
        self.attached_times = 0
        """The number of times that it was attached; 1 after the first time."""

    # --- what subclasses define

    @abstractmethod
    async def _attach(self, connection: Connection) -> None:
        """Register the producer, reader or watch with `connection`, and ask the broker to accept it there. PulsarError
        if the broker does not; nothing may stay registered then.
        """

    async def _confirmed(self, connection: Connection) -> None:  # noqa: B027 - most have nothing to do
        """Check the topic after the broker has accepted the producer, reader or watch, before it sends or reads. A
        PulsarError undoes the attaching; nothing may stay registered then.
        """

    def _interrupted(self, error: PulsarError) -> None:  # noqa: B027 - most have nothing to do
        """End the wait of a running `_attach` for a second answer, which may come much later, because the connection is
        lost with `error`.
        """

    @abstractmethod
    def _detached(self, error: PulsarError) -> None:
        """Handle the loss of the connection, before the first attempt to attach again."""

    @property
    def _ends_with_connection(self) -> bool:
        """True if the loss of the present connection ends the attachment, instead of leading to another attempt."""
        return False

    def _in_vain(self, error: PulsarError) -> None:  # noqa: B027 - most have nothing to do
        """Handle a failed attempt to attach again; there will be another."""

    @abstractmethod
    def _resume(self) -> None:
        """Begin to send or read, or go on with it, after being attached."""

    @abstractmethod
    def _over(self, error: PulsarError) -> None:
        """Fail all waiting requests, because the attachment is lost or closed."""

    # --- life

    @property
    def connected(self) -> bool:
        """True while it is attached to a broker."""
        return self._connection is not None

    async def open(self) -> None:
        """Attach for the first time. A lost connection, or a broker that is not ready, is tried again until the time
        limit of one request is over. PulsarError, which ends the attachment, if Pulsar refuses it or does not answer.
        """
        deadline = self._loop.time() + self._timeout
        while True:
            try:
                await self._once(None)
                return
            except PulsarError as error:
                wait = self._backoff.next()
                if error.code not in _AT_FIRST or self._loop.time() + wait > deadline:
                    self._end = error
                    raise
                await asyncio.sleep(wait)

    async def _once(self, assigned: str | None) -> None:
        async with self._turns.turn():
            connection = await self._find(assigned)
            self._broken = None
            await self._attach(connection)
        await self._confirmed(connection)
        if self._broken is not None:
            raise self._broken
        self._connection = connection
        self._attached_at = self._loop.time()
        self.attached_times += 1
        self._resume()

    def on_disconnect(self, error: PulsarError, assigned: str | None) -> None:
        """Attach again, in a task, after the loss of the connection; `assigned` is the URL of the broker to go to, if
        the old one has named it. If the client was closed, or the attachment may not outlive its connection, it ends
        instead. An attempt to attach that is under way fails with `error`.
        """
        if self._connection is None:  # in the middle of attaching
            self._broken = error
            self._interrupted(error)
            return
        self._connection = None
        if self._end is not None:
            return
        if self._loop.time() - self._attached_at >= _STABLE_SECONDS:
            self._backoff.reset()
        log.debug("%s: detached, coming back: %s", self._what, error)
        ends = error.code == "Closed" or self._ends_with_connection
        self._detached(error)
        if ends:
            self._give_up(error)
        else:
            self._task = self._loop.create_task(self._come_back(assigned), name=f"pulsar reattach {self._what}")

    async def _come_back(self, assigned: str | None, *, moved: bool = False) -> None:
        """Attach again; after a retriable PulsarError try again, with growing waits, until it works, and log every
        tenth failure that no outage explains. Any other error, of `before_attach` too, ends the attachment. With
        `moved` the first attempt is made at once, without `before_attach`, because the client itself left the
        connection.
        """
        tries = 0
        while self._end is None:
            if assigned is None and not moved:
                await asyncio.sleep(self._backoff.next())
            try:
                if self._before_attach is not None and not moved:
                    await self._before_attach()
                await self._once(assigned)
            except PulsarError as error:
                if not error.retriable:
                    self._give_up(error)
                    return
                tries += 1
                self._in_vain(error)
                if not self._outage.takes(error) and tries % _TELL_EVERY == 0:
                    log.warning(
                        "%s: Pulsar has not taken it back after %d attempts: %s; trying again", self._what, tries, error
                    )
            except Exception as error:  # an error of `before_attach` ends the attachment, whatever it is
                log.info("%s: not opened again at Pulsar, because the check before that failed: %r", self._what, error)
                self._give_up(PulsarError("GuardFailed", repr(error)))
                return
            else:
                return
            assigned, moved = None, False

    def _give_up(self, error: PulsarError) -> None:
        if self._end is not None:
            return
        self._end = error
        if self._on_lost is not None:
            try:
                self._on_lost(error)
            except Exception:
                log.exception("%s is lost, and the callback for that failed", self._what)
        self._over(error)

    def abandon(self, error: PulsarError) -> None:
        """End the attachment with `error`, because its client is closed: no further attempt is made, and `on_lost` is
        called.
        """
        if self._task is not None:
            self._task.cancel()
        self._give_up(error)

    async def _stop(self) -> Connection | None:
        """Mark the attachment as closed, and cancel an attempt to attach that is under way. Return the connection that
        it was attached to; None if there was none.
        """
        if self._end is None:
            self._end = PulsarError("Closed", f"{self._what} is closed")
        task, self._task = self._task, None
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        connection, self._connection = self._connection, None
        return connection
