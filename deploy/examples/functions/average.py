"""A windowed average: of the temperatures of each second."""

from typing import Any


def process(readings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the average of a window, of which no message was in another one."""
    temperatures = [reading["celsius"] for reading in readings]
    return {"average": round(sum(temperatures) / len(temperatures), 2), "readings": len(temperatures)}
