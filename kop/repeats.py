"""Decides which of many equal log lines are written, and which faults last.

Owns: which lines were written, and when; since when a fault is there.
Must not know: the clock, what the lines say.

A line is written when a fault begins, then every few minutes while it lasts. A fault that was quiet for a minute begins
once more.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_QUIET_SECONDS: Final = 60.0
_REMIND_SECONDS: Final = 300.0
_MOST: Final = 2000
LASTS_SECONDS: Final = 30.0
"""The seconds after which a fault counts as one that does not mend itself."""


class Repeats:
    """The decision which of many equal log lines are written. It has no clock: the time, in seconds, comes with each
    line.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[object, tuple[float, float, int]] = OrderedDict()
        """The state of each key: the time at which its line was written, the time at which it came last, and the number
        of lines left out since.
        """

    def say(self, key: object, now: float) -> int | None:
        """Note that the line of `key` is due at `now`. Return the number of times that it was left out since it was
        last written, if it is to be written now; None if it is not.
        """
        said, seen, kept = self._known.pop(key, (now, now, -1))
        again = kept < 0 or now - seen > _QUIET_SECONDS or now - said > _REMIND_SECONDS
        self._known[key] = (now, now, 0) if again else (said, now, kept + 1)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return max(kept, 0) if again else None


class Lasting:
    """The decision which faults last and which mend themselves. It has no clock: the time, in seconds, comes with each.

    A fault that was quiet for a minute begins once more.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[object, tuple[float, float]] = OrderedDict()
        """The faults that are there, by key: the time at which each began, and the time at which it came last."""

    def lasts(self, key: object, now: float) -> bool:
        """Note that the fault `key` occurs now. Return true if it has lasted for half a minute."""
        began, seen = self._known.pop(key, (now, now))
        if now - seen > _QUIET_SECONDS:
            began = now
        self._known[key] = (began, now)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return now - began >= LASTS_SECONDS

    def over(self, key: object) -> None:
        """Forget the fault `key`: it is over."""
        self._known.pop(key, None)
