"""Requests before a run begins are made again until they are answered."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from conformance.harness.admin import patiently


def answered(code: int | None) -> Future[None]:
    future: Future[None] = Future()
    if code is None:
        future.set_result(None)
    else:
        future.set_exception(KafkaException(KafkaError(code)))
    return future


def asked(*rounds: list[int | None]) -> int:
    """Return how often it was asked."""
    left = list(rounds)
    patiently(lambda: [answered(code) for code in left.pop(0)])
    return len(rounds) - len(left)


def test_it_asks_until_all_is_done() -> None:
    again: list[int | None] = [KafkaError.REQUEST_TIMED_OUT, None]
    gone: list[int | None] = [None, -137]  # the handle of a broker is gone
    assert asked(again, gone, [KafkaError.TOPIC_ALREADY_EXISTS, None], [None]) == 3
    with pytest.raises(KafkaException):
        asked([KafkaError.TOPIC_EXCEPTION], [None])
