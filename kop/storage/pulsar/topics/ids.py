"""The ids of topics in Pulsar: each belongs to one name, and all brokers agree on it.

Owns: giving an id to a topic that has none or another topic's.
Must not know: which topics are in memory.

The id lies in the topic's properties, and tools copy properties: a topic that is cloned with them carries the id of
its original, and records, commits and fetches of one would go to the other. So the full name lies beside the id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from kop import clock
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.errors import NOT_THERE
from kop.storage.pulsar.layout import ID_PROPERTY, NAME_PROPERTY, id_of, is_copied, of_the_original
from kop.storage.topic_table import is_usable, new_uuid

T = TypeVar("T")

_NAMING_ROUNDS: Final = 5
SPREAD_SECONDS: Final = 0.2
"""The longest random wait in seconds before the chosen broker gives a plain topic its id: another cluster may do it."""
WAIT_FOR_OTHERS: Final = (0.1, 0.1, 0.2, 0.4, 0.8)
"""The seconds to wait for the broker that gives a topic its id, before another one does."""


class TopicIds:
    """The ids of topics, and their agreement between brokers. Methods raise PulsarError."""

    def __init__(self, admin: Admin, is_chosen: Callable[[str], bool]) -> None:
        """Prepare to give ids. `is_chosen` returns true if this broker is the one to give the topic of that name an
        id.
        """
        self._admin = admin
        self._is_chosen = is_chosen

    async def metadata(self, full_name: str) -> tuple[int, Mapping[str, str]]:
        """Return the number of partitions of a topic, 0 for a plain one, and its properties as they are."""
        topic = await self._admin.partitioned_metadata(full_name)
        if topic.partitions:
            return topic.partitions, topic.properties
        return 0, await self._admin.properties(full_name)

    async def write(self, full_name: str, topic_id: UUID) -> None:
        """Write an id into a topic's properties, with the name that it belongs to."""
        await self._admin.set_properties(full_name, {ID_PROPERTY: str(topic_id), NAME_PROPERTY: full_name})

    async def give(
        self, full_name: str, plain: bool, present: Mapping[str, str], foreign: UUID | None = None
    ) -> Mapping[str, str]:
        """Give an id to a topic that has none, or has `foreign`, the id of another topic. One of the brokers does it,
        the others read the result. `present` are the topic's properties; return those that it has then.

        Of properties that were copied, those that are about the other topic's log are removed. See docs/quirks.md,
        "Policies and properties that are set may be lost".
        """

        async def given() -> Mapping[str, str] | None:
            _, properties_now = await self.metadata(full_name)
            fits = id_of(properties_now) not in {None, foreign} and not is_copied(properties_now, full_name)
            return properties_now if fits else None

        properties = await self._after_others(full_name, plain, given)
        if properties is not None:
            return properties
        if is_copied(present, full_name) or (foreign is not None and id_of(present) == foreign):
            for key in of_the_original(present):
                await self._admin.remove_property(full_name, key)
        topic_id = await self._of_the_oldest_ledger(full_name, plain, foreign)
        for _ in range(_NAMING_ROUNDS):
            await self.write(full_name, topic_id or new_uuid())
            _, properties = await self.metadata(full_name)
            # The topic may have been deleted and made again meanwhile: the new one must not keep the old one's id.
            before, topic_id = topic_id, await self._of_the_oldest_ledger(full_name, plain, foreign)
            if topic_id == before:
                break
        assert properties is not None
        return properties

    async def _after_others(self, key: str, plain: bool, done: Callable[[], Awaitable[T | None]]) -> T | None:
        """Wait until another broker has done the work, and return the result of `done`, which is None before; None if
        none has within about 1.6 seconds.

        `key` determines the broker that is to do it; that one does not wait, or for 0.2 seconds at most if the topic is
        `plain`.
        """
        # Brokers of another cluster on the same namespace do not know of this one, and must not all write at once.
        first = (clock.chance.random() * SPREAD_SECONDS,) if plain else ()
        for pause in first if self._is_chosen(key) else WAIT_FOR_OTHERS:
            await asyncio.sleep(pause)
            if (result := await done()) is not None:
                return result
        return None

    async def _of_the_oldest_ledger(self, full_name: str, plain: bool, foreign: UUID | None) -> UUID | None:
        """Return an id for a topic, the same from each broker that asks at this moment; None if Pulsar does not tell
        enough for that.

        It follows from the topic's oldest ledger, so a topic that is deleted and made again has another.
        """
        oldest = await self._oldest_ledger(full_name, plain)
        if oldest is None:
            return None
        seed = f"{full_name}#{oldest}"
        while not is_usable(topic_id := uuid5(NAMESPACE_URL, seed)) or topic_id == foreign:
            seed += "+"
        return topic_id

    async def _oldest_ledger(self, full_name: str, plain: bool) -> int | None:
        """Return the id of the oldest ledger; None for a partition that no client has used yet."""
        try:
            stats = await self._admin.internal_stats(full_name if plain else f"{full_name}-partition-0")
        except PulsarError as error:
            if plain or error.code not in NOT_THERE:
                raise
            return None
        ledgers = stats.get("ledgers")
        return int(ledgers[0]["ledgerId"]) if ledgers else None
