"""The brokers that count as live: the decision alone, from what was seen of them at which time.

Owns: how long a broker may be missing, and what shortens or lengthens that.
Must not know: sockets, clocks, how anything is asked. A pure machine: times are seconds and come with each call.

A Pulsar broker that loads the topic of live brokers again, after an unload or its own restart, knows none of those
that come back within a second or two. Whoever takes a missing broker for dead at once fences it, on partitions that it
leads.

- A snapshot without the broker that took it tells nothing: the Pulsar broker has just begun.
- A broker counts as gone after `ABSENT_SNAPSHOTS` snapshots in a row without it, over `ABSENT_SECONDS` or more.
- One that answers Kafka requests at its address meanwhile is alive, also where it misses one now and then: it has
  `ANSWERING_SECONDS` to come back. One that has not come back then is cut off from Pulsar and coordinates nothing.
- One that has said that it leaves is gone with the first snapshot without it.

The other way round, a broker surely counts as live to the others while it sees itself attached, and has not been away
in the last `BACK_SECONDS`, in which all others have looked again. It was away where it missed itself over
`ABSENT_SECONDS`, or did not look for `AWAY_SECONDS`: it may have been stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kop.storage.base import LiveBroker

ABSENT_SNAPSHOTS: Final = 3
ABSENT_SECONDS: Final = 3.0
ANSWERING_SECONDS: Final = 15.0
SILENT_TIMES: Final = 2
"""The number of probes in a row that a broker has to leave unanswered to count as dead; one answer may only be slow."""
LEAVING_SECONDS: Final = 10.0
"""The seconds for which the announcement of a leaving broker counts: it may be started again at once."""
AWAY_SECONDS: Final = 5.0
"""The seconds without a look at the live brokers after which another broker may have taken this one's name and given it
back: a Pulsar broker waits as long for a silent producer. While another broker is absent, looks are up to four seconds
apart.
"""
BACK_SECONDS: Final = 5.0
"""The seconds that a broker has to be attached after an absence before others surely know that it is back."""


@dataclass(slots=True)
class _Absence:
    since: float
    snapshots: int = 0
    answered: bool = False
    """True if the broker has answered at its Kafka address since it is absent."""
    silent: int = 0
    """The number of probes in a row that the broker has not answered since then."""

    @property
    def answers(self) -> bool:
        return self.answered and self.silent < SILENT_TIMES

    def is_over(self, now: float) -> bool:
        return (
            self.snapshots >= ABSENT_SNAPSHOTS
            and now - self.since >= ABSENT_SECONDS
            and (not self.answers or now - self.since >= ANSWERING_SECONDS)
        )


class LiveBrokers:
    """The brokers that one of them, `own`, counts as live."""

    def __init__(self, own: LiveBroker) -> None:
        self.own = own
        self.brokers: Sequence[LiveBroker] = (own,)
        """The live brokers by id, `own` among them."""
        self._absences: dict[int, _Absence] = {}
        self._leaving: dict[int, float] = {}
        self._attached: float | None = None
        """The time at which `own` was last known to be attached."""
        self._missed = False
        """True if a snapshot of the live brokers since then lacked `own`."""
        self._back = float("-inf")
        """The time at which `own` was attached again after an absence."""

    @property
    def absent(self) -> Iterable[LiveBroker]:
        """The brokers that still count as live and were not in the last snapshot. Their answers to Kafka requests
        decide for how long.
        """
        return [broker for broker in self.brokers if broker.node_id in self._absences]

    def snapshot(self, attached: Mapping[int, LiveBroker], now: float) -> bool:
        """Update the live brokers by a Pulsar broker's list of attached ones at the time `now` (s). Return false if the
        list tells nothing, since `own` is not in it; then only that is noted.

        A broker that is not in the list stays live until three lists over 3 seconds lacked it, or for 15 seconds if it
        answers Kafka requests. One that said within the last 10 seconds that it leaves is gone at once.
        """
        if self.own.node_id not in attached:
            self._missed = True
            return False
        kept = dict(attached)
        for broker in self.brokers:
            if broker.node_id in attached:
                continue
            absence = self._absences.setdefault(broker.node_id, _Absence(now))
            absence.snapshots += 1
            said = self._leaving.pop(broker.node_id, None)
            leaves = said is not None and now - said < LEAVING_SECONDS
            if not leaves and not absence.is_over(now):
                kept[broker.node_id] = broker
        self._absences = {
            node_id: absence for node_id, absence in self._absences.items() if node_id in kept.keys() - attached
        }
        kept[self.own.node_id] = self.own
        self.brokers = tuple(kept[node_id] for node_id in sorted(kept))
        return True

    def own_attached(self, asked: float) -> None:
        """Note that `own` was attached, by a Pulsar broker's answer to a question of the time `asked`.

        It is the time of the question: an answer may lie in a socket for long before a broker reads it that was
        stopped.
        """
        if self._is_away(asked):
            self._back = asked
        self._attached, self._missed = asked, False

    def own_counts(self, now: float) -> bool:
        """Return true if all others surely count `own`, this broker, as live at the time `now`: it was known to be
        attached less than 5 seconds ago (3 if a list lacked it since), and has been for 5 seconds since its last
        absence.
        """
        return self._attached is not None and not self._is_away(now) and now - self._back >= BACK_SECONDS

    def _is_away(self, now: float) -> bool:
        limit = ABSENT_SECONDS if self._missed else AWAY_SECONDS
        return self._attached is not None and now - self._attached >= limit

    def answered(self, node_id: int, answers: bool) -> None:
        """Note that an absent broker has answered a Kafka request, or (`answers` is false) left one unanswered, which
        decides how long it still counts as live. Nothing happens if the broker is not absent.
        """
        if (absence := self._absences.get(node_id)) is not None:
            absence.answered |= answers
            absence.silent = 0 if answers else absence.silent + 1

    def leaves(self, node_id: int, now: float) -> None:
        """Remember that a broker said at the time `now` that it stops: the next list of attached brokers without it,
        within 10 seconds, removes it.
        """
        self._leaving[node_id] = now

    def is_dead(self, node_id: int) -> None:
        """Remove a broker other than `own` at once: it neither answers nor holds its name, as some other check has
        shown.
        """
        if node_id != self.own.node_id:
            self.brokers = tuple(broker for broker in self.brokers if broker.node_id != node_id)
            self._absences.pop(node_id, None)
