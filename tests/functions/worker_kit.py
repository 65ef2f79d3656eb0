"""A worker in a thread of a test, and its REST."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kop.client.properties import connection
from kop.functions.worker import Worker
from kop.functions.worker_options import WorkerOptions


@contextmanager
def working(bootstrap: str, folder: Path, worker_id: str = "w1") -> Iterator[str]:
    """Run a worker beside a broker; gives the URL of its REST."""
    settings = connection({"bootstrap.servers": bootstrap}, f"test-{worker_id}").settings
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        options = WorkerOptions(worker_id=worker_id, folder=folder, port=0, cluster="test")
        worker = Worker(settings, 10.0, options)
        asyncio.run_coroutine_threadsafe(worker.start(), loop).result(90)
        try:
            yield f"http://{worker.address}"
        finally:
            asyncio.run_coroutine_threadsafe(worker.close(), loop).result(90)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
