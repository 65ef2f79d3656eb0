"""The frame of a run under faults: its options, its load, what it leaves and what it says at its end.

Owns: the seed, the folder, the threads of a load, the exit code of a run that could not be done.
Must not know: clients, kinds of faults, what is right.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from confluent_kafka import KafkaException
from rich.console import Console

from conformance.harness.faults import Disturbance, Executor, Fault, Server, nearest
from conformance.progress import ProgressLine
from conformance.servers import StartFailed

SHOWN = 10
"""Anomalies that are printed; all are in a file."""


class Anomaly(Protocol):
    """Something that must not be, as one of the judges found it."""

    @property
    def kind(self) -> str: ...
    @property
    def detail(self) -> str: ...
    def _asdict(self) -> dict[str, Any]: ...


class Length(NamedTuple):
    """Seconds of load and seconds between faults, of a run and of a fast one."""

    seconds: float
    spacing: float
    fast_seconds: float
    fast_spacing: float


def add_options(parser: argparse.ArgumentParser, length: Length) -> None:
    """The options of every run."""
    seconds, fast = f"{length.seconds:g}", f"{length.fast_seconds:g}"
    parser.add_argument("--fast", action="store_true", help=f"{fast} s of load, faults close together")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"of load ({seconds}; fast: {fast})")
    parser.add_argument("--spacing", type=float, metavar="S", help="between faults")
    parser.add_argument("--seed", type=int, metavar="N", help="repeats what clients do and the plan of faults")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="for histories and logs (a new one in /tmp)")


def perform(name: str, options: argparse.Namespace, length: Length, work: Callable[[Path], int]) -> int:
    """Settle the options, and do the work in its folder; the exit code."""
    options.seconds = options.seconds or (length.fast_seconds if options.fast else length.seconds)
    options.spacing = options.spacing or (length.fast_spacing if options.fast else length.spacing)
    options.seed = options.seed if options.seed is not None else secrets.randbelow(10**6)
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"kop-{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, folder {folder}", file=sys.stderr, flush=True)
    try:
        return work(folder)
    except (StartFailed, OSError, KafkaException, subprocess.CalledProcessError) as error:
        print(f"the {name} could not be run: {error}; folder {folder}", file=sys.stderr)
        return 2


def under_faults(
    seconds: float,
    executor: Executor,
    faults: Sequence[Fault],
    progress: ProgressLine,
    state: Callable[[], str],
    *beside: Callable[[threading.Event], None],
) -> None:
    """Let clients work for so long while faults are performed. Each of `beside` goes on until its event is set."""
    done = threading.Event()
    threads = [threading.Thread(target=executor.run, args=(faults, done.wait))]
    threads += [threading.Thread(target=call, args=(done,)) for call in beside]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            if progress.due:
                progress.update(
                    f"{left:4.0f} s left, {state()}, {len(executor.disturbances)} of {len(faults)} faults, "
                    f"last: {executor.current or 'none'}"
                )
            time.sleep(min(left, 1.0))  # the load lasts as long as the run says
    finally:
        done.set()
        for thread in threads:
            thread.join()


def tracebacks(servers: Iterable[Server]) -> list[str]:
    """A gateway that failed inside is a problem, whatever its clients were told."""
    logs = [server.log for server in servers]
    counts = [log.read_text(errors="replace").count("Traceback (most recent call last)") for log in logs]
    return [f"{count} tracebacks in {log}" for count, log in zip(counts, logs, strict=True) if count]


# --- the report


def wide_console(least: int = 110) -> Console:
    """A console that is wide enough for the tables of a run."""
    return Console(width=max(least, shutil.get_terminal_size().columns))


def unperformed(executor: Executor) -> list[str]:
    """What was not broken, or not mended, as problems."""
    return [f"a fault could not be performed: {text}" for text in executor.failures]


def write_plan(path: Path, faults: Iterable[Fault]) -> None:
    path.write_text(json.dumps([fault._asdict() for fault in faults], indent=1))


def counted(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())


def say_faults(disturbances: Iterable[Disturbance]) -> str:
    return counted(Counter(disturbance.kind for disturbance in disturbances)) or "none"


def say_end(console: Console, problems: Iterable[str], anomalies: Sequence[Anomaly], notes: Iterable[str] = ()) -> None:
    """What keeps the run from saying what it should, the first anomalies, and the line that all runs end with."""
    for text in problems:
        console.print(f"[yellow]{text}", highlight=False)
    for note in notes:
        console.print(note, highlight=False)
    for anomaly in anomalies[:SHOWN]:
        fields = anomaly._asdict().items()
        about = " ".join(str(value) for name, value in fields if name not in ("kind", "detail", "at"))
        console.print(f"[red]{anomaly.kind}[/] {about}: {anomaly.detail}", highlight=False)
    kinds = Counter(anomaly.kind for anomaly in anomalies)
    console.print(f"anomalies: {counted(kinds) or 'none'}", style="bold red" if kinds else "bold green")


def write_details(
    path: Path,
    disturbances: Sequence[Disturbance],
    anomalies: Iterable[Anomaly],
    at: Callable[[Any], float],
    more: Callable[[Any], Mapping[str, Any]] = lambda _: {},
) -> None:
    """One JSON object a line: the anomaly, `more` of it, and the fault that was nearest before `at` it."""
    with path.open("w") as out:
        for anomaly in anomalies:
            fault = nearest(disturbances, at(anomaly))
            about = f"{fault.kind} {fault.target}, {at(anomaly) - fault.begin:+.1f} s from its begin" if fault else ""
            out.write(json.dumps({**anomaly._asdict(), **more(anomaly), "fault": about}) + "\n")


def kept(folder: Path, options: argparse.Namespace, failed: bool) -> Path | None:
    """The folder, where somebody wants to look into it; else it is removed."""
    if failed or options.folder is not None:
        return folder
    shutil.rmtree(folder)
    return None


def enter(main: Callable[[], int]) -> NoReturn:
    """Run a command. SIGTERM stops what was started, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
