"""Encoded answers to Metadata, kept until a topic or a broker changes: Spark and Connect ask all the time.

Owns: the answers and the bound on their number and size.
Must not know: what is in an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

_MOST_ENTRIES: Final = 256
_MOST_BYTES: Final = 16 * 1024 * 1024
_LARGEST: Final = 4 * 1024 * 1024


class MetadataCache:
    """The kept answers to Metadata without size and correlation id, all of one version of topics, brokers and
    rights.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._version: Hashable = None
        self._bytes = 0

    def get(self, version: Hashable, key: tuple[Any, ...]) -> bytes | None:
        """Return the answer kept for `key`, None if there is none. If topics, brokers or rights have changed since the
        last call, so that `version` is another one, all answers are dropped.
        """
        if version != self._version:
            self._answers.clear()
            self._version, self._bytes = version, 0
            return None
        return self._answers.get(key)

    def put(self, version: Hashable, key: tuple[Any, ...], answer: bytes) -> None:
        """Keep an answer, unless `version` is not that of the last `get`, or it is larger than 4 MiB. The oldest go if
        there are more than 256 answers, or 16 MiB of them.
        """
        if version != self._version or len(answer) > _LARGEST or key in self._answers:
            return
        self._answers[key] = answer
        self._bytes += len(answer)
        while len(self._answers) > _MOST_ENTRIES or self._bytes > _MOST_BYTES:
            _, old = self._answers.popitem(last=False)
            self._bytes -= len(old)
