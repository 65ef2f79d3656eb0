"""The reports that the driver of a mesh makes: records of a compacted topic, as plain values.

Owns: the name of the topic, its keys, how a report looks, when a driver counts as gone.
Must not know: sockets, Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

TOPIC: Final = "__kop_meshes"
GROUP_PREFIX: Final = "__kop.mesh/"
"""The group of the drivers of a mesh; who has its partition drives."""
REPORT: Final = "report"
LAYOUT: Final = "layout"
"""The kind of the record with the topics that each function was called with, not read, when the mesh ran last."""
GROUPS: Final = "groups"
"""The consumer groups of the parts that ran last and whose offsets go with them."""
SILENT_SECONDS: Final = 10.0
"""A driver that has said nothing for so long is taken for gone."""
RUNNING: Final = "running"
STARTING: Final = "starting"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
WAITING: Final = "waiting"
"""No driver has run it yet."""


def key(kind: str, full_name: str) -> str:
    """Return the key of a record about a mesh: KIND/TENANT/NAMESPACE/NAME."""
    return f"{kind}/{full_name}"


def split_key(text: str) -> tuple[str, str]:
    """Return the kind of a record and the full name of the mesh that it is about, out of the record's key."""
    kind, _, full_name = text.partition("/")
    return kind, full_name


def encode(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record: its value as JSON, in which what JSON has no form for is a text."""
    return json.dumps(value, separators=(",", ":"), default=str).encode()


def decode(value: bytes) -> dict[str, Any]:
    """Return the content of a record; empty if it is no JSON object, and so is not one of kop's."""
    try:
        decoded = json.loads(value)
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def state_of(report: Mapping[str, Any], now_ms: int) -> str:
    """Return the state of a mesh at `now_ms`, in milliseconds since 1970: the one that the report has, but `gone` if
    that is running or starting and the report is older than 10 s. Empty if the report has none.
    """
    state = str(report.get("state", ""))
    silent = (now_ms - int(report.get("at_ms", 0))) / 1000
    if state in {RUNNING, STARTING} and silent > SILENT_SECONDS:
        return "gone"
    return state


def is_driven(report: Mapping[str, Any], now_ms: int) -> bool:
    """Return if a driver that lives has written this report: in the 10 s before `now_ms`, and not as its last one."""
    silent = (now_ms - int(report.get("at_ms", 0))) / 1000
    return bool(report) and not report.get("ended") and silent <= SILENT_SECONDS


def full_name(text: str) -> str:
    """Return TENANT/NAMESPACE/NAME; a name without them gets public/default."""
    return text if text.count("/") == 2 else f"public/default/{text}"
