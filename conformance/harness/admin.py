"""Requests of an admin client before a run begins, on a machine that is slow to start its servers.

Owns: that they are made again.
Must not know: what is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

PATIENT_SECONDS = 180.0
_AGAIN = {KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER, KafkaError.KAFKA_STORAGE_ERROR}
"""Errors that may pass. `KafkaError.retriable` speaks of transactions alone."""


def patiently(ask: Callable[[], Iterable[Future[Any]]]) -> None:
    """Ask until all is done, or was done before. KafkaException of what no repetition mends, or not in time.

    librdkafka gives a request up by itself, too, if it is told other addresses of the broker meanwhile.
    """
    end = time.monotonic() + PATIENT_SECONDS
    while True:
        left: KafkaException | None = None
        for future in ask():
            try:
                future.result(60)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if code >= 0 and code not in _AGAIN:
                    raise
                left = error
        if left is None:
            return
        if time.monotonic() > end:
            raise left
        time.sleep(0.5)  # the servers are still starting
