"""What goes wrong between the gateway and Pulsar: how often, and when the log says so.

Owns: the counts for the metrics, which line is new and which was said a moment ago.
Must not know: what is done about it.

Clients try again many times a second. A line is logged when a trouble begins, then every few minutes while it lasts;
one that was quiet for a minute begins anew. Of troubles that differ by the partition alone, a few are named in each
minute: a cluster that is overloaded has thousands. The counts miss nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kop.errors import BackendError, KopError
from kop.pulsar_client import PulsarError
from kop.repeats import Repeats
from kop.storage.pulsar.errors import kafka_error

_MOST_ALIKE: Final = 10
_ALIKE_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class Alike:
    """How many lines of a kind were said lately. A pure machine as well."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[float, int]] = {}

    def left(self, kind: object, now: float) -> int:
        """How many may be said, this one among them; 0: not this one."""
        since, times = self._since.get(kind, (now, 0))
        if now - since > _ALIKE_SECONDS:
            since, times = now, 0
        self._since[kind] = (since, times + 1)
        return max(_MOST_ALIKE - times, 0)


class Troubles:
    """One engine's. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._repeats = Repeats()
        self._alike = Alike()

    def count(self, what: str) -> None:
        """One more."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def tell(self, key: object, text: str, kind: object = None) -> None:
        """Log a warning, unless that trouble was told of a moment ago, or many of its kind (None: the only one)."""
        now = self._clock()
        kept = self._repeats.say(key, now)
        left = 1 if kept is None or kind is None else self._alike.left(kind, now)
        if kept is None or not left:
            return
        more = f" ({kept} more since it was last said)" if kept else ""
        if left == 1 and kind is not None:
            more += "; others like it are counted in kop_pulsar_troubles_total, not logged, for a minute"
        log.warning("%s%s", text, more)

    def refused(self, error: PulsarError, what: str, doing: str) -> KopError:
        """Count and tell of a refusal by Pulsar; the error for the client. `what` names the metric: "writes" ..."""
        found = kafka_error(error, doing)
        self.count(f"{what} refused: {error.code}")
        if isinstance(found, BackendError):  # else the client asked for what cannot be
            self.tell((doing, error.code), found.message, (what, error.code))
        return found
