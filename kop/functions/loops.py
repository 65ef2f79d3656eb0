"""Loops of functions through topics: what a function writes comes back to it, by itself or by others.

Owns: which definitions are such a loop, and what is said of it.
Must not know: who defines functions, what is written to topics that no definition names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from kop.functions.definitions import Definition
from kop.functions.input_topics import reads
from kop.functions.spec import FunctionSpec, SpecError


class Loop(NamedTuple):
    """A loop of functions, one of the shortest ones."""

    text: str
    since_ms: int
    """The time of the last request that changed a function of the loop, in milliseconds since the epoch."""


def loop_of(fqfn: str, definitions: Mapping[str, Definition]) -> Loop | None:
    """Return the loop that a function is part of; None if what it writes does not come back to it.

    What a function gives to `context.publish` alone is not known here.
    """
    specs: dict[str, FunctionSpec] = {}
    for name, definition in definitions.items():
        with suppress(SpecError):  # another version of kop took it
            specs[name] = definition.spec
    if fqfn not in specs:
        return None
    by_name: dict[str, list[str]] = {}
    with_pattern = []
    for name, spec in specs.items():
        for topic in spec.named_inputs:
            by_name.setdefault(topic, []).append(name)
        if len(spec.named_inputs) < len(spec.inputs):
            with_pattern.append(name)
    ways: dict[str, tuple[tuple[str, str], ...]] = {fqfn: ()}
    waiting = deque([fqfn])
    while waiting:
        writer = waiting.popleft()
        for topic in sorted(specs[writer].own_topics - {""}):
            readers = {*by_name.get(topic, ()), *(name for name in with_pattern if reads(specs[name], topic))}
            for reader in sorted(readers):
                way = (*ways[writer], (writer, topic))
                if reader == fqfn:
                    makers = [definitions[name] for name, _ in way]
                    return Loop(_told(way), max(maker.version_ms or maker.at_ms for maker in makers))
                if reader not in ways:
                    ways[reader] = way
                    waiting.append(reader)
    return None


def _told(way: tuple[tuple[str, str], ...]) -> str:
    steps = [f"{name} writes {topic}" for name, topic in way]
    back = " and reads it" if len(way) == 1 else f", which {way[0][0]} reads"
    return f"what {way[0][0]} writes comes back to it: {', '.join(steps)}{back}"
