"""The versions of Pulsar's schemas that records name, as an answer of Fetch tells them to a client that asks.

Owns: the number of the tagged field, its layout, how records of one version are joined into runs.
Must not know: requests and answers, how entries are read, who asks, what a schema is.

Kafka's protocol has no field for them. A Fetch request asks by the tagged field TAG in its body, whatever that holds.
In the answer each partition with such records then has a field of the same number, with what `pack_runs` makes. Servers
that do not know the field step over it (KIP-482), and give none; nor does a partition whose records have no version.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

TAG: Final = 10_001
NO_VERSION: Final = -1
"""The version of records that name none: those of Kafka's producers, and of Pulsar's without a schema."""
_LAYOUT: Final = struct.Struct(">qq")


class SchemaRun(NamedTuple):
    """Records of one version: those from `base_offset` on, up to the base offset of the next run."""

    base_offset: int
    version: int


def add_run(runs: list[SchemaRun], base_offset: int, version: int) -> None:
    """Add records that follow those of the runs: append a run if their version is another than that of the last run.
    Records before the first run have no version.
    """
    if version != (runs[-1].version if runs else NO_VERSION):
        runs.append(SchemaRun(base_offset, version))


def runs_between(runs: Sequence[SchemaRun], first: int, end: int) -> list[SchemaRun]:
    """Return the runs of the records from offset `first` on and before `end`; the first of them may begin before
    `first`.
    """
    base = itemgetter(0)
    return list(runs[max(bisect_right(runs, first, key=base) - 1, 0) : bisect_right(runs, end - 1, key=base)])


def pack_runs(runs: Iterable[SchemaRun]) -> bytes:
    """Encode runs as the tagged field of a Fetch answer."""
    return b"".join([_LAYOUT.pack(base, version) for base, version in runs])


def unpack_runs(field: bytes) -> list[SchemaRun]:
    """Decode the tagged field of a Fetch answer: return the runs in the order of their offsets. ValueError for a field
    of another layout.
    """
    if len(field) % _LAYOUT.size:
        raise ValueError(f"{len(field)} bytes are not runs of {_LAYOUT.size} bytes each")
    return [SchemaRun(base, version) for base, version in _LAYOUT.iter_unpack(field)]
