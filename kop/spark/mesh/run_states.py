"""The states of a mesh and its components, told when they change.

Owns: what counts as a change, and the fields of what is told.
Must not know: Spark, who is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kop import clock


class RunStates:
    """The states of one mesh as they were told last. `tell` is given each change as plain values."""

    def __init__(self, mesh: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._mesh = mesh
        self._tell = tell
        self._told: dict[str | None, dict[str, Any]] = {}

    def look(
        self, state: str, reason: str, revision: int | None, components: Iterable[tuple[str, str, str]] = ()
    ) -> None:
        """Tell the mesh and each component whose state, reason or revision differs from what was told last, as one
        value each; the first call tells all. `components` has name, state and reason of each.

        A component that is not among them is forgotten without a word, and told anew if it comes back.
        """
        now: dict[str | None, dict[str, Any]] = {}
        for component, its_state, why in ((None, state, reason), *components):
            now[component] = {"state": its_state, "reason": why, "revision": revision}
        for component, values in now.items():
            if self._told.get(component) != values:
                self._tell({"at_ms": clock.wall_ms(), "mesh": self._mesh, "component": component, **values})
        self._told = now
