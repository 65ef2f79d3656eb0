"""One outage of Pulsar: when it began, when it is over, what it caused meanwhile.

Owns: the decision whether there is an outage, and the counts of outages and of what failed in the present one.
Must not know: the clock, connections, the log.

An outage begins where a connection fails while none stands, after one has stood. It is over when connections have stood
for some seconds without a failure: a broker that starts takes connections before it does what they ask. What
fails meanwhile because of it is one number, which the line at its end tells.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kop.pulsar_client.errors import PulsarError

SETTLE_SECONDS: Final = 15.0
"""How long connections have to stand before an outage is over, and how often it is looked at then. It goes on if
something failed since the last look: a broker that started just now loads topics, and what was asked times out.
"""
LONGEST_SETTLE_SECONDS: Final = 120.0
"""How long connections stand at most before an outage is over, whatever fails: that is a fault of its own."""

_UNANSWERED: Final = frozenset({"ConnectionLost", "Timeout"})
_CAUSED: Final = _UNANSWERED | {"ServiceNotReady", "ServiceUnavailable", "MetadataError", "PersistenceError"}
"""What Pulsar says, or its client, while brokers are away or start."""


class Over(NamedTuple):
    """An outage that is over."""

    seconds: float
    """Time from its begin until a connection stood."""
    failures: int


class Outage:
    """The state machine. It has no clock: the time, in seconds, comes with each call."""

    def __init__(self) -> None:
        self.times = 0
        """Number of outages that have begun."""
        self.failures = 0
        """Number of requests and attempts that failed in the present outage."""
        self._stood = False
        self._since: float | None = None
        self._back: float | None = None
        self._seen = 0
        """Failures up to the last look."""

    @property
    def active(self) -> bool:
        """True during an outage."""
        return self._since is not None

    def connected(self, now: float) -> None:
        """Note that a connection stands."""
        self._stood = True
        if self._since is not None and self._back is None:
            self._back = now

    def disconnected(self) -> None:
        """Note that no connection stands any more."""
        self._back = None

    def failed_to_connect(self, error: PulsarError, now: float) -> bool:
        """Note that an attempt failed while no connection stands. Return True if an outage begins with it."""
        if not self._stood or self.active or error.code not in _UNANSWERED:
            return False
        self._since, self._back = now, None
        self.failures = self._seen = 0
        self.times += 1
        return True

    def takes(self, error: BaseException) -> bool:
        """Count an error as one that the present outage caused. Return False if it did not, or there is none."""
        if not self.active:
            return False
        caused = error.code in _CAUSED if isinstance(error, PulsarError) else isinstance(error, TimeoutError)
        self.failures += caused
        return caused

    def settled(self, now: float) -> Over | None:
        """Return the outage that is over now; None if there is none, or it lasts."""
        if self._since is None or self._back is None or now - self._back < SETTLE_SECONDS:
            return None
        new, self._seen = self.failures - self._seen, self.failures
        if new and now - self._back < LONGEST_SETTLE_SECONDS:
            return None
        over = Over(self._back - self._since, self.failures)
        self._since = self._back = None
        return over
