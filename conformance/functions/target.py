"""The server of a run, as options name it.

Owns: these options.
Must not know: what is run on it.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from conformance.harness.targets import Target, embedded, given, kafka, over_pulsar


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a server, and what is broken."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--bootstrap", metavar="HOST:PORT", help="a server that runs; nothing of it is broken")
    where.add_argument("--start-kop", action="store_true", help="a gateway with the embedded engine (as without this)")
    where.add_argument(
        "--start-kop-pulsar", action="store_true", help="a gateway over an Apache Pulsar that it starts (Java, Maven)"
    )
    where.add_argument("--start-kafka", action="store_true", help="an Apache Kafka, as the control (Java, Maven)")
    parser.add_argument("--faults", metavar="A,B", type=lambda text: text.split(","), help="these kinds alone")


def target_of(options: argparse.Namespace, stack: ExitStack, folder: Path) -> Target:
    """Start the server that is named. StartFailed."""
    if options.bootstrap:
        return given(options.bootstrap)
    if options.start_kafka:
        return kafka(stack, folder)
    if options.start_kop_pulsar:
        return over_pulsar(stack, folder, 1, restart=False)
    return embedded(stack, folder)
