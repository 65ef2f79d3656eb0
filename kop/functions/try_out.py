"""A function called with records of a file, without a server: what it gives, publishes and keeps, and where it fails.

Owns: how a record is called outside of an instance, and what is told of it.
Must not know: files, how records look in them, terminals.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path
from typing import Final, NamedTuple

from kop.client.errors import ClientError
from kop.functions.context import Acked, Effect, FunctionContext, InputRecord, Nacked, Publish
from kop.functions.exception_text import text_of
from kop.functions.function import FunctionCode
from kop.functions.input_topics import input_of
from kop.functions.instance import read_secrets
from kop.functions.serdes import input_serde, of_class_name, output_serde
from kop.functions.spec import FunctionSpec
from kop.functions.state import LocalState, PartitionState, StateChanges, Value

log = logging.getLogger(__name__)

NACKED: Final = "the function called context.nack"


class Tried(NamedTuple):
    """The result of a call."""

    output: bytes | None
    publishes: list[Publish]
    acked: bool
    """True if the function acknowledged the record."""
    error: str | None
    """The exception, and where it was raised. Nothing else of a failed call counts."""


class TryOut:
    """Calls a function with one record after the other. ClientError, SerdeError: why it cannot be called."""

    def __init__(self, spec: FunctionSpec, code: FunctionCode) -> None:
        if spec.window is not None:
            raise ClientError("leave windowConfig out, or use localrun: windows are not tried out on single records")
        if code.is_batch:
            raise ClientError("use localrun: process_batch takes batches of Arrow, and no single records")
        self.metrics: dict[str, tuple[int, float]] = {}
        """Count and sum of what the function gave to record_metric."""
        self._spec = spec
        self._code = code
        self._serdes = {name: input_serde(spec, name, code) for name in spec.inputs}
        self._output = output_serde(spec, code)
        self._state = LocalState()
        self._effects: list[Effect] = []
        self._context = FunctionContext(
            spec,
            0,
            self._effects,
            logger=logging.getLogger(f"{__name__}.{spec.name}"),
            serde=lambda name: of_class_name(name, code),
            secrets=read_secrets(spec),
            record_metric=self._observe,
            state=lambda partition: StateChanges(self._state_of(partition[1])),
        )

    @property
    def state(self) -> dict[str, Value]:
        """The entries of the state that the calls have left, by key; with more than one partition, a key is
        PARTITION/KEY.
        """
        partitions = self._state.partitions
        return {
            key if len(partitions) == 1 else f"{number}/{key}": value
            for number, state in sorted(partitions.items())
            for key, value in state.values.items()
            if value is not None
        }

    def _state_of(self, partition: int) -> PartitionState:
        return self._state.partition(partition if self._spec.state_scope == "partition" else 0)

    def _observe(self, name: str, value: float) -> None:
        count, total = self.metrics.get(name, (0, 0.0))
        self.metrics[name] = count + 1, total + value

    def call(self, topic: str, partition: int, record: InputRecord) -> Tried:
        """Call the function with a record of a topic, and return what it gave, or its error. Changes of state count for
        later calls, and callbacks of publishes are called, unless the call fails. ClientError if the topic is no input.
        """
        try:
            serde = self._serdes[input_of(self._spec, topic)]
        except KeyError:
            raise ClientError(f"{topic} is no input of the function: {', '.join(self._spec.inputs)}") from None
        effects, context = self._effects, self._context
        effects.clear()
        context.begin((topic, partition), record)
        try:
            result = self._code.call(serde.deserialize(record[3]), context)
            if self._code.is_async:
                result = asyncio.run(result)
            output = None if result is None or not self._spec.output else self._output.serialize(result)
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:
            return Tried(None, [], False, _told(error, Path(self._spec.py)))
        finally:
            context.end()
        here = (topic, partition), record[0]
        if any(isinstance(effect, Nacked) and (effect.partition, effect.offset) == here for effect in effects):
            return Tried(None, [], False, NACKED)
        for effect in effects:
            if isinstance(effect, StateChanges):
                effect.apply()
        publishes = [effect for effect in effects if isinstance(effect, Publish)]
        acked = any(isinstance(effect, Acked) and (effect.partition, effect.offset) == here for effect in effects)
        for publish in publishes:
            self._tell(publish)
        return Tried(output, publishes, acked, None)

    @staticmethod
    def _tell(publish: Publish) -> None:
        try:
            publish.tell(True, None)
        except Exception:
            log.exception("the callback of a publish to %s failed", publish.topic)


def _told(error: BaseException, file: Path) -> str:
    """Return the text of an exception, with the last line of the function's file that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == file.name]
    place = f" ({file.name}, line {lines[-1]})" if lines else ""
    return f"{text_of(error)}{place}"
