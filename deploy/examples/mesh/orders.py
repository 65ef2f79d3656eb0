"""The functions of the mesh: orders as JSON, with prices, sums of customers, letters about large ones, bills."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> dict[str, Any]:
    """Return an order; raises for what is none."""
    order = json.loads(text)
    return {"id": int(order["id"]), "customer": str(order["customer"]), "item": order["item"], "count": order["count"]}


def price(order: dict[str, Any], context: Any) -> dict[str, Any]:
    """Return an order with its price."""
    prices = context.get_user_config_value("prices")
    return {**order, "price": prices[order["item"]] * order["count"]}


def add_up(order: dict[str, Any], context: Any) -> dict[str, Any]:
    """Return what a customer has spent up to now."""
    context.incr_counter(order["customer"], order["price"])
    return {"customer": order["customer"], "spent": context.get_counter(order["customer"])}


def large(order: dict[str, Any], context: Any) -> dict[str, Any] | None:
    """Return an order if it is large."""
    return order if order["price"] >= context.get_user_config_value("from") else None


def letter(order: dict[str, Any]) -> str:
    """Return a text for the customer of a large order."""
    return f"Dear {order['customer']}, thank you for {order['count']} x {order['item']}!"


def bill(order: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of an order."""
    return {"order": order["id"], "customer": order["customer"], "price": order["price"]}
