"""Which of many log lines that say the same are written.

Owns: what was said and when.
Must not know: the clock, the lines.

A line is written when a trouble begins, then every few minutes while it lasts; one that was quiet for a minute begins
again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_QUIET_SECONDS: Final = 60.0
_REMIND_SECONDS: Final = 300.0
_MOST: Final = 2000


class Repeats:
    """Which of many lines are to be said. A pure machine: the time (seconds) comes with each."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, tuple[float, float, int]] = OrderedDict()
        """When it was said, when it was last seen, how often since it was said."""

    def say(self, key: object, now: float) -> int | None:
        """None: said a moment ago. Else how often it was kept back since then."""
        said, seen, kept = self._known.pop(key, (now, now, -1))
        again = kept < 0 or now - seen > _QUIET_SECONDS or now - said > _REMIND_SECONDS
        self._known[key] = (now, now, 0) if again else (said, now, kept + 1)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return max(kept, 0) if again else None
