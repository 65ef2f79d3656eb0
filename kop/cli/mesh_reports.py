"""The reports of the drivers of meshes, read from their topic.

Owns: these reads. Must not know: what is shown of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kop import clock


def read_reports(settings: Mapping[str, Any], patience: float) -> dict[str, dict[str, Any]]:
    """Return the last report of each mesh that has one, by its full name; the whole topic of reports is read. Empty if
    there is no such topic. `patience`: the seconds for which requests are tried again.
    """
    from kop.client.keyed_topic import KeyedTopic
    from kop.mesh import records

    with closing(KeyedTopic(settings, records.TOPIC, patience)) as topic:
        there = {records.split_key(key): value for key, value in topic.read().items()}
    return {name: records.decode(value) for (kind, name), value in there.items() if kind == records.REPORT}


def state_of(report: Mapping[str, Any] | None) -> str:
    """Return the state of a mesh as of now by its report: `gone` if its driver was running or starting and has said
    nothing for more than 10 s. Empty if there is no report.
    """
    from kop.mesh import records

    return "" if not report else records.state_of(report, clock.wall_ms())


def is_driven(report: Mapping[str, Any] | None) -> bool:
    """Return if a driver has written this report in the last 10 s, in whatever state the mesh is, and has not ended."""
    from kop.mesh import records

    return records.is_driven(report or {}, clock.wall_ms())


def is_at_work(report: Mapping[str, Any] | None) -> bool:
    """Return if a driver has the mesh and runs it, or is about to begin its queries; False while it starts Spark."""
    from kop.mesh import records

    works = state_of(report) in {records.RUNNING, records.STARTING}
    return works and is_driven(report) and bool((report or {}).get("drives", True))
