"""The waits between one try and the next.

Owns: growing waits with jitter, as plain numbers.
Must not know: how late it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kop import clock

if TYPE_CHECKING:
    import random


class Backoff:
    """The waits between tries, in seconds: they double up to `most`, and each is drawn between half and the whole, so
    that crowds spread.
    """

    __slots__ = ("_first", "_most", "_next", "_random")

    def __init__(self, first: float = 0.1, most: float = 5.0, rng: random.Random | None = None) -> None:
        self._first = first
        self._most = most
        self._next = first
        self._random = rng or clock.new_chance()

    def next(self) -> float:
        """Return the next wait in seconds, drawn between half of the present length and the whole of it, and double
        that length for the next call, up to the longest.
        """
        wait, self._next = self._next, min(self._most, self._next * 2)
        return wait * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Make the next wait short again, after a success."""
        self._next = self._first
