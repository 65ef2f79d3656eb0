"""How fast the gateway is and what it costs, beside its peers or beside another checkout.

Every server of an engine runs from the start, one is under load at a time, and they take turns in every round, so that
a machine that slows down slows all of them. A ratio is the median, over the rounds, of the ratios within a round; a
figure is the median of the rounds. What matters are the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.bench.engines import KOP, OTHER, Engines, started
from conformance.bench.figures import Run, in_words, line, report
from conformance.bench.loads import QUICK, USUAL
from conformance.bench.measure import ROOT, LoadFailed, machine, resident_mib, twin
from conformance.bench.rows import Row, chosen
from conformance.servers import StartFailed

EPILOG = """\
examples:
  make bench                                        all rows, three quarters of an hour
  make bench ARGS="embedded --quick"                one engine, one short round of each row
  make bench ARGS="--rows 'pulsar-in-1k' --quick --compare ../other"
                                                    one row of two checkouts: under half a minute, with KOP_TEST_PULSAR

Starts an Apache Pulsar and an Apache Kafka (Java 17, and Maven once); KOP_TEST_PULSAR=pulsar://...,http://... names
a Pulsar that runs. CPU is the server's own, by the kernel's account, all its threads.
"""
RunsOfServers = dict[str, list[Run]]


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.bench",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "part", nargs="?", default="all", choices=["all", "pulsar", "embedded"], help="which engine (%(default)s)"
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only these; shell patterns")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--rounds", type=int, metavar="N", help="to take the median of (3; quick: 1; to compare: 4)")
    parser.add_argument("--quick", action="store_true", help="short loads: one figure in half a minute")
    parser.add_argument(
        "--compare", type=Path, metavar="CHECKOUT", help="another checkout, installed in its .venv, instead of peers"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave pulsar-perf and Apache Kafka out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


class ProgressLine:
    """A bar on a terminal; elsewhere a line for every load. Finished rows are printed as they come."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._terminal = console.is_terminal
        columns = (
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(*columns, console=console, disable=not self._terminal)
        self._task = self._progress.add_task("", total=total)

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress:
            yield

    def step(self, text: str) -> None:
        """What comes now."""
        self._progress.update(self._task, description=text)
        if not self._terminal:
            print(f"{text}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)

    def done(self) -> None:
        self._progress.advance(self._task)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


def measure(engines: Engines, row: Row, rounds: int, progress: ProgressLine) -> RunsOfServers:
    """All rounds of a row, by server."""
    runs: RunsOfServers = {}
    for count in range(1, rounds + 1):
        progress.step(f"{row.name}, round {count} of {rounds}")
        for name, run in engines.round(row, count).items():
            runs.setdefault(name, []).append(run)
        progress.done()
    return runs


def main() -> int:
    """Run the benchmark and print the table."""
    options = arguments().parse_args()
    try:
        rows = chosen(options.part, options.rows)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    if options.compare and not options.compare.is_dir():
        print(f"there is no checkout {options.compare}", file=sys.stderr)
        return 2
    other = options.compare and options.compare.resolve()
    sizes = QUICK if options.quick else USUAL
    rounds = options.rounds or (4 if other else 1 if options.quick else 3)
    twins = {KOP: twin(ROOT)} | ({OTHER: twin(other)} if other else {})
    for name, kind in twins.items():
        if kind != "compiled":
            print(f"{name} runs as {kind}: its kop._native is missing, or of other sources", file=sys.stderr)
    began = time.monotonic()
    all_runs: dict[str, RunsOfServers] = {}
    lines, memory, failed = [], [], False
    progress = ProgressLine(len(rows) * rounds)
    with progress.shown():
        for engine in dict.fromkeys(row.engine for row in rows):
            try:
                wanted = [row for row in rows if row.engine == engine]
                with started(wanted, sizes, other, not options.no_peer) as engines:
                    for row in wanted:
                        if why := engines.can(row):
                            progress.say(f"{row.name} is left out: {why}")
                            continue
                        try:
                            by_server = measure(engines, row, rounds, progress)
                        except (LoadFailed, OSError, KafkaException) as error:
                            failed = True
                            progress.say(f"{row.name} failed: {error}")
                            continue
                        all_runs[row.name] = by_server
                        for peer in [name for name in by_server if name != KOP] or ["peer"]:
                            lines.append(line(row, by_server[KOP], by_server.get(peer, []), peer))
                            progress.say(in_words(lines[-1]))
                    for server in engines.servers:
                        memory.append(f"{server.name} {engine} {resident_mib(server.process.pid):.0f} MiB")
            except (StartFailed, LoadFailed, KafkaException) as error:
                failed = True
                progress.say(f"{engine} could not be measured: {error}")
    print(f"{machine()}; {time.strftime('%Y-%m-%d')}; median of {rounds}, loads of {sizes.seconds:g} s,")
    print(f"records of 1 KiB, acks=all; {time.monotonic() - began:.0f} s in all, load {os.getloadavg()[0]:.1f}\n")
    print(report(lines, OTHER if other else "peer"))
    print(f"\ncode: {', '.join(f'{name} {kind}' for name, kind in twins.items())}")
    print(f"memory afterwards: {', '.join(memory)}")
    if options.json:
        kept = {
            row: {name: [asdict(run) for run in runs] for name, runs in by_server.items()}
            for row, by_server in all_runs.items()
        }
        options.json.write_text(json.dumps(kept, indent=1))
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
