"""What the parts of a run are given.

Must not know: what a part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """The load and the faults of a part of a run."""

    seed: int
    seconds: float
    spacing: float
    """Seconds between faults."""
    kinds: Sequence[str] | None
    """Kinds of faults; None for those of the part."""
