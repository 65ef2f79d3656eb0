"""Whose password is hashed next: a few at a time; of those who wait, each address in turn, and in it each name in turn.

So nobody waits for more than a check of each other address, and of each other name from the own one, however many
connections guess there.

Owns: the places, and who waits for them.
Must not know: passwords, what is done in a place.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, IPv6Network
from typing import Final, TypeAlias

_Places: TypeAlias = OrderedDict[asyncio.Future[None], None]
_NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that are those of a network, in which a client may choose the others."""


class LoginTurns:
    """So many places."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[str, OrderedDict[str, _Places]] = OrderedDict()
        """By address, then by name; the next ones are first."""

    @asynccontextmanager
    async def turn(self, host: str, name: str) -> AsyncIterator[None]:
        """Wait for one of the places, for a client at this address that gives this user name; keep it until the end of
        the block. Of those that wait each address has its turn, and in it each name.
        """
        await self._take(_origin(host), name)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, origin: str, name: str) -> None:
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        names = self._waiting.setdefault(origin, OrderedDict())
        names.setdefault(name, OrderedDict())[place] = None
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(origin, name, place)
            else:
                self._give_back()
            raise

    def _give_back(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        origin, names = next(iter(self._waiting.items()))
        name, places = next(iter(names.items()))
        place = next(iter(places))
        self._waiting.move_to_end(origin)
        names.move_to_end(name)
        self._leave(origin, name, place)
        place.set_result(None)

    def _leave(self, origin: str, name: str, place: asyncio.Future[None]) -> None:
        names = self._waiting[origin]
        del names[name][place]
        if not names[name]:
            del names[name]
        if not names:
            del self._waiting[origin]


def _origin(host: str) -> str:
    """Return the part of an IP address that a client cannot choose freely: of IPv6 the network of 64 bits, else the
    address.
    """
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or IPv6Network((int(address), _NETWORK_BITS), strict=False))
