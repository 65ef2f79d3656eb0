"""The clients of one library, as a process: `python -m conformance.checker.clients FAMILY FILE`.

The first line of stdin is JSON (workload.Settings). Then the clients work. After another line writers end what they
have begun, and stdout gets the line `written`; at the end of stdin everybody ends. FILE gets the history.

Owns: threads, and how a process ends though a client hangs.
Must not know: how a client is driven.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from conformance.checker import aiokafka_clients, confluent_clients
from conformance.checker.recorder import Recorder
from conformance.checker.work import ANSWER_SECONDS, Work
from conformance.checker.workload import Settings

_JOIN_SECONDS = 2 * ANSWER_SECONDS


class _Threads:
    """Daemons: one that hangs must not keep the history of the others."""

    def __init__(self, calls: Iterable[Callable[[], None]]) -> None:
        self.failed = False
        self._threads = [threading.Thread(target=self._run, args=(call,), daemon=True) for call in calls]
        for thread in self._threads:
            thread.start()

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            traceback.print_exc()
            self.failed = True

    def join(self, seconds: float) -> bool:
        """Whether all have ended within that time."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def main() -> int:
    family, path = sys.argv[1], Path(sys.argv[2])
    recorder = Recorder(path)
    work = Work(Settings.read(json.loads(sys.stdin.readline())), recorder)
    clients = {"confluent": confluent_clients, "aiokafka": aiokafka_clients}[family]
    writers, others = _Threads(clients.writing(work)), _Threads(clients.reading(work))

    def watch() -> None:
        sys.stdin.readline()
        work.stop_writing.set()
        sys.stdin.read()
        work.stop.set()

    def tell() -> None:
        work.stop_writing.wait()
        if writers.join(_JOIN_SECONDS):
            print("written", flush=True)

    for call in (watch, tell):
        threading.Thread(target=call, daemon=True).start()
    while not work.stop.wait(0.5):
        recorder.flush()
    ended = others.join(_JOIN_SECONDS) and writers.join(1.0)
    recorder.close()
    if not ended:
        print("some clients did not end, and are here:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
    sys.stderr.flush()
    return int(not ended or writers.failed or others.failed)


if __name__ == "__main__":
    os._exit(main())  # clients' own threads may hang at exit
