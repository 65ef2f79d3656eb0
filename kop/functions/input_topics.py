"""The topics that functions read: which of those that there are a name or a pattern means, and what comes later.

Owns: which topics and partitions a function reads; how often it is looked for more.
Must not know: what becomes of partitions.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from typing import Any, Final

from kop.client.offsets import TopicPartition
from kop.client.read_client import ReadClient, TopicMetadata
from kop.functions.spec import FunctionSpec

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
OWN_PREFIX: Final = "__kop_"
"""The beginning of the names of topics that have definitions, state and the like."""


def reads(spec: FunctionSpec, topic: str, *, internal: bool = False) -> bool:
    """Return True if a function reads a topic, by name or by pattern.

    Patterns leave out what the function writes by itself, topics of the servers (`internal`), and those of functions.
    """
    name = _input_or_none(spec, topic)
    if name is None:
        return False
    return not spec.inputs[name].is_regex or not (internal or topic.startswith(OWN_PREFIX) or spec.writes(topic))


def input_of(spec: FunctionSpec, topic: str) -> str:
    """Return the input, a name or a pattern, by which a function reads a topic. KeyError if the function does not read
    it.
    """
    name = _input_or_none(spec, topic)
    if name is None:
        raise KeyError(topic)
    return name


def _input_or_none(spec: FunctionSpec, topic: str) -> str | None:
    """Return the first input that means a topic, None if none does; a name goes before a pattern."""
    if topic in spec.inputs:
        return topic
    return next((name for name, given in spec.inputs.items() if given.is_regex and re.fullmatch(name, topic)), None)


def topics_of(
    specs: Iterable[FunctionSpec], client: ReadClient, refused: dict[str, Exception] | None = None
) -> dict[str, TopicMetadata]:
    """Return the metadata, by name, of the topics that these functions read and that exist, perhaps of others too. No
    topic is made by asking.

    `refused` gets the error of each topic that has one; without it the first error is raised.
    """
    names: set[str] = set()
    topics: dict[str, TopicMetadata] = {}
    for spec in specs:
        names.update(spec.named_inputs)
        if not topics and len(spec.named_inputs) < len(spec.inputs):
            topics = client.topics(None, refused)
    # Of all topics the servers leave out those that this user may not see, and those of other namespaces.
    return topics | client.topics(names - topics.keys(), refused)


def partitions_of(spec: FunctionSpec, topics: Mapping[str, TopicMetadata]) -> tuple[TopicPartition, ...]:
    """Return the partitions that the inputs of a function have among these topics."""
    return tuple(
        (name, partition)
        for name, topic in sorted(topics.items())
        if reads(spec, name, internal=topic.internal)
        for partition in sorted(topic.leaders)
    )


class PartitionDiscovery:
    """Looks for partitions every so many seconds on a thread of its own, and tells of all that there are."""

    def __init__(
        self,
        spec: FunctionSpec,
        settings: Mapping[str, Any],
        tell: Callable[[Collection[TopicPartition]], None],
        seconds: float = LOOK_SECONDS,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._tell = tell
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kop-function-discovery", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the looks; one that is under way ends by itself."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                with closing(ReadClient(self._settings, int(self._seconds * 1000))) as client:
                    partitions = partitions_of(self._spec, topics_of([self._spec], client))
                if not self._over.is_set():
                    self._tell(partitions)
            except Exception as error:
                log.warning("partitions that came later are looked for again in %g s: %s", self._seconds, error)
