"""One namespace, two gateways and a native client for all these tests; every test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pulsar as native
import pytest
from interop.interop_kit import Interop
from support.pulsar import Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway


@pytest.fixture(scope="session")
def interop(pulsar_urls: Urls) -> Iterator[Interop]:
    with ExitStack() as stack:
        # Of its own: gateways give an id to all topics of a namespace, other tests' too.
        pulsar = stack.enter_context(fresh_namespace(pulsar_urls))
        gateway, other = PulsarGateway(pulsar), PulsarGateway(pulsar, "other")
        for each in (gateway, other):
            stack.callback(each.stop)
            each.start()
        client = native.Client(pulsar.service_url, logger=native.ConsoleLogger(native.LoggerLevel.Error))
        stack.callback(client.close)
        yield Interop(pulsar, gateway, other, client)
