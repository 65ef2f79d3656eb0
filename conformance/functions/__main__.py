"""Check functions: python -m conformance.functions [--start-kop-pulsar | --start-kafka | ...] [--seed N] [--fast].

Owns: the parts of a run, one after the other on the same server, and what is printed.
Must not know: what a part does, and what is right (oracle.py, leader_oracle.py).

The exit code is 0 where nothing is wrong, 1 with anomalies, 2 where the run could not be done.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from conformance.functions.leading import Leading
from conformance.functions.part import Part
from conformance.functions.replacing import Replacing
from conformance.harness.run import (
    Length,
    add_options,
    enter,
    kept,
    perform,
    say_end,
    say_faults,
    tracebacks,
    wide_console,
    write_details,
    write_plan,
)
from conformance.harness.targets import Target, add_targets, start
from conformance.progress import ProgressLine

LENGTH = Length(seconds=900.0, spacing=3.0, fast_seconds=27.0, fast_spacing=1.2)
SHARES = {"instances": 0.42, "workers": 0.58}
"""The share of the load that each part has, if there are both."""
LEADERS_SPACING = 5.0
"""Seconds between faults of workers, at least: so long nobody leads after a leader was killed."""


def parts_of(options: argparse.Namespace, folder: Path, target: Target) -> dict[str, Replacing | Leading]:
    """Return the parts that are wanted."""
    parts: dict[str, Replacing | Leading] = {}
    for name, share in SHARES.items():
        if options.part not in (None, name):
            continue
        seconds = options.seconds * (share if options.part is None else 1.0)
        place = folder / name
        place.mkdir(exist_ok=True)
        if name == "instances":
            parts[name] = Replacing(Part(options.seed, seconds, options.spacing, options.faults), place, target)
        else:
            spacing = max(LEADERS_SPACING, 2 * options.spacing)
            parts[name] = Leading(Part(options.seed, seconds, spacing, options.faults), place, target)
    return parts


def run(options: argparse.Namespace, folder: Path) -> int:
    """All of it; the exit code."""
    with ExitStack() as stack:
        progress = stack.enter_context(ProgressLine())
        progress.say("the servers start")
        target = start(options, stack, folder)
        parts = parts_of(options, folder, target)
        for name, part in parts.items():
            write_plan(folder / name / "plan.json", part.faults)
            part.all(progress)
        problems = [text for part in parts.values() for text in part.problems]
        problems += tracebacks(target.servers if target.has_tracebacks else ())
    disturbances = [each for part in parts.values() for each in part.executor.disturbances]
    anomalies = [anomaly for part in parts.values() for anomaly in part.anomalies]
    write_details(folder / "anomalies.jsonl", disturbances, anomalies, lambda anomaly: anomaly.at)
    console = wide_console()
    told = [part.report(console) for part in parts.values()]
    console.print(f"faults: {say_faults(disturbances)}")
    for note in target.notes:
        console.print(note)
    say_end(console, problems, anomalies)
    failed = bool(anomalies or problems)
    left = kept(folder, options, failed)
    print(
        f"{', '.join(told)}, {len(disturbances)} faults, {len(anomalies)} anomalies; "
        f"seed {options.seed}, {options.seconds:g} s" + (f"; logs and topics: {left}" if left else "")
    )
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.functions",
        description=__doc__.partition("\n\n")[0],
        epilog="Kinds of faults are in conformance/functions/faults.py and leading.py, and in conformance/checker; "
        "kinds of anomalies in the tables of oracle.py and leader_oracle.py.",
    )
    add_targets(parser)
    parser.add_argument("--part", choices=SHARES, help="this part alone")
    parser.add_argument("--faults", metavar="A,B", type=lambda text: text.split(","), help="these kinds alone")
    add_options(parser, LENGTH)
    options = parser.parse_args()
    return perform("functions", options, LENGTH, lambda folder: run(options, folder))


if __name__ == "__main__":
    enter(main)
