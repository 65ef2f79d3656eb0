"""The place of a task's calls, in a file that outlives its process: who comes next learns at which record it ended.

Owns: the file, and who may read it. Must not know: what a task does, who is told.

A task holds the lock of its file as long as it lives, so a file that can be locked is one of a process that has ended.
If it was in a call then, that call has ended it, or somebody has killed it meanwhile. The lock is one of those that a
process does not give to others that it forks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from kop import clock
from kop.client.offsets import TopicPartition
from kop.functions.watch import NOT_CALLING, PARTITION, place_of

_WORD: Final = 8
_CALLING: Final = 3
"""The count of the numbers that a function has, see `kop.functions.watch`."""
_HEAD: Final = 3
"""Numbers in front of those: where the text begins, which input partition goes through, and up to which offset."""
_SUFFIX: Final = ".calls"


class EndedCall(NamedTuple):
    """A call in which a process has ended."""

    function: str
    at: tuple[TopicPartition, int] | None
    """The record that the function was called with."""
    suspect: tuple[TopicPartition, int]
    """The last of the input records that were going through the functions."""


def _mark(component: str) -> str:
    return hashlib.sha256(component.encode()).hexdigest()[:24]


class CallsFile:
    """The file of one task. `functions` have names in the order of their calls, `inputs` are the task's partitions."""

    def __init__(self, folder: Path, component: str, functions: Sequence[str], inputs: Sequence[TopicPartition]):
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{_mark(component)}.{clock.token_hex(8)}{_SUFFIX}"
        self._functions = list(functions)
        self._inputs = list(inputs)
        self._places: list[Sequence[TopicPartition]] = [()] * len(functions)
        new = self._path.with_suffix(".new")
        self._file = new.open("x+b")
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        self._size = _WORD * (_HEAD + _CALLING * len(functions))
        self._file.truncate(self._size)
        self._map = mmap.mmap(self._file.fileno(), self._size)
        self._numbers = memoryview(self._map).cast("q")
        self._numbers[0] = self._size
        for number in range(len(functions)):
            self.calling(number)[PARTITION] = NOT_CALLING
        self._describe()
        new.rename(self._path)

    def calling(self, number: int) -> Any:
        """Return the three numbers of a function, as `kop.functions.watch` has them. They lie in the file: who calls
        the function writes the current record into them. `number` is the function's index in `functions`.
        """
        first = _HEAD + _CALLING * number
        return self._numbers[first : first + _CALLING]

    def known(self, number: int, places: Sequence[TopicPartition]) -> None:
        """Write to the file which partitions the numbers of a function refer to, each by its index in `places`.
        `number` is the function's index in `functions`.
        """
        self._places[number] = places
        self._describe()

    def piece(self, place: TopicPartition, last: int) -> None:
        """Note in the file that records of the input partition `place` go through the functions now, up to the offset
        `last`, which is one of them.
        """
        self._numbers[1] = self._inputs.index(place)
        self._numbers[2] = last

    def suspect(self) -> tuple[TopicPartition, int]:
        """Return the input partition and the offset that `piece` noted last. If a call ends the process, the record
        that does so comes from an input record up to this one.
        """
        return self._inputs[self._numbers[1]], self._numbers[2]

    def close(self) -> None:
        """Remove the file, so that nobody takes the end of this process for one in a call: no call ends it, or the
        driver was told of the one that does.
        """
        with suppress(OSError):
            self._path.unlink()
        self._file.close()

    def _describe(self) -> None:
        text = json.dumps({"functions": self._functions, "inputs": self._inputs, "places": self._places})
        os.pwrite(self._file.fileno(), text.encode(), self._size)


def ended_calls(folder: Path, component: str) -> list[EndedCall]:
    """Return the calls in which processes with tasks of a component have ended, at most one for each process. `folder`
    has the files of this machine; those of processes that have ended are removed, so that each call is returned once.
    """
    calls = []
    for path in folder.glob(f"{_mark(component)}.*{_SUFFIX}"):
        with suppress(OSError, ValueError, KeyError, IndexError), path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()  # before it is read, so that it is told once
            calls += _read(file)
    return calls


def _read(file: BinaryIO) -> list[EndedCall]:
    data = file.read()
    start = int.from_bytes(data[:_WORD], sys.byteorder)
    described = json.loads(data[start:])
    numbers = memoryview(data[:start]).cast("q")
    topic, partition = described["inputs"][numbers[1]]
    calls = []
    for number, function in enumerate(described["functions"]):
        first = _HEAD + _CALLING * number
        calling = list(numbers[first : first + _CALLING])
        if calling[PARTITION] != NOT_CALLING:
            places: list[TopicPartition] = [(str(name), int(part)) for name, part in described["places"][number]]
            calls.append(EndedCall(function, place_of(calling, places), ((topic, partition), numbers[2])))
    return calls[-1:]  # of several that call each other the last one
