"""The definition of a function, checked: what an instance is started with.

Owns: its fields and their defaults, the guarantees.
Must not know: what a definition is read from (`config_reading`), files of users, sockets, how a function runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from kop.functions.topics import HOME, TopicNames

_NAME: Final = re.compile(r"[\w.=:-]+", re.ASCII)


class Guarantee(Enum):
    """The fate of a message when an instance dies."""

    ATMOST_ONCE = "ATMOST_ONCE"
    ATLEAST_ONCE = "ATLEAST_ONCE"
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    MANUAL = "MANUAL"


class SpecError(Exception):
    """Everything that is wrong with a definition, a line each, with its place."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


@dataclass(frozen=True)
class InputSpec:
    """The way in which the records of an input are read."""

    serde_class_name: str = ""
    schema_type: str = ""
    is_regex: bool = False


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """The windows of a function; of count and time one has a value."""

    length_count: int | None = None
    sliding_count: int | None = None
    """The number of messages that lie between two windows."""
    length_ms: int | None = None
    sliding_ms: int | None = None
    timestamp_extractor: str = ""
    """Empty: the time of a message is the one at which it is read."""
    max_lag_ms: int = 0
    watermark_ms: int = 1000
    """The milliseconds between two moves of the watermark."""
    late_data_topic: str = ""


@dataclass(frozen=True, kw_only=True)
class FunctionSpec:
    """A function, checked. Fields without a value are empty, or None if they are numbers."""

    tenant: str = "public"
    namespace: str = "default"
    name: str
    class_name: str
    py: str
    inputs: Mapping[str, InputSpec]
    """Topics and patterns."""
    input_type_class_name: str = ""
    output: str = ""
    output_serde_class_name: str = ""
    output_schema_type: str = ""
    output_type_class_name: str = ""
    compression_type: str = "none"
    """A codec of Kafka, by its name."""
    processing_guarantees: Guarantee = Guarantee.ATLEAST_ONCE
    auto_ack: bool = True
    """False only with the guarantee MANUAL."""
    max_message_retries: int | None = None
    """None is without limit."""
    dead_letter_topic: str = ""
    retain_ordering: bool = False
    retain_key_ordering: bool = False
    sub_name: str = ""
    subscription_position: Literal["Latest", "Earliest"] = "Latest"
    skip_to_latest: bool = False
    cleanup_subscription: bool = True
    parallelism: int = 1
    user_config: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, SecretPlace] = field(default_factory=dict)
    log_topic: str = ""
    timeout_ms: int | None = None
    ram: int | None = None
    """Bytes."""
    max_pending_async_requests: int = 1000
    window: WindowSpec | None = None
    state_scope: Literal["function", "partition"] = "function"
    """The owner of state and windows: the function, or each partition of its input."""
    topic_names: TopicNames = HOME
    """The meaning of the names that the function gives to `publish`; names in this spec are the server's already."""

    @property
    def fqfn(self) -> str:
        """The full name: tenant/namespace/name."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def named_inputs(self) -> tuple[str, ...]:
        """The inputs that are names of topics, and no patterns."""
        return tuple(name for name, given in self.inputs.items() if not given.is_regex)

    @property
    def own_topics(self) -> frozenset[str]:
        """The topics that the function writes by itself and that the definition names."""
        late = "" if self.window is None else self.window.late_data_topic
        return frozenset({self.output, self.log_topic, self.dead_letter_topic, late})

    def writes(self, topic: str) -> bool:
        """Return True if a topic is one that the function writes by itself: one of `own_topics`, or the default dead
        letter topic of any topic.
        """
        return topic in self.own_topics or topic.endswith(self.default_dead_letter_topic(""))

    def default_dead_letter_topic(self, topic: str) -> str:
        """Return the dead letter topic of messages of a topic if the definition names none: `TOPIC-GROUP-DLQ`, as
        Pulsar's clients name it.
        """
        return f"{topic}-{self.group.replace('/', '-')}-DLQ"

    @property
    def group(self) -> str:
        """The consumer group that keeps the offsets."""
        return self.sub_name or self.fqfn


@dataclass(frozen=True)
class SecretPlace:
    """The place that the process of a function has a secret from."""

    env: str = ""
    """A variable."""
    file: str = ""


def name_mistake(name: str) -> str:
    """Return the reason that a tenant, a namespace or a function cannot have a name; an empty text if it can."""
    return "" if _NAME.fullmatch(name) else f"{name!r} may have letters, digits and -=:_. only"
