"""The message classes: kafka-python's, by their Kafka names.

Owns: the one place where kafka-python's classes are imported, and the look-up of a class by API key or by its name:
`from kop.wire.messages import FetchRequest`.
Must not know: how they are decoded (codec.py) or answered (handlers).

kafka-python keeps one registry of response classes for the process, by API key, by which its clients decode. These are
the classes that it registers itself, so its clients work beside a gateway in one process. A class with a schema of our
own (delegation_tokens.py) is for an API that kafka-python has none of: else it would take the place of kafka-python's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from kafka.protocol import admin, consumer, metadata, producer, sasl

from kop.wire import delegation_tokens

Message: TypeAlias = Any
"""An instance of one of these classes; their attributes are the schema's fields in snake case."""

_NOT_SERVED: Final = {34, 45}
"""AlterReplicaLogDirs and AlterPartitionReassignments, which a broker without replicas does not have."""


def _classes() -> Iterator[tuple[str, Any]]:
    """Yield the name and the class of each message."""
    for module in (admin, consumer, metadata, producer, sasl, delegation_tokens):
        for name, cls in vars(module).items():
            if name.endswith(("Request", "Response")) and getattr(cls, "API_KEY", None) not in {None, *_NOT_SERVED}:
                yield name, cls


_BY_NAME: Final = dict(_classes())
REQUESTS: dict[int, Any] = {cls.API_KEY: cls for cls in _BY_NAME.values() if cls.is_request()}
"""The class of the request of each API, by API key."""
RESPONSES: dict[int, Any] = {cls.API_KEY: cls for cls in _BY_NAME.values() if not cls.is_request()}
"""The class of the response of each API, by API key."""


def __getattr__(name: str) -> Any:
    """Return the class of the message of that name; AttributeError if there is none."""
    if name not in _BY_NAME:
        raise AttributeError(f"there is no message {name}")
    return _BY_NAME[name]
