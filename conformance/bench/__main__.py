"""The benchmark: `python -m conformance.bench [--records N] [--rounds N] [--only kop|kafka] [--json FILE]`.

Both servers run from the start, one of them is under load at a time, and they take turns in every round, so that a
machine that slows down slows both. Each figure is the median of the rounds. What matters are the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from conformance.bench.measure import cpu_seconds, load, machine, resident_mib
from conformance.bench.measure import table as markdown
from conformance.servers import Kafka, Kop, StartFailed

LOADS = [(1, 65_536), (8, 65_536), (1, 1_000_000), (8, 1_000_000)]
RATE = 1000
Figures = dict[str, list[float]]


def measure(name: str, address: str, pid: int, round_number: int, records: int, found: Figures) -> None:
    """One round against one server."""

    def note(what: str, value: float) -> None:
        found.setdefault(f"{name} {what}", []).append(value)
        print(f"  {name:6} {what:34} {value:10.2f}", flush=True)

    for partitions, batch in LOADS:
        topic = f"load-{partitions}-{batch}-{round_number}"
        load("client.py", "create", address, topic, partitions)
        gib = records * 1024 / 2**30
        for what, extra in (("produce", (batch,)), ("consume", ())):
            before = cpu_seconds(pid)
            result = load("client.py", what, address, topic, records, *extra)
            label = f"{what} {partitions}p {batch // 1000}k"
            note(f"{label} MiB/s", result["mib_s"])
            note(f"{label} cpu s/GiB", (cpu_seconds(pid) - before) / gib)
    topic = f"latency-{round_number}"
    load("client.py", "create", address, topic, 1)
    result = load("client.py", "latency", address, topic, 8, RATE)
    note("latency p50 ms", result["p50_ms"])
    note("latency p99 ms", result["p99_ms"])
    note("memory MiB", resident_mib(pid))


def table(found: Figures, servers: list[str]) -> str:
    """The medians side by side, in Markdown."""
    rows = [["", *servers, "kop / Kafka"] if len(servers) > 1 else ["", *servers]]
    for key in dict.fromkeys(key.split(" ", 1)[1] for key in found):
        medians = [statistics.median(found[f"{name} {key}"]) for name in servers]
        digits = 0 if "MiB" in key else 2
        row = [key, *(f"{value:.{digits}f}" for value in medians)]
        if len(servers) > 1:
            row.append(f"{medians[0] / medians[1]:.2f}")
        rows.append(row)
    return markdown(rows)


def main() -> int:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(prog="python -m conformance.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000, help="records of 1 KiB a load (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take the median of (%(default)s)")
    parser.add_argument("--only", choices=["kop", "kafka"], help="one server alone")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    found: Figures = {}
    running: list[tuple[str, str, int]] = []
    with ExitStack() as stack:
        for name, make in (("kop", Kop), ("kafka", Kafka)):
            if options.only in (None, name):
                server = make()
                try:
                    address = stack.enter_context(server)
                except StartFailed as error:
                    print(f"{name} is left out: {error}", file=sys.stderr)
                    continue
                running.append((name, address, server.pid))
        for round_number in range(1, options.rounds + 1):
            print(f"round {round_number} of {options.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
            for name, address, pid in running:
                measure(name, address, pid, round_number, options.records, found)
    print(f"\n{machine()}, median of {options.rounds}, {options.records:,} records of 1 KiB, acks=all\n")
    print(table(found, [name for name, _, _ in running]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0 if running else 1


if __name__ == "__main__":
    sys.exit(main())
