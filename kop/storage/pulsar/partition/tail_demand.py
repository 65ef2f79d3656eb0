"""The decision if a log needs its tail, or if the receipts of this broker's own entries tell all that the tail
would bring.

Owns: that decision, from what happened and when. A pure machine: each call brings the time (s).
Must not know: streams, appends, timers.

While the entries of this broker follow each other in the log without a gap, the tail brings nothing new. Then it costs
the Pulsar broker a dispatch of every entry and this one its reading, for nothing. So it pauses, and goes on behind the
last entry that was placed as soon as it may bring something: a gap or an entry of somebody else, a new ledger, somebody
who has read to the end of the log or waits for it to move, no receipt for a short time. It goes on now and then for a
second in any case, so that the offsets that were told are compared with those that the Pulsar brokers give.

Each time that the tail was needed soon after it paused it stays for longer before it pauses again.
"""

from __future__ import annotations

from typing import Final

LOOK_SECONDS: Final = 0.5
"""The seconds between two calls of `look` while the tail pauses: without a receipt for so long the tail goes on. Nobody
waits for what it may bring then: a waiter has it go on at once.
"""
CALM_SECONDS: Final = 1.0
"""The seconds in which nothing may have needed the tail before it pauses for the first time."""
_LONGEST_CALM_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 30.0
"""The seconds that the tail pauses at most."""
SLOWEST_SECONDS: Final = 5.0
"""The seconds for a number of entries above which a pause saves nothing."""


class TailDemand:
    """The decision if one log needs its tail, or if the tail may pause."""

    def __init__(self, now: float) -> None:
        self.paused = False
        self._calm = CALM_SECONDS
        self._calm_since = self._chained_at = self._paused_at = now
        self._end = -1

    def needed(self, now: float) -> bool:
        """Note that the tail may bring something that is needed; return true if it was paused and has to go on. After
        that it needs twice the calm before it pauses again, a minute at most.
        """
        self._calm_since = now
        if not self.paused:
            return False
        self.paused = False
        self._calm = min(2 * self._calm, _LONGEST_CALM_SECONDS)
        return True

    def chained(self, now: float, end: int) -> bool:
        """Note that a number of entries followed each other, so that the log ends at `end`, and that nobody waits;
        return true if the tail pauses from now on. It does if they came within 5 seconds, and nothing needed the tail
        for a second, or for longer if pauses were short.
        """
        quick = now - self._chained_at <= SLOWEST_SECONDS
        self._chained_at = now
        if self.paused or not quick or now - self._calm_since < self._calm:
            return False
        self.paused, self._paused_at, self._end = True, now, end
        return True

    def look(self, now: float, end: int) -> bool:
        """Look at the log's `end` while the tail pauses; return true if the tail has to go on, and count it as going
        on: nothing was added since the last look, or the pause took 30 seconds.
        """
        if end == self._end:
            return self.needed(now)
        self._end = end
        if now - self._paused_at < CHECK_SECONDS:
            return False
        self._calm = CALM_SECONDS
        self._calm_since = now
        self.paused = False
        return True
