"""A pytest plugin: what a test was doing shortly before it meets its time limit, and what the run's Pulsar was doing.

pytest-timeout ends the process of a test that hangs. Under xdist the stacks that it prints then are lost, and each
later test may wait for the same thing. So the stacks of the threads and tasks are written to a file before the limit,
those of the broker too, and the process that started the run prints the file when the worker is gone. A broker that
does not answer any more ends the run.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import pulsar

_EARLIER = 15.0
"""Seconds before the limit; half of a limit that is shorter than twice this."""


def _limit(item: pytest.Item) -> float:
    """Of the test, in seconds."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark is not None else item.config.getini("timeout"))


def _file() -> Path:
    """What this process leaves behind."""
    return pulsar.folder() / f"limit-{os.getpid()}"


def _write(item: pytest.Item) -> None:
    with _file().open("w") as file:
        print(
            f"{item.nodeid} is about to meet its time limit of {_limit(item):g} s. Its threads:", file=file, flush=True
        )
        faulthandler.dump_traceback(file)
        print("Its tasks:", file=file)
        for task in gc.get_objects():
            if isinstance(task, asyncio.Task) and not task.done():
                task.print_stack(limit=12, file=file)
        if pulsar.needed_by(item):
            print("Threads of the run's Pulsar that do something, and its last lines:", file=file, flush=True)
            file.write(pulsar.state_of_the_broker())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write down what the test does, should it come near its limit."""
    limit = _limit(item)
    timer = threading.Timer(max(limit - _EARLIER, limit / 2), _write, (item,))
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
        _file().unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """xdist has lost a worker: say what it was doing, and end the run where its broker is the reason."""
    if not error:
        return
    plugins = node.config.pluginmanager
    reporter = plugins.getplugin("terminalreporter")
    for file in sorted(pulsar.folder().glob("limit-*")):
        reporter.ensure_newline()
        reporter.write_line(file.read_text())
        file.unlink()
    if why := pulsar.broken():
        plugins.getplugin("dsession").shouldstop = why
