"""The session of Spark that a mesh runs in: how many cores it needs, what is set in it, how it ends at once.

Owns: these settings. Must not know: what a mesh does.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kop import clock

ATTEMPTS: Final = 4
"""The number of tries of a task; `local[N]` would try it once, so that one lost worker would end the query."""
CORES_SECONDS: Final = 60.0
"""The seconds to wait for executors of a cluster, which come one after the other."""
SETTLED_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.1
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
}
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def master_of(given: str | None, needed: int) -> str:
    """Return the master URL for Spark: `given`, or without it as many local threads as there are CPUs, or as are
    `needed` if that is more. `local` means one thread. With local threads, `local[N]` among them, a task is tried up to
    4 times.
    """
    if not given or given == "local":
        cores = max(os.cpu_count() or 1, needed) if not given else 1
        return f"local[{cores},{ATTEMPTS}]"
    match = re.fullmatch(r"local\[(\d+|\*)\]", given)
    return f"local[{match[1]},{ATTEMPTS}]" if match else given


def make_session(name: str, master: str, settings: Mapping[str, str]) -> Any:
    """Start Spark, and return its session, named `name`. `settings` are the user's, and replace those of kop."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 (takes seconds)

    builder: Any = SparkSession.builder.master(master).appName(name)
    for key, value in (_DEFAULTS | (_LOCAL if master.startswith("local") else {}) | dict(settings)).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_here(spark: Any) -> bool:
    """Return if Spark of a session runs locally: its tasks are run by threads of its own JVM, not by a cluster."""
    master = str(spark.conf.get("spark.master", ""))
    return master.startswith("local[") or master == "local"


def cores_of(spark: Any, needed: int, wait: Callable[[float], bool]) -> int:
    """Return the number of cores of a session. On a cluster, wait until those needed are there and no further ones have
    come for 2 s, but 60 s at most: the number may be lower than `needed`.

    `wait` waits for so many seconds, and returns True if it is of no use to wait longer, which ends this, too.
    """
    cores = int(spark.sparkContext.defaultParallelism)
    if is_here(spark):
        return cores
    since = began = clock.monotonic()
    while not wait(_LOOK_SECONDS):
        before, cores = cores, int(spark.sparkContext.defaultParallelism)
        now = clock.monotonic()
        if cores != before:
            since = now
        if now >= began + CORES_SECONDS or (cores >= needed and now >= since + SETTLED_SECONDS):
            break
    return cores


def cores_for(components: int, cores: int, *, others: bool, spare: int = 0) -> int:
    """Return how many of the session's `cores` the tasks of components have; fewer than `components` if there are too
    few.

    `others`: True if there are sources, queries or sinks, for which one core is taken off. `spare`: the number of cores
    that are left to who else works in the session, as far as each component and the others have one then.
    """
    return max(cores - spare, min(cores, components + others)) - others


def end_at_once(spark: Any) -> None:
    """Kill the JVM of a session, with any other java process that is a child of this one, without waiting for its
    queries: nothing that they hold is needed. If there is no such child, stop the session in the ordinary way.
    """
    children = [
        int(number)
        for listed in Path("/proc/self/task").glob("*/children")
        for number in listed.read_text().split()
        if Path(f"/proc/{number}/comm").read_text().strip() == "java"
    ]
    for process in children:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    if not children:
        spark.stop()
