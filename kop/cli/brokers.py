"""`kop brokers`: who serves the cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from kop.address import Address
from kop.cli.common import admin, bootstrap_option, json_option, print_rows

EPILOG = """\b
Examples:
  kop brokers
  kop brokers --bootstrap broker.example:9092 --json"""


@click.command("brokers", epilog=EPILOG)
@json_option
@bootstrap_option
def command(bootstrap: str, as_json: bool) -> None:
    """List the brokers of a cluster: ids, addresses, versions, engines.

    VERSION is the newest version of Kafka whose protocol a broker speaks, ENGINE what keeps the records of a broker
    of kop.
    """
    with admin(bootstrap) as client:
        cluster = client.describe_cluster()
        rows = [
            _row(client, cluster, broker) for broker in sorted(cluster["brokers"], key=lambda b: int(b["broker_id"]))
        ]
    names = ("id", "address", "controller", "cluster_id", "version", "engine")
    heads = (">ID", "ADDRESS", "CONTROLLER", "CLUSTER-ID", "VERSION", "ENGINE")
    print_rows(rows, as_json, dict(zip(names, heads, strict=True)))


def _row(client: Any, cluster: Any, broker: Any) -> dict[str, object]:
    from kafka import errors

    version = engine = None
    number = broker["broker_id"]
    with suppress(errors.KafkaError):  # it is down, or tells nobody
        version = client.get_broker_version_data(number).broker_version_str
        engine = _engine(client, number)
    return {
        "id": number,
        "address": str(Address(broker["host"], broker["port"])),
        "rack": broker["rack"],
        "controller": number == cluster["controller_id"],
        "cluster_id": cluster["cluster_id"],
        "version": version,
        "engine": engine,
    }


def _engine(client: Any, number: int) -> str | None:
    """Return the storage engine of a broker of kop, such as sqlite, by its setting `store`; None for other brokers.
    Raises kafka-python's errors.
    """
    from kafka.admin import ConfigResource, ConfigResourceType

    asked = ConfigResource(ConfigResourceType.BROKER, str(number), ["store"])
    described = client.describe_configs([asked], config_filter="all")["broker"].get(str(number), {})
    store = described.get("store", {}).get("value")
    return None if store is None else str(store).partition(":")[0]
