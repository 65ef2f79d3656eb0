"""Async tests run on uvloop, as the gateway does, within a time limit that works there."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import uvloop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    call = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    mark = pyfuncitem.get_closest_marker("timeout")
    seconds = mark.args[0] - 10 if mark is not None else 170
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(call, seconds))
    return True
