"""One outage of Pulsar: when it began, when it is over, what it caused meanwhile.

Owns: the decision whether there is an outage, and the counts of outages and of what failed in the present one.
Must not know: the clock, connections, the log.

An outage begins if a broker to which connections stood takes none any more, or answers nothing on any of them. Other
brokers may answer meanwhile: what the missing one served fails until they have it. It is over when connections have
stood for some seconds without a failure: a broker that starts takes connections before it does what they ask. What
fails meanwhile because of it is one number, which the line at its end tells.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kop.pulsar_client.address import PulsarAddress
from kop.pulsar_client.errors import PulsarError

SETTLE_SECONDS: Final = 15.0
"""The seconds for which connections have to stand without a failure before an outage is over: a broker that started
just now loads topics, and requests to it time out.
"""
LOOK_SECONDS: Final = 1.0
"""The seconds between two looks if an outage is over."""
LONGEST_SETTLE_SECONDS: Final = 120.0
"""The seconds after which an outage is over if connections stand, whatever fails: such failures are a fault of their
own.
"""

_UNANSWERED: Final = frozenset({"ConnectionLost", "Timeout"})
_CAUSED: Final = _UNANSWERED | {"ServiceNotReady", "ServiceUnavailable", "MetadataError", "PersistenceError"}
"""The codes of errors that are due to brokers which are away or starting."""


class Over(NamedTuple):
    """The length of an outage that is over, and the number of failures in it."""

    seconds: float
    """The time from its beginning until a connection stood; if others stood all the time, until the last failure."""
    failures: int


class Outage:
    """The state machine of outages of one cluster. It has no clock: the time, in seconds, comes with each call."""

    def __init__(self) -> None:
        self.times = 0
        """The number of outages that have begun."""
        self.failures = 0
        """The number of requests and attempts that failed in the present outage."""
        self._doubtful = False
        """True while a connection is lost, and nobody knows yet if it comes back."""
        self._stood: set[PulsarAddress] = set()
        """The brokers to which a connection stood since an outage last began with them."""
        self._since: float | None = None
        self._back: float | None = None
        self._seen = 0
        """The number of failures at the last look."""
        self._failed = 0.0
        """The time of the last look that saw new failures."""

    @property
    def active(self) -> bool:
        """True during an outage."""
        return self._since is not None

    def answers(self, broker: PulsarAddress, now: float) -> None:
        """Note that a connection to a broker is established, and that the broker answers on it: only such a broker can
        begin an outage later, and the time until the end of a present outage is counted from the first such call.
        """
        self._stood.add(broker)
        if self._since is not None and self._back is None:
            self._back = now

    def lost(self, *, others: bool) -> None:
        """Note that a connection is lost; `others`: other connections exist. Failures from now until `certain` is
        called count as the consequence of the loss, anew unless an outage goes on.
        """
        if not others:
            self._back = None
        if not self.active:
            self.failures = self._seen = 0
        self._doubtful = True

    def certain(self) -> None:
        """Note that the time is over in which failures count as the consequence of a lost connection."""
        self._doubtful = False

    def fails(self, broker: PulsarAddress, error: PulsarError, now: float, *, others: bool) -> bool:
        """Note that a broker accepts no connection, or is silent on all. Return true if an outage begins with it: none
        goes on, a connection to this broker stood before, and `error` is ConnectionLost or Timeout.

        `others`: a connection to another broker exists.
        """
        if not others:
            self._back = None
        if broker not in self._stood or self.active or error.code not in _UNANSWERED:
            return False
        self._stood.discard(broker)
        self._since = self._failed = now
        self._back = now if others else None
        if not self._doubtful:
            self.failures = self._seen = 0
        self.times += 1
        return True

    def takes(self, error: BaseException) -> bool:
        """Return true, and count the error in `failures`, if it is of a kind that brokers cause which are away or
        starting, while an outage goes on or between a call of `lost` and one of `certain`. Return false otherwise.
        """
        if not (self.active or self._doubtful):
            return False
        caused = error.code in _CAUSED if isinstance(error, PulsarError) else isinstance(error, TimeoutError)
        self.failures += caused
        return caused

    def settled(self, now: float) -> Over | None:
        """End the present outage and return it if connections stand for 15 s without a new failure, or for 120 s with
        some; else return None, also if there is no outage. To be called about each second.
        """
        if self._since is None:
            return None
        if self.failures > self._seen:
            self._seen, self._failed = self.failures, now
        if self._back is None or now - self._back < SETTLE_SECONDS:
            return None
        if now - self._failed < SETTLE_SECONDS and now - self._back < LONGEST_SETTLE_SECONDS:
            return None
        ended = self._failed if self._back == self._since else self._back
        over = Over(ended - self._since, self.failures)
        self._since = self._back = None
        return over
