"""The topics of a namespace, watched.

Owns: the watcher at a broker and its return after a loss.
Must not know: what the topics are for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from kop.pulsar_client.attachment import BrokerAttachment
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.proto import pulsar_pb2 as pb

OnChange = Callable[[Sequence[str] | None, Sequence[str], Sequence[str]], None]

log = logging.getLogger(__name__)


class Watch(BrokerAttachment):
    """A watch of a namespace's topics; made by `Client.watch`. It begins by itself, and gives a snapshot each time it
    begins (again).
    """

    def __init__(
        self,
        watcher_id: int,
        namespace: str,
        pattern: str,
        on_change: OnChange,
        find: Callable[[], Awaitable[Connection]],
        *,
        timeout: float,
        outage: Outage,
    ) -> None:
        super().__init__(
            f"watch of {namespace}", self._look_for, timeout=timeout, before_attach=None, on_lost=None, outage=outage
        )
        self._id = watcher_id
        self._namespace = namespace
        self._pattern = pattern
        self._on_change = on_change
        self._find_connection = find
        self._snapshot: list[str] = []
        self._told = False
        self.error: PulsarError | None = None
        """The error for which nothing is watched now; None while all is well."""
        self._task = self._loop.create_task(self._begin(), name=f"pulsar watch {namespace}")

    async def close(self) -> None:
        """Stop watching; `on_change` is not called any more."""
        connection = await self._stop()
        if connection is not None:
            self._leave(connection)

    def on_update(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Pass the broker's news of topics that came or went on to `on_change`."""
        self._tell(None, added, removed)

    async def _begin(self) -> None:
        try:
            await self._once(None)
        except PulsarError as error:
            if error.code == "Closed":
                self._give_up(error)
            else:
                await self._come_back(None)

    async def _look_for(self, assigned: str | None) -> Connection:
        try:
            return await self._find_connection()
        except PulsarError as error:
            raise self._passing(error) from error

    async def _attach(self, connection: Connection) -> None:
        if not connection.features.supports_topic_watchers:
            raise self._passing(
                PulsarError("WatchUnsupported", f"{connection.name} does not watch topics for its clients")
            )
        asked = pb.CommandWatchTopicList(watcher_id=self._id, namespace=self._namespace, topics_pattern=self._pattern)
        connection.watches[self._id] = self
        try:
            answer: pb.CommandWatchTopicListSuccess = await connection.request(asked, self._timeout, self._what)
        except BaseException as error:
            self._leave(connection)
            if isinstance(error, PulsarError):
                raise self._passing(error) from error
            raise
        self._snapshot = list(answer.topic)

    def _passing(self, error: PulsarError) -> PulsarError:
        """Keep the error for which nothing is watched in `error`, log the first of them, and return it in a retriable
        form unless the client is closed. A namespace may come, a permission be given: watching never ends by itself.
        """
        if not self._told and not self._outage.active:
            self._told = True
            log.warning(
                "%s: Pulsar does not tell of changes now, so they are noticed later, by listing: %s", self._what, error
            )
        self.error = error
        return error if error.retriable or error.code == "Closed" else PulsarError("WatchRefused", str(error))

    def _detached(self, error: PulsarError) -> None:
        self.error = error

    def _resume(self) -> None:
        self.error, self._told = None, False
        snapshot, self._snapshot = self._snapshot, []
        self._tell(snapshot, (), ())

    def _over(self, error: PulsarError) -> None:
        self.error = error

    def _tell(self, snapshot: Sequence[str] | None, added: Sequence[str], removed: Sequence[str]) -> None:
        try:
            self._on_change(snapshot, added, removed)
        except Exception:
            log.exception("%s: its owner failed on a change", self._what)

    def _leave(self, connection: Connection) -> None:
        """Forget the watch on a connection, and tell the broker so."""
        connection.watches.pop(self._id, None)
        connection.write_request(pb.CommandWatchTopicListClose(watcher_id=self._id))
