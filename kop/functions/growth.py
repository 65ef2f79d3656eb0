"""Which partitions the inputs of a function have, and the look for those that came later.

Owns: what an input stands for among the topics that there are; how often they are looked at.
Must not know: what becomes of new partitions.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from kop.client.offsets import TopicPartition
from kop.client.read_client import ReadClient, TopicMetadata
from kop.functions.spec import FunctionSpec

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
OWN_PREFIX: Final = "__kop_"
"""How the names of topics begin that have definitions, state and the like."""


def partitions_of(spec: FunctionSpec, client: ReadClient) -> list[TopicPartition]:
    """Return the partitions that the inputs of a function have now. No topic is made by asking."""
    names = [name for name, given in spec.inputs.items() if not given.is_regex]
    patterns = [re.compile(name) for name, given in spec.inputs.items() if given.is_regex]
    topics = client.topics(None if patterns else names)
    return [
        (name, partition)
        for name, topic in sorted(topics.items())
        if name in names
        or (
            name not in spec.own_topics
            and not _is_own(name, topic)
            and any(pattern.fullmatch(name) for pattern in patterns)
        )
        for partition in sorted(topic.leaders)
    ]


def _is_own(name: str, topic: TopicMetadata) -> bool:
    """Return if a topic is the servers' or that of functions themselves: a pattern does not mean those."""
    return topic.internal or name.startswith(OWN_PREFIX)


class Growth:
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
        self._thread = threading.Thread(target=self._run, name="kop-function-growth", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the looks; one that is under way ends by itself."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                client = ReadClient(self._settings, int(self._seconds * 1000))
                try:
                    partitions = partitions_of(self._spec, client)
                finally:
                    client.close()
                if not self._over.is_set():
                    self._tell(partitions)
            except Exception as error:
                log.warning("partitions that came later are looked for again in %g s: %s", self._seconds, error)
