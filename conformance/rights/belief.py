"""What may be in force, of a value that one changes and others ask for.

Owns: which of the values an answer may go by, and how late one was.
Must not know: what the values are, clocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class _Held(Generic[T]):
    value: T
    begun: float
    """When its change was sent."""
    ended: float = inf
    """When the change after it was answered."""


class Belief(Generic[T]):
    """The values of one thing over time; one change at a time."""

    def __init__(self, value: T) -> None:
        self._held = [_Held(value, -inf)]
        self.worst = 0.0
        """How long after the answer to a change something was still answered by the value before, in seconds."""

    @property
    def value(self) -> T:
        """The newest value."""
        return self._held[-1].value

    def change(self, value: T, now: float) -> None:
        """Note that a change to this value is sent now."""
        self._held.append(_Held(value, now))

    def done(self, now: float) -> None:
        """Note that the last change is answered now."""
        self._held[-2].ended = now

    def possible(self, sent: float, answered: float, bound: float) -> Set[T]:
        """Return the values that may be in force for a request of that time, if a change is everywhere after `bound`
        seconds.
        """
        return {held.value for held in self._held if held.begun <= answered and sent <= held.ended + bound}

    def is_right(self, value: T, sent: float, answered: float, bound: float) -> bool:
        """Return true if an answer may go by this value; note how late it is."""
        ways = [held for held in self._held if held.value == value and held.begun <= answered]
        if not ways:
            return False
        late = sent - max(held.ended for held in ways)
        if late > self.worst and late <= bound:
            self.worst = late
        return late <= bound
