"""Fault tests: child gateways over a real Pulsar, under load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.pulsar import Pulsar, Urls, fresh_namespace


@pytest.fixture
def fresh(pulsar_urls: Urls) -> Iterator[Pulsar]:
    """A namespace of this test on the run's broker."""
    with fresh_namespace(pulsar_urls) as pulsar:
        yield pulsar
