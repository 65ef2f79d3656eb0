"""Waiting for what is to come, instead of for a time. The limits only catch what never comes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

SECONDS = 100.0
"""How long anything may take on a slow machine that others share; below pytest's limit, to tell what did not come."""


@overload
async def until(condition: Callable[[], Awaitable[T]], what: str = "", seconds: float = SECONDS) -> T: ...


@overload
async def until(condition: Callable[[], T], what: str = "", seconds: float = SECONDS) -> T: ...


async def until(condition: Callable[[], T | Awaitable[T]], what: str = "", seconds: float = SECONDS) -> T:
    """Wait until `condition()`, or what it awaits, is true; returns that."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        value = await value if inspect.isawaitable(value) else value
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.01)  # what a condition asks has no event


def wait_until(condition: Callable[[], T], what: str = "", seconds: float = SECONDS) -> T:
    """The same where no event loop runs."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or inspect.getsource(condition).strip()}"
        time.sleep(0.01)  # what a condition asks has no event
    return value
