"""`python -m conformance`: drives clients of others against a bootstrap address and counts what works.

Needs Python 3.11 and nothing else; installs the clients under conformance/.cache. See conformance/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance import door
from conformance.locking import Lock
from conformance.protocol import Collector, Result
from conformance.report import TARGETS, Gaps, Report
from conformance.runner import run, run_all
from conformance.servers import Kafka, Kop, KopOverPulsar, StartFailed
from conformance.suites import SUITES, Suite


def main() -> int:
    """Parse the command line, run, print; 1 when a case failed that is no known gap, 2 when nothing could run."""
    options = _options()
    by_name = {suite.name: suite for suite in SUITES}
    chosen = [by_name[name] for name in options.client] or [s for s in SUITES if s.fast or not options.fast]
    arguments = ["--fast"] if options.fast else []
    for case in options.case:
        arguments += ["--case", case]
    if options.list:
        return _list(chosen, arguments)
    with contextlib.ExitStack() as stack:
        try:
            bootstrap, target, warnings = _server(options, stack)
            if options.security:
                arguments += ["--security", options.security]
            print(f"{bootstrap} ({target}): {', '.join(suite.name for suite in chosen)}", flush=True)
            begun = time.monotonic()
            report = Report(bootstrap, target, Gaps(target))
            report.collectors = run_all(
                chosen, ["--bootstrap", bootstrap, *arguments], options.jobs, _Progress(report, options.verbose)
            )
            if options.control is not None and report.failed:
                _ask_control(report, by_name, options, stack)
        except StartFailed as error:
            print(error, file=sys.stderr)
            return 2
        if options.json:
            Path(options.json).write_text(json.dumps(report.json(), indent=1) + "\n")
        print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
        if report.failed:
            print("\n".join(["", "what the gateway warned of last:", *(warnings() or ["nothing"])]))
        print(report.text(), flush=True)
    if not any(collector.results for collector in report.collectors):
        return 2
    return 1 if report.failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__.partition("\n\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--bootstrap", metavar="HOST:PORT", help="the server to drive (127.0.0.1:9092)")
    where.add_argument("--start-kop", action="store_true", help="start `kop serve` of this checkout and drive that")
    where.add_argument("--start-kop-pulsar", action="store_true", help="the same over an Apache Pulsar, started, too")
    where.add_argument("--start-kafka", action="store_true", help="start an Apache Kafka and drive that")
    parser.add_argument("--secure", action="store_true", help="clients of a started gateway come by SASL_SSL")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="of a gateway over Pulsar (1)")
    parser.add_argument("--security", default="", metavar="FILE", help="how to log in at that server (security.py)")
    parser.add_argument("--target", choices=TARGETS, help="whose known gaps count (kafka with --start-kafka, else kop)")
    parser.add_argument(
        "--control",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="run what failed against an Apache Kafka too (a started one without an address): "
        "what fails there as well is the client's own",
    )
    parser.add_argument("--client", action="append", default=[], choices=[s.name for s in SUITES], metavar="NAME")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case of each client")
    parser.add_argument("--fast", action="store_true", help="leave out slow cases and clients that need a long build")
    parser.add_argument("--list", action="store_true", help="print the cases and leave")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="clients at a time (2)")
    parser.add_argument("--verbose", action="store_true", help="print every case as it ends, not only what failed")
    options = parser.parse_args()
    if options.secure and not (options.start_kop or options.start_kop_pulsar):
        parser.error("--secure needs --start-kop or --start-kop-pulsar")
    if options.workers > 1 and not options.start_kop_pulsar:
        parser.error("--workers needs --start-kop-pulsar")
    return options


def _server(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[str, str, Callable[[], list[str]]]:
    """Its address, whose known gaps count, and what tells its latest warnings."""
    if options.start_kafka:
        return _kafka(stack), options.target or "kafka", list
    if not (options.start_kop or options.start_kop_pulsar):
        return options.bootstrap or "127.0.0.1:9092", options.target or "kop", list
    kop = KopOverPulsar() if options.start_kop_pulsar else Kop()
    kop.workers = options.workers
    target = options.target or ("kop-pulsar" if options.start_kop_pulsar else "kop")
    lock = None
    if options.secure:
        lock = Lock(kop, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lock-conformance-"))))
    bootstrap = stack.enter_context(kop)
    if lock is not None:
        options.security = str(lock.admit())
    stack.enter_context(door.Door(kop))
    if isinstance(kop, KopOverPulsar):
        os.environ["KOP_SPARK_PULSAR"] = kop.behind  # for suites
    return bootstrap, target, kop.warnings


def _kafka(stack: contextlib.ExitStack) -> str:
    """Start an Apache Kafka, which suites may kill; its address."""
    # It has a folder, so that it has its data again when it was killed.
    kafka = Kafka(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-conformance-"))))
    bootstrap = stack.enter_context(kafka)
    stack.enter_context(door.Door(kafka))
    return bootstrap


def _ask_control(
    report: Report, by_name: dict[str, Suite], options: argparse.Namespace, stack: contextlib.ExitStack
) -> None:
    if options.control:
        os.environ.pop(door.VARIABLE, None)  # that server is not ours to kill
    bootstrap = options.control or _kafka(stack)
    print(f"control {bootstrap}: {report.failed} cases", flush=True)
    for collector in _run_failed(report, by_name, bootstrap):
        report.control |= {result.id: result for result in collector.results.values()}


def _run_failed(report: Report, by_name: dict[str, Suite], bootstrap: str) -> Iterator[Collector]:
    failed: dict[str, list[str]] = {}
    for result in report.results("failed"):
        failed.setdefault(result.client, []).append(result.case)
    for client, cases in failed.items():
        arguments = ["--bootstrap", bootstrap]
        for case in cases:
            arguments += ["--case", case]
        yield run(by_name[client], arguments, lambda _: None)


def _list(chosen: list[Suite], arguments: list[str]) -> int:
    for suite in chosen:
        collector = run(suite, ["--list", *arguments], lambda _: None)
        if collector.missing is not None:
            print(f"{suite.name}: missing: {collector.missing}")
        for case in collector.plan:
            print(f"{suite.name}: {case}")
    return 0


class _Progress:
    """Says at once what failed; on a terminal also how far it is."""

    def __init__(self, report: Report, verbose: bool) -> None:
        self._report = report
        self._verbose = verbose
        self._lock = threading.Lock()
        self._done = 0

    def __call__(self, result: Result) -> None:
        with self._lock:
            self._done += 1
            verdict = self._report.verdict(result)
            if sys.stderr.isatty():
                print(f"\r\x1b[K{self._done} cases  {result.id}"[:100], end="", file=sys.stderr, flush=True)
            if verdict == "failed" or self._verbose:
                if sys.stderr.isatty():
                    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
                print(f"{verdict:7} {result.seconds:6.1f} s  {result.id}  {result.detail}".rstrip(), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
