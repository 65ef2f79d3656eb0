"""The part that the calls of all kinds of functions have in common: what is done, and who is told of it.

Owns: what the instance asks calls for between batches; the answers and callbacks that wait for what is written.
Must not know: what is called with what (`calling`, `windowing`, `batch_calls`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableSequence

from kop.client.offsets import TopicPartition
from kop.functions.acks import Acks
from kop.functions.context import Effect, FunctionContext, Publish
from kop.functions.function import FunctionCode
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.stats import Stats
from kop.functions.triggers import TriggerAnswer, Triggers
from kop.functions.writing import Outputs


class CallBase:
    """The calls of one instance, on one thread. `stopping` tells when no further message is to be called.

    `context` makes a context that collects in the list that it is given. Where the calls are is kept in `calling`
    (kop.functions.watch); `partitions` has the index of each partition there. Failed calls are said to `logger`.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        code: FunctionCode,
        outputs: Outputs,
        *,
        context: Callable[[list[Effect]], FunctionContext],
        stopping: Callable[[], bool],
        calling: MutableSequence[int],
        partitions: Mapping[TopicPartition, int],
        logger: logging.Logger,
        stats: Stats,
        triggers: Triggers,
    ) -> None:
        self._spec = spec
        self._code = code
        self._outputs = outputs
        self._new_context = context
        self._stopping = stopping
        self._calling = calling
        self._partitions = partitions
        self._logger = logger
        self._stats = stats
        self._triggers = triggers
        self._acks = Acks(spec.max_message_retries)
        self._tries = spec.processing_guarantees is not Guarantee.ATMOST_ONCE
        self._answers: list[tuple[bytes, TriggerAnswer]] = []
        """What is told once it is written, by the number of the trigger."""
        self._callbacks: list[Publish] = []
        self._effects: list[Effect] = []
        self._context = context(self._effects)

    def close(self) -> None:
        """End what the calls ran on, if there is anything."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offsets up to which all is done, of partitions that had messages. For any thread."""
        return self._acks.positions()

    def next_due(self) -> float | None:
        """Return when a message is to be tried again."""
        return self._acks.next_due()

    def committable(self) -> dict[TopicPartition, int]:
        """Return the offsets that have moved since the last time, once what is done is written."""
        return self._acks.committable()

    def written(self) -> None:
        """Tell the callbacks of publishes, and who waits for a message, that theirs is written."""
        answers, self._answers = self._answers, []
        for number, answer in answers:
            self._triggers.answer(number, answer)
        callbacks, self._callbacks = self._callbacks, []
        for publish in callbacks:
            try:
                publish.tell(True, None)
            except Exception:
                self._logger.exception("the callback of a publish to %s failed", publish.topic)
