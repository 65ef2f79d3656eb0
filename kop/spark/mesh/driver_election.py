"""The driver of a mesh: of its drivers the one that has the partition of the mesh's own group.

Owns: the membership in that group, and how it is known that this driver has the mesh still.
Must not know: Spark, what a driver does.

A driver that was paused for longer than a session has lost the mesh, and does not know it when it goes on. So no task
begins unless the server has said a moment ago that its driver is a member: else the tasks of two drivers would take
transactional ids from each other in turn.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kop import clock
from kop.client.membership import Membership
from kop.client.write_client import WriteClient
from kop.mesh import records

SESSION_SECONDS: Final = 6.0
"""The seconds that a mesh stands still after its driver was killed: as few as Kafka's default allows."""
SURE_SECONDS: Final = 2.0
"""The seconds for which the server's answer that a driver is a member holds: less than a session."""
BEGIN_SECONDS: Final = 20.0
"""The seconds that a task waits for leave to begin: the server may be away for a moment."""
LOOK_SECONDS: Final = 0.1
_PREFIX: Final = "kop-mesh-"


class DriverElection:
    """The membership of one driver. `settings` are kafka-python's; for any thread."""

    def __init__(self, settings: Mapping[str, Any], patience: float, name: str) -> None:
        """`name` is the full name of the mesh."""
        self._group = f"{records.GROUP_PREFIX}{name}"
        self._me = f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-{clock.token_hex(2)}"
        self._membership = Membership(settings, self._me, self._group, records.TOPIC, lambda: None, SESSION_SECONDS)
        self._writer = WriteClient(settings, min(patience, SESSION_SECONDS))
        self._asking = threading.Lock()
        self._sure_until = float("-inf")
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to join the group in which the drivers of a mesh decide which one runs it; a thread does that, again
        and again if it fails.
        """
        self._membership.start()

    def leave(self) -> None:
        """Begin to leave the group, so that another driver can have the mesh, without waiting. No task may begin from
        then on, and this driver cannot join again.
        """
        self._over.set()
        self._membership.close(0.0)

    def close(self) -> None:
        """Leave the group, as `leave` does, and wait for it, but 1 s at most."""
        self.leave()
        self._membership.close(1.0)
        with suppress(Exception):
            self._writer.close()

    @property
    def is_mine(self) -> bool:
        """True if this driver is the one that runs the mesh, as far as it knows; the server is not asked."""
        return self._membership.holding() is not None

    @property
    def is_lost(self) -> bool:
        """True if another driver runs the mesh, as the server told the members of the group last."""
        return not self.is_mine and any(peer.holds and peer.client_id != self._me for peer in self._membership.peers())

    def who(self) -> str:
        """Return the driver that runs the mesh (host, process id and a random part); if none is known, the reason that
        this driver is not in the group, or "nobody yet".
        """
        others = [peer.client_id for peer in self._membership.peers() if peer.holds]
        return others[0].removeprefix(_PREFIX) if others else self._membership.failure or "nobody yet"

    def may_begin(self) -> bool:
        """Return if this driver runs the mesh and the server has said so within the last 2 s. Asks the server again for
        up to 20 s until it does; False sooner if another driver runs the mesh, or this one is closed.
        """
        end = clock.monotonic() + BEGIN_SECONDS
        while not self._over.is_set() and clock.monotonic() < end and not self.is_lost:
            if self._is_sure():
                return True
            self._over.wait(LOOK_SECONDS)
        return False

    def _is_sure(self) -> bool:
        with self._asking:
            now = clock.monotonic()
            holding = self._membership.holding()
            if holding is None:
                return False
            if now < self._sure_until:
                return True
            try:
                self._writer.check_member(self._group, holding)
            except Exception:  # it is none any more, or the server is away: asked again
                return False
            self._sure_until = now + SURE_SECONDS
            return True
