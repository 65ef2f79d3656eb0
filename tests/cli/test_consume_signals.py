"""What commands that wait do with SIGINT and SIGTERM."""

from __future__ import annotations

import signal

import pytest

from kop.cli.common import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_one_interrupts(number: signal.Signals) -> None:
    stop = StopSignals()
    assert not stop.came
    signal.raise_signal(number)
    assert stop.came
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
