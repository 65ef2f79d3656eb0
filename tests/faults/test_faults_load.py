"""Under load: topics and bundles unloaded, brokers and gateways restarted, killed and stopped.

No acknowledged record lost, none twice from an idempotent producer, order kept, offsets unchanged, commits kept.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from faults.fault_kit import Load, gateway, rest, running, say, stored, until
from support.pulsar import OwnBroker, Pulsar, fresh_namespace

_STOPPED = 60.0
"""Seconds for which a broker is stopped."""


def unload_topic(pulsar: Pulsar) -> None:
    for topic in ("load", "plain"):
        rest(pulsar, "PUT", f"persistent/{pulsar.namespace}/{topic}/unload")


def unload_namespaces(pulsar: Pulsar) -> None:
    """Every bundle, those of the gateway's own topics too."""
    for namespace in (pulsar.namespace, f"{pulsar.namespace}-kop"):
        rest(pulsar, "PUT", f"namespaces/{namespace}/unload")


def split_bundle(pulsar: Pulsar) -> None:
    """The bundle of a topic's first partition becomes two, both unloaded."""
    name = f"persistent/{pulsar.namespace}/load-partition-0"
    with urllib.request.urlopen(f"{pulsar.admin_url}/lookup/v2/topic/{name}/bundle", timeout=30) as answer:
        bundle = answer.read().decode().strip('"')
    path = f"namespaces/{pulsar.namespace}"
    before = rest(pulsar, "GET", f"{path}/bundles")["numBundles"]
    rest(pulsar, "PUT", f"{path}/{bundle}/split?unload=true")
    until(lambda: rest(pulsar, "GET", f"{path}/bundles")["numBundles"] > before)


@pytest.mark.timeout(600)
def test_unloads_and_a_killed_gateway_under_load(fresh: Pulsar, tmp_path: Path) -> None:
    served = gateway(tmp_path / "one", fresh)
    with running(served), Load(served.address) as load:
        unload_topic(fresh)
        say(f"flows {load.flows():.1f} s after a topic's unload")
        unload_namespaces(fresh)
        say(f"flows {load.flows():.1f} s after the unload of all bundles")
        split_bundle(fresh)
        say(f"flows {load.flows():.1f} s after the split of a bundle")
        served.kill()
        served.start()
        say(f"flows {load.flows():.1f} s after kill -9 of the gateway")
        load.check([served.address])
        before = stored(served.address, "load")
        served.kill()
        served.start()
        assert stored(served.address, "load") == before, "offsets unchanged"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broker_restarted_killed_and_stopped_under_load(own_broker: OwnBroker, tmp_path: Path) -> None:
    with fresh_namespace(own_broker.start()) as pulsar:
        served = gateway(tmp_path / "one", pulsar)
        with running(served), Load(served.address) as load:
            own_broker.stop()
            own_broker.start()
            say(f"flows {load.flows():.1f} s after a broker's restart")
            own_broker.kill()
            time.sleep(_STOPPED - 20)  # it takes 10 to 20 s to come back
            own_broker.start()
            say(f"flows {load.flows():.1f} s after kill -9 of the broker, which was gone for a minute")
            os.kill(own_broker.pid, signal.SIGSTOP)
            try:
                time.sleep(_STOPPED)  # how long it stands is what is tried
            finally:
                os.kill(own_broker.pid, signal.SIGCONT)
            say(f"flows {load.flows():.1f} s after a broker stood for {_STOPPED:.0f} s")
            load.check([served.address])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_clients_switch_between_two_gateways(fresh: Pulsar, tmp_path: Path) -> None:
    first, second = gateway(tmp_path / "one", fresh, 1), gateway(tmp_path / "two", fresh, 2)
    with running(first, second), Load(f"{first.address},{second.address}") as load:
        until(lambda: load.plain.knows() == {1, 2})
        first.kill()
        say(f"flows {load.flows():.1f} s after kill -9 of one gateway")
        first.start()
        until(lambda: load.plain.knows() == {1, 2})
        second.kill()
        say(f"flows {load.flows():.1f} s after kill -9 of the other")
        second.start()
        until(lambda: load.plain.knows() == {1, 2})
        first.signal(signal.SIGSTOP)
        took = load.flows()
        say(f"flows {took:.1f} s after one gateway was stopped")
        until(lambda: "broker 1 left or does not answer" in second.log)
        time.sleep(5)  # how long it stands is what is tried
        first.signal(signal.SIGCONT)
        say(f"flows {load.flows():.1f} s after it went on")
        load.check([first.address, second.address])
