"""Pulsar's names of topics, and what they are to a Kafka server.

Owns: the forms of a name (`persistent://TENANT/NAMESPACE/TOPIC`, `TENANT/NAMESPACE/TOPIC`, `TOPIC`), and which of them
a server has.
Must not know: fields of a definition, what is done with a topic.

A gateway over Pulsar knows topics of all namespaces by their names with slashes, and decides what they mean. Every
other server has no slashes in names: there one namespace is the server's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

DEFAULT_NAMESPACE: Final = "public/default"
_FULL: Final = re.compile(r"(?:persistent://)?([-\w.=:]+/[-\w.=:]+)/([^/]+)", re.ASCII)
_PATTERN: Final = re.compile(r"persistent://([-\w.=:]+/[-\w.=:]+)/(.+)", re.ASCII)
_PARTITION: Final = re.compile(r"(.+)-partition-[0-9]+")


class TopicNameError(Exception):
    """A name that no topic of the server has; the text says what to do."""


@dataclass(frozen=True)
class TopicNames:
    """The meaning of the names of topics on one server."""

    namespace: str = DEFAULT_NAMESPACE
    """The namespace of topics without a slash in their names."""
    has_namespaces: bool = False
    """True if the server knows topics of other namespaces, too: it is a gateway over Pulsar."""

    def kafka_name(self, name: str) -> str:
        """Return the name by which the server knows a topic. TopicNameError if no topic can have this name."""
        if "/" not in name:
            return name
        namespace, topic = self._parts(name)
        if self.has_namespaces:
            return f"{namespace}/{topic}"
        if namespace == self.namespace:
            return topic
        raise TopicNameError(
            f"{name} is a topic of {namespace}, and this server has no namespaces: name {topic} alone, or let "
            f"--topic-namespace be {namespace}"
        )

    def kafka_pattern(self, pattern: str) -> str:
        """Return the pattern for the server's names of topics. TopicNameError if it cannot match any."""
        if "://" not in pattern:
            return pattern
        full = _PATTERN.fullmatch(pattern)
        if full is None:
            raise TopicNameError(
                f"{pattern} must be persistent://TENANT/NAMESPACE/PATTERN, or a pattern without slashes"
            )
        if full[1] != self.namespace:
            raise TopicNameError(
                f"{pattern} matches topics of {full[1]}, and only those of {self.namespace} are listed: let "
                f"--topic-namespace be {full[1]} if these are the server's"
            )
        return full[2]

    @staticmethod
    def _parts(name: str) -> tuple[str, str]:
        full = _FULL.fullmatch(name)
        if full is None:
            raise TopicNameError(f"{name} must be TOPIC, TENANT/NAMESPACE/TOPIC or persistent://TENANT/NAMESPACE/TOPIC")
        partition = _PARTITION.fullmatch(full[2])
        if partition is not None:
            whole = name.removesuffix(full[2]) + partition[1]
            raise TopicNameError(f"{name} is one partition of a topic: name the topic, {whole}")
        return full[1], full[2]


HOME: Final = TopicNames()
"""Those of a server without namespaces, whose topics are those of public/default."""


def check_namespace(namespace: str) -> str:
    """Return the namespace that a user gave. TopicNameError if it is not TENANT/NAMESPACE."""
    if not re.fullmatch(r"[-\w.=:]+/[-\w.=:]+", namespace, re.ASCII):
        raise TopicNameError(f"{namespace} must be TENANT/NAMESPACE")
    return namespace
