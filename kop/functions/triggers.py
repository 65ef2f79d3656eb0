"""Messages that somebody sends to a function and waits for.

Owns: to which partition such a message goes, how it is known, who is told of it, and what its failure means.
Must not know: who sends it, what a call is.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from kop import clock
from kop.client.offsets import TopicPartition
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.topics import TopicNameError
from kop.records.partitioning import partition_of

HEADER: Final = "__kop_trigger__"
RAISED: Final = 422
"""The status of an answer, by HTTP's numbers: the function has raised."""
LATE: Final = 408
"""The message is not done in time."""
ABSENT: Final = 503
"""No instance is there that could answer, or it cannot write the message."""


class TriggerError(Exception):
    """A message that no input of the function takes."""


class TriggerAnswer(NamedTuple):
    """The output of a message, None if there is none, or the error of its first call."""

    output: bytes | None = None
    error: str | None = None
    status: int = RAISED
    """The kind of the error, if there is one, as a status of HTTP."""


def place_for(
    spec: FunctionSpec, topic: str | None, key: bytes | None, partitions: Collection[TopicPartition]
) -> TopicPartition:
    """Return the topic and partition that a message goes to: the partition of its key, as Kafka's own producers choose
    it, or the first one if it has no key.

    `partitions` are all that the function reads. TriggerError if `topic` is no input, or is missing while there are
    several.
    """
    topics = sorted({name for name, _ in partitions})
    if topic:
        try:
            name = spec.topic_names.kafka_name(topic)
        except TopicNameError as error:
            raise TriggerError(str(error)) from None
        if name not in topics:
            raise TriggerError(f"name an input of {spec.fqfn}: {topic} is none, but {_listed(topics)}")
    elif len(topics) == 1:
        name = topics[0]
    else:
        raise TriggerError(f"name the input of {spec.fqfn} that gets the message (--topic): {_listed(topics)}")
    numbers = sorted(number for each, number in partitions if each == name)
    return name, numbers[0] if key is None else numbers[partition_of(key, len(numbers))]


def _listed(topics: Sequence[str]) -> str:
    return ", ".join(topics[:10]) + (", ..." if len(topics) > 10 else "")


def fate(spec: FunctionSpec, topic: str) -> str:
    """Return the text that says what becomes of a message of `topic` whose first call has failed: it is in its topic
    like any other.
    """
    if spec.processing_guarantees is Guarantee.ATMOST_ONCE:
        return f"the message stays in {topic}, and is not called again"
    times = spec.max_message_retries
    if times is None:
        again = "is tried again until it is done: maxMessageRetries would bound that"
    elif times:
        again = f"is tried {times} times again, then goes to the dead letters"
    else:
        again = "goes to the dead letters"
    return f"the message stays in {topic}, and {again}"


class Triggers:
    """The messages that are waited for; for any thread."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[threading.Event, list[TriggerAnswer]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self) -> bytes:
        """Return a fresh id, the value of the header of a message that is going to be sent. Its answer is kept from now
        on, until `wait`.
        """
        number = clock.uuid4().hex.encode()
        self._waiting[number] = (threading.Event(), [])
        return number

    def wait(self, number: bytes, seconds: float) -> TriggerAnswer | None:
        """Wait up to so many seconds for the answer about a message, by its id of `expect`, and return the answer; None
        if none has come.

        An answer that comes later is dropped.
        """
        event, answers = self._waiting[number]
        event.wait(seconds)
        self._waiting.pop(number, None)
        return answers[0] if answers else None

    def number_of(self, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """Return the id of a message that is waited for; None for all others."""
        return next((value for name, value in headers if name == HEADER and value in self._waiting), None)

    def answer(self, number: bytes, answer: TriggerAnswer) -> None:
        """Give an answer to the thread that waits for a message. If there are several, the first one counts; if nobody
        waits, it is dropped.
        """
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting[1].append(answer)
            waiting[0].set()
