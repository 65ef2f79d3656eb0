"""Being the only writer of a log: Pulsar's exclusive producer, and who has to hear when another one takes it.

Owns: that producer, and the one call when it is lost.
Must not know: what is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kop.pulsar_client import PulsarError
from kop.storage.pulsar.partition.producer import Sender

if TYPE_CHECKING:
    from kop.storage.pulsar.partition.log import PulsarLog

_SURE_SECONDS: Final = 4.0
"""Less than the 5 s that a broker waits for a silent gateway before it lets another one have its place
(connectionLivenessCheckTimeoutMillis). One that sees other members may fence a gateway that is there at any time: then
so long at most it tells what was true a moment ago."""


class Leading:
    """One log's leadership. `sender` is there while this gateway leads."""

    def __init__(self, log: PulsarLog) -> None:
        self.sender: Sender | None = None
        self._log = log
        self._lost: Callable[[], None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def begin(self, lost: Callable[[], None]) -> None:
        """Fence whoever was it before, by the topic's epoch in Pulsar, then read what it wrote."""
        await self.end()
        await self._log.attach()
        sender = Sender(self._log, self._log.engine.producer_naming.leader, idempotent=False, exclusive=True)
        await sender.open()
        self.sender, self._lost = sender, lost
        try:
            await self._log.refresh()
        except BaseException:
            await self.end()
            raise

    @property
    def sure(self) -> bool:
        """This gateway leads: so said Pulsar so lately that none can have found it silent meanwhile."""
        return self.sender is not None and self._log.loop.time() - self.sender.sure_at < _SURE_SECONDS

    async def make_sure(self) -> None:
        """Ask Pulsar whether it leads; those who want to know at the same time share the answer."""
        if self.sender is None:
            return
        if self._asking is None:
            self._asking = self._log.loop.create_task(self._ask(self.sender))
        await asyncio.shield(self._asking)

    async def _ask(self, sender: Sender) -> None:
        try:
            await sender.verify()
        except PulsarError as error:
            self._log.engine.faults.refused(error, "leads", f"cannot tell who leads {self._log.title}")
        finally:
            self._asking = None

    async def end(self) -> None:
        """Lead no more."""
        sender, self.sender, self._lost = self.sender, None, None
        if sender is not None:
            await sender.close()

    def ended(self, sender: Sender) -> bool:
        """A sender takes no more batches; True where it was this one."""
        if sender is not self.sender:
            return False
        lost, self.sender, self._lost = self._lost, None, None
        if lost is not None:
            lost()
        return True
