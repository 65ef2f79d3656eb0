"""Times as people write them, ISO 8601 dates and durations, to milliseconds since the epoch, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from kop import clock

_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


def iso_time(milliseconds: int | None) -> str | None:
    """Return a time in ms since the epoch as ISO 8601, to the second; None if there is none."""
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_datetime(text: str) -> int:
    """Return an ISO 8601 date or date and time in ms since the epoch; UTC if it names no zone. ValueError if the text
    is neither.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_duration(text: str, now_ms: int | None = None) -> int:
    """Return the time, in ms since the epoch, that lies an ISO 8601 duration (PT1H30M, P7D) before now. ValueError if
    the text is no duration.
    """
    match = _DURATION.fullmatch(text.strip())
    parts = {name: float(value) for name, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise ValueError(f"{text!r} is no duration such as PT1H30M or P7D")
    now = clock.wall_ms() if now_ms is None else now_ms
    return now - round(sum(_SECONDS[name] * value for name, value in parts.items()) * 1000)


def parse_moment(text: str) -> int:
    """Return a time, or now less a duration, in ms since the epoch. ValueError if the text is neither."""
    return parse_duration(text) if text.strip()[:1] in {"P", "p"} else parse_datetime(text)
