"""From what was seen to the table: figures of a run, medians, ratios.

Owns: the arithmetic and the columns.
Must not know: how anything is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.bench.measure import table
from conformance.bench.rows import Row

GIB = 2**30
Figure = Callable[["Run"], float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """One load against one server. `cpu_seconds` is the server's, None where that says nothing.

    `client_cpu_seconds` is in no column: it tells, in the file of all figures, that the client was not the bottleneck.
    """

    seconds: float
    records: float
    requests: float = 0
    bytes: float = 0
    cpu_seconds: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    client_cpu_seconds: float | None = None
    write_seconds: float | None = None
    """The time that writing the records took, where a row has that and the reading of them."""


def rate(run: Run) -> float | None:
    """Records a second."""
    return run.records / run.seconds if run.seconds else None


def write_rate(run: Run) -> float | None:
    """Records written a second."""
    return run.records / run.write_seconds if run.write_seconds else None


def cpu_a_record(run: Run) -> float | None:
    """Microseconds."""
    return _cpu_each(run, run.records)


def cpu_a_request(run: Run) -> float | None:
    """Microseconds."""
    return _cpu_each(run, run.requests)


def _cpu_each(run: Run, count: float) -> float | None:
    return None if run.cpu_seconds is None or not count else run.cpu_seconds / count * 1e6


def cpu_a_gib(run: Run) -> float | None:
    """Seconds for a GiB of values of records."""
    return None if run.cpu_seconds is None or not run.bytes else run.cpu_seconds / run.bytes * GIB


def p50(run: Run) -> float | None:
    """Milliseconds."""
    return run.p50_ms


def p99(run: Run) -> float | None:
    """Milliseconds."""
    return run.p99_ms


RATIOS: list[tuple[str, Figure]] = [("rate", rate), ("CPU", cpu_a_record), ("p99", p99), ("written", write_rate)]
FIGURES: list[tuple[str, Figure, int]] = [
    ("CPU us/record", cpu_a_record, 2),
    ("CPU us/request", cpu_a_request, 0),
    ("CPU s/GiB", cpu_a_gib, 2),
    ("records/s", rate, 0),
    ("p50 ms", p50, 2),
    ("p99 ms", p99, 2),
    ("written/s", write_rate, 0),
]


def median(runs: Sequence[Run], figure: Figure) -> float | None:
    """Of the rounds that have the figure."""
    figures = [value for run in runs if (value := figure(run)) is not None]
    return statistics.median(figures) if figures else None


def ratio(ours: Sequence[Run], theirs: Sequence[Run], figure: Figure) -> float | None:
    """The median, over the rounds, of ours divided by theirs of the same round."""
    ratios = []
    for our, their in zip(ours, theirs, strict=False):  # the last round may have been cut short
        above, below = figure(our), figure(their)
        if above is not None and below:
            ratios.append(above / below)
    return statistics.median(ratios) if ratios else None


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash for one that is not there."""
    return "-" if value is None else f"{value:,.{digits}f}"


def head(other: str) -> list[str]:
    """The columns; ratios to `other` first."""
    return ["", *(f"{name} / {other}" for name, _ in RATIOS), *(name for name, _, _ in FIGURES), other, "client"]


def line(row: Row, ours: Sequence[Run], theirs: Sequence[Run], other: str) -> list[str]:
    """A row: ratios to `other`, then the medians of ours. A latency's rate is given, not measured."""
    steady = row.load == "latency"
    return [
        row.name,
        *(number(None if steady and figure is rate else ratio(ours, theirs, figure), 2) for _, figure in RATIOS),
        *(number(median(ours, figure), digits) for _, figure, digits in FIGURES),
        other if theirs else "-",
        row.client,
    ]


def in_words(line: Sequence[str]) -> str:
    """A row in a line of text: what it has, each figure after its name."""
    peer = line[-2]
    cells = [f"{name} {value}" for name, value in zip(head(peer)[1:-2], line[1:-2], strict=True) if value != "-"]
    return f"{line[0]}: {', '.join(cells)}"


def report(lines: Sequence[Sequence[str]], other: str) -> str:
    """The table in Markdown."""
    return table([head(other), *lines])
