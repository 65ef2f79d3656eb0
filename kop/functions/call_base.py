"""The part that the calls of all kinds of functions have in common: what is done, and who is told of it.

Owns: what the instance asks calls for between batches; the answers and callbacks that wait for what is written; what
becomes of messages that are given up.
Must not know: what is called with what (`calling`, `windowing`, `batch_calls`).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from typing import Final

from kop.client.batches import NewRecord
from kop.client.offsets import TopicPartition
from kop.functions.acks import Acks
from kop.functions.context import Effect, FunctionContext, InputRecord, Publish, RecordId
from kop.functions.exception_text import text_of
from kop.functions.function import FunctionCode
from kop.functions.output_sizes import OutputError, record_bytes
from kop.functions.serdes import SerdeError
from kop.functions.spec import FunctionSpec, Guarantee
from kop.functions.stats import Stats
from kop.functions.triggers import TriggerAnswer, Triggers
from kop.functions.writing import Outputs

EXCEPTION_HEADER: Final = "__pfn_exception__"


class NackedError(Exception):
    """The function refused a message by `context.nack`."""


def ends_instance(error: BaseException) -> bool:
    """Return True if what a function has raised ends the instance, and is no failed call: SystemExit, and a
    KeyboardInterrupt that may be Ctrl-C, since it came on the main thread of a process that Ctrl-C interrupts.
    """
    if isinstance(error, KeyboardInterrupt):
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, SystemExit)


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
        """The answers that are told once all is written, each with the number of its trigger."""
        self._callbacks: list[Publish] = []
        self._effects: list[Effect] = []
        self._context = context(self._effects)

    # -- for the loop of the instance

    def close(self) -> None:
        """End the threads or loops on which functions were called, if there are any."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset before which all is done, for each partition that had messages. For any thread."""
        return self._acks.positions()

    def reached(self) -> Mapping[TopicPartition, int]:
        """Return, by partition, the offset before which all was taken, done or not, and no message waits for a call: a
        failed one waits until it is called again and has not failed, and those behind it until they are called. For any
        thread.
        """
        return self._acks.reached()

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, of the next attempt of a failed message; None if none
        waits.
        """
        return self._acks.next_due()

    def committable(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offset before which all is done, of partitions for which it has moved since the
        last call of this: it may be committed once the outputs are written.
        """
        return self._acks.committable()

    def written(self) -> None:
        """Note that the outputs are written: call the callbacks of publishes, whose errors are only logged, and answer
        those who wait for a message.
        """
        self.telling()()

    def telling(self) -> Callable[[], None]:
        """Return a callable that does what `written` does, for the calls so far; later ones are not part of it. It is
        to be called once their outputs are written, also while further messages are processed.
        """
        answers, self._answers = self._answers, []
        callbacks, self._callbacks = self._callbacks, []

        def tell() -> None:
            for number, answer in answers:
                self._triggers.answer(number, answer)
            for publish in callbacks:
                try:
                    publish.tell(True, None)
                except Exception:
                    self._logger.exception("the callback of a publish to %s failed", publish.topic)

        return tell

    # -- what a call has asked for

    def _publish(self, source: int, effect: Publish) -> None:
        """Add what a call has published to the outputs, and keep its callback for `written`; `source` is the number of
        the partition that the call's message came from.
        """
        self._outputs.add(effect.topic, source, (effect.key, effect.value, effect.headers, effect.timestamp))
        if effect.callback is not None:
            self._callbacks.append(effect)

    def _answer(self, records: Iterable[InputRecord], output: bytes | None) -> None:
        """Note answers for the triggers that wait for one of these messages; they get `output` once the outputs are
        written.
        """
        self._answers += [(number, TriggerAnswer(output)) for number in self._numbers(records)]

    def _numbers(self, records: Iterable[InputRecord]) -> list[bytes]:
        """Return the trigger ids of those messages that a trigger waits for."""
        if not self._triggers:
            return []
        numbers = (self._triggers.number_of(record[4]) for record in records)
        return [number for number in numbers if number is not None]

    # -- a call that has failed

    def _note_failure(self, records: Iterable[InputRecord], where: str, error: BaseException) -> None:
        """Count a failure, and tell it at once to the triggers that wait for one of the messages. `where` names the
        messages.
        """
        self._stats.failed(error, where, by_function=not isinstance(error, SerdeError | OutputError))
        for number in self._numbers(records):
            self._triggers.answer(number, TriggerAnswer(error=text_of(error)))

    def _tell_next_attempt(self, where: str, seconds: float, error: BaseException) -> None:
        self._logger.warning("the function failed at %s; next attempt in %.1f s", where, seconds, exc_info=error)

    def _give_up(
        self, partition: TopicPartition, records: Iterable[InputRecord], what: str, error: BaseException
    ) -> None:
        """Log that messages are given up, and add them to the outputs for the dead letter topic; with ATMOST_ONCE,
        which never calls twice, only log that they are lost. `what` names them in the log. The caller marks them as
        done.
        """
        if not self._tries:
            self._logger.error("%s is lost (ATMOST_ONCE): the function failed", what, exc_info=error)
            return
        topic = dead_letter_topic(self._spec, partition)
        self._logger.error("%s goes to %s: the function failed", what, topic, exc_info=error)
        for record in records:
            letter = dead_letter(self._spec, partition, record, error)
            without_error = (*letter[:2], letter[2][:-1], letter[3])
            as_it_was = record[2], record[3], record[4], record[1]
            self._write_whole(topic, partition, record, [letter, without_error, as_it_was], "dropped_dead_letters")

    def _write_whole(
        self,
        topic: str,
        partition: TopicPartition,
        record: InputRecord,
        forms: Sequence[NewRecord],
        metric: str,
    ) -> None:
        """Add a message to the outputs for a topic, in the first of some forms that the topic takes. If it takes none,
        drop the message, log that, and count it in a metric.
        """
        if not self._outputs.add_first_that_fits(topic, partition[1], forms):
            self._stats.metric(metric, 1)
            self._logger.error(
                "the message at %s-%d offset %d is dropped: its %d bytes are more than %s takes (max.message.bytes)",
                *partition, record[0], record_bytes(record[2], record[3], record[4]), topic,
            )  # fmt: skip


def dead_letter_topic(spec: FunctionSpec, partition: TopicPartition) -> str:
    """Return the topic for messages of a partition that were tried often enough: the one of the definition, else
    `TOPIC-GROUP-DLQ`, as Pulsar's clients name it.
    """
    return spec.dead_letter_topic or spec.default_dead_letter_topic(partition[0])


def dead_letter(spec: FunctionSpec, partition: TopicPartition, record: InputRecord, error: BaseException) -> NewRecord:
    """Return the dead letter of a message that was tried often enough: the record to write, with Pulsar's headers and
    the last error.
    """
    headers = [
        *record[4],
        ("REAL_TOPIC", partition[0].encode()),
        ("REAL_SUBSCRIPTION", spec.group.encode()),
        ("ORIGIN_MESSAGE_ID", str(RecordId(*partition, record[0])).encode()),
        (EXCEPTION_HEADER, text_of(error).encode()[:4096]),
    ]
    return record[2], record[3], headers, record[1]
