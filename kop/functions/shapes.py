"""The JSON of Pulsar's REST for functions: what its tools send, and in which shape they want an answer.

Owns: names of Pulsar's fields for status, statistics and state; which fields of an update Pulsar's tools make up.
Must not know: HTTP, workers, where numbers come from.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

_COUNTS: Final = {
    "receivedTotal": "received",
    "processedSuccessfullyTotal": "processed",
    "systemExceptionsTotal": "system_exceptions",
    "userExceptionsTotal": "user_exceptions",
}
"""Fields of Pulsar's statistics, and those of a StatsSnapshot."""
_MADE_UP: Final = {"outputSchemaType": "", "forwardSourceMessageProperty": True, "subscriptionPosition": "Latest"}
"""Fields that Pulsar's tools send with every request, although nobody gave them."""

Json = dict[str, Any]


def config_of_pulsar_tools(config: Json, *, is_update: bool) -> Json:
    """Return a FunctionConfig as its author wrote it: Pulsar's tools turn the whole numbers of `userConfig` into 1.0.

    They also add fields: of an update, those are dropped, and so is the path of a file on their machine.
    """
    given = dict(config)
    if is_update:
        given = {field: value for field, value in given.items() if value is not None and value != _MADE_UP.get(field)}
        given.pop("py", None)
    if isinstance(given.get("userConfig"), dict):
        given["userConfig"] = _whole(given["userConfig"])
    return given


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


# -- status


def instance_status(status: Mapping[str, Any] | None, worker_id: str | None) -> Json:
    """Return the status of an instance in Pulsar's shape; `status` is an InstanceStatus, None if no worker has told of
    it.

    Beside Pulsar's fields it has `at`, the record that is called or was at the end, `since`, `nextStart`, `stderr`,
    `lag`, and `loop`, which is None until the caller, who knows the other functions, fills it in.
    """
    if status is None:
        waits = "no worker has it" if worker_id is None else f"the worker {worker_id} does not tell of it"
        status = {"running": False, "error": waits}
    stats = status.get("stats") or {}
    return {
        "running": bool(status["running"]),
        "error": status.get("error") or "",
        "numRestarts": status.get("restarts", 0),
        "numReceived": stats.get("received", 0),
        "numSuccessfullyProcessed": stats.get("processed", 0),
        "numUserExceptions": stats.get("user_exceptions", 0),
        "latestUserExceptions": _exceptions(stats.get("latest_user_exceptions", ())),
        "numSystemExceptions": stats.get("system_exceptions", 0),
        "latestSystemExceptions": _exceptions(stats.get("latest_system_exceptions", ())),
        "averageLatency": _average(stats.get("latency_sum_ms", 0), stats.get("latency_count", 0)) or 0.0,
        "lastInvocationTime": stats.get("last_invocation_ms") or 0,
        "workerId": worker_id or "",
        "at": status.get("at") or stats.get("at"),
        "since": status.get("since_ms"),
        "stderr": list(status.get("stderr") or ()),
        "nextStart": status.get("next_start_ms"),
        "lag": status.get("lag") or stats.get("lag") or {},
        "loop": None,
    }


def _exceptions(latest: Sequence[Mapping[str, Any]]) -> list[Json]:
    return [{"exceptionString": each["text"], "timestampMs": each["at_ms"]} for each in latest]


def _average(total: float, count: int) -> float | None:
    return total / count if count else None


def function_status(instances: Mapping[int, Json]) -> Json:
    """Return the status of a function in Pulsar's shape, from those of its instances by number."""
    return {
        "numInstances": len(instances),
        "numRunning": sum(status["running"] for status in instances.values()),
        "instances": [{"instanceId": number, "status": status} for number, status in sorted(instances.items())],
    }


# -- statistics


def instance_stats(stats: Mapping[str, Any] | None) -> Json:
    """Return the statistics of an instance in Pulsar's shape; `stats` is a StatsSnapshot, None counts as zeros."""
    given = stats or {}
    return {
        **_totals([given], ""),
        "1min": _totals([given], "_1min"),
        "lastInvocation": given.get("last_invocation_ms") or None,
        "userMetrics": {
            name: total / count if count else 0.0 for name, (count, total) in (given.get("user_metrics") or {}).items()
        },
    }


def function_stats(instances: Mapping[int, Mapping[str, Any] | None]) -> Json:
    """Return the statistics of a function in Pulsar's shape, from the StatsSnapshots of its instances by number."""
    given = [stats or {} for stats in instances.values()]
    return {
        **_totals(given, ""),
        "1min": _totals(given, "_1min"),
        "lastInvocation": max((stats.get("last_invocation_ms") or 0 for stats in given), default=0) or None,
        "instances": [
            {"instanceId": number, "metrics": instance_stats(stats)} for number, stats in sorted(instances.items())
        ],
    }


def _totals(given: Sequence[Mapping[str, Any]], span: str) -> Json:
    totals: Json = {field: sum(stats.get(name + span, 0) for stats in given) for field, name in _COUNTS.items()}
    latency = sum(stats.get(f"latency_sum_ms{span}", 0) for stats in given)
    totals["avgProcessLatency"] = _average(latency, sum(stats.get(f"latency_count{span}", 0) for stats in given))
    return totals


# -- state

_VALUES: Final = ("stringValue", "byteValue", "numberValue")
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


def state_answer(key: str, value: Mapping[str, Any]) -> Json:
    """Return a value of the state in Pulsar's shape; `byteValue` is in base64."""
    return {"key": key, **{name: value.get(name) for name in _VALUES}, "version": value.get("version", 0)}


def state_given(key: str, given: Mapping[str, Any]) -> Json:
    """Return the one value that a request has for a key, under its name: `stringValue`, `byteValue` (base64) or
    `numberValue`, as an integer. ValueError if it has none, or several, or is about another key, or the value is
    malformed: also a number that is not whole, or has no room in 8 bytes.
    """
    if given.get("key") not in {None, "", key}:
        raise ValueError(f"the state is of the key {given['key']}, and the path names {key}")
    values = {name: given[name] for name in _VALUES if given.get(name) is not None}
    if len(values) != 1:
        raise ValueError(f"a state has one of {', '.join(_VALUES)}")
    ((name, value),) = values.items()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number is not (name == "numberValue") or not (is_number or isinstance(value, str)):
        raise ValueError(f"{name} is a {type(value).__name__}")
    if name == "byteValue":
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            raise ValueError("byteValue is no base64") from None
    if name == "numberValue":
        if not _LEAST <= value <= _MOST or value != int(value):  # NaN and infinities are not in between
            raise ValueError(f"numberValue must be a whole number from {_LEAST} to {_MOST}")
        return {name: int(value)}
    return {name: value}


def state_told(number: int | None, value: bytes | None) -> Json:
    """Return a counter as `numberValue`, or the bytes of a value as `stringValue` if they are UTF-8, else in base64 as
    `byteValue`.
    """
    if number is not None:
        return {"numberValue": number}
    data = value or b""
    try:
        return {"stringValue": data.decode()}
    except UnicodeDecodeError:
        return {"byteValue": base64.b64encode(data).decode()}


def state_kept(given: Mapping[str, Any]) -> int | bytes:
    """Return the value of a request, as `state_given` returns it, in the form in which an instance keeps it: a counter,
    or bytes.
    """
    if "numberValue" in given:
        return int(given["numberValue"])
    return base64.b64decode(given["byteValue"]) if "byteValue" in given else str(given["stringValue"]).encode()
