"""A filter: orders of 100 and more go on, as they are."""

from typing import Any


def process(order: dict[str, Any]) -> dict[str, Any] | None:
    """Return the order, or None for no output."""
    return order if order["amount"] >= 100 else None
