"""The process of `kop functions worker`: from its first step to its end.

Owns: signals, how long a start and an end may take, what is said of them.
Must not know: what a worker does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from kop.functions.worker import Worker
from kop.functions.worker_options import WorkerOptions

END_SECONDS: Final = 30.0
"""The most seconds of an end: longer than that of an instance, and of what is told the server."""
START_SECONDS: Final = 5.0
"""The most seconds of the end of a worker that is still being started."""


def run_worker(
    settings: Mapping[str, Any], patience: float, options: WorkerOptions, say: Callable[[str], None]
) -> None:
    """Run a worker until SIGTERM or SIGINT, and end it then, within 30 s. `settings` are kafka-python's, `say` is given
    lines for people. ClientError if it cannot start, with the reason.

    A second signal ends it at once: its instances end by themselves then, and others begin where they have committed.
    """

    async def work() -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        worker = Worker(settings, patience, options)
        starting = asyncio.create_task(worker.start())

        def end(number: int) -> None:
            if over.is_set():
                say(f"worker {options.worker_id} ends at once")
                os._exit(128 + number)
            over.set()
            threading.Thread(
                target=give_up, args=(END_SECONDS if starting.done() else START_SECONDS,), daemon=True
            ).start()

        def give_up(seconds: float) -> None:
            time.sleep(seconds)
            say(f"worker {options.worker_id} has not ended within {seconds:g} s, and ends now")
            os._exit(1)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        ending = asyncio.create_task(over.wait())
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            say(f"worker {options.worker_id} is at http://{worker.address}; Ctrl-C ends it")
            await ending
        else:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
        ending.cancel()
        await worker.close()
        say(f"worker {options.worker_id} has ended")

    asyncio.run(work())
