"""A user with the rights that docs/spark.md names, and no others, reads and writes exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner
from spark.sink_kit import Sink

from kop.cli.main import cli
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.security.settings import STANDARD_AUTHORIZER
from kop.spark.exactly_once import SinkTask, write_task
from kop.spark.fetching import ReadSettings, read_range
from kop.spark.options import batch_options
from kop.spark.planning import OffsetRange
from kop.spark.producing import ClientTransactions
from kop.spark.write_options import write_options
from kop.testing import Broker

DOCS = Path(__file__).parents[2] / "docs" / "spark.md"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def login(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{MODULE} required username="{user}" password="secret";',
    }


def read(options: Mapping[str, str], count: int) -> list[bytes]:
    made = batch_options({**options, "subscribe": "clicks"})
    client = ReadClient(made.connection.settings, made.connection.patience_ms)
    try:
        settings = ReadSettings(made.fetch, headers=False, fail_on_data_loss=True, poll_timeout_ms=20_000)
        batches = read_range(client, OffsetRange("clicks", None, 0, 0, count), settings)
        return [value for batch in batches for value in batch.column("value").to_pylist()]
    finally:
        client.close()


def test_the_rights_that_the_documentation_names_are_enough(tmp_path: Path) -> None:
    rights = [line.split()[1:] for line in DOCS.read_text().splitlines() if line.startswith("kop acls add User:etl ")]
    assert len(rights) == 5
    settings: dict[str, Any] = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin"}
    with Broker(users={"admin": "secret", "etl": "secret"}, **settings) as broker:
        for topic in ("clicks", "sessions"):
            broker.create_topic(topic)
        broker.produce("clicks", ["a", "b"])
        admin = tmp_path / "admin.properties"
        lines = {"bootstrap.servers": broker.bootstrap} | login("admin")
        admin.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        for right in rights:
            result = CliRunner().invoke(cli, [*right, "--client-config", str(admin)], prog_name="kop")
            assert result.exit_code == 0, result.output
        options = {"kafka.bootstrap.servers": broker.bootstrap} | {
            f"kafka.{key}": value for key, value in login("etl").items()
        }
        values = [value.decode() for value in read(options, 2)]
        to = write_options({**options, "topic": "sessions"}, streaming=False)
        for batch in range(2):
            for task in range(2):
                client = WriteClient(to.connection.settings, to.patience)
                try:
                    described = SinkTask("etl", batch, task, tasks=2)
                    rows = (
                        Sink(broker.bootstrap, "etl", "sessions").rows(values) if not task else list[pa.RecordBatch]()
                    )
                    write_task(described, rows, ClientTransactions(client, described, to.produce))
                finally:
                    client.close()
        written = broker.records("sessions", isolation_level="read_committed")
        assert [record.value for record in written] == [b"a", b"b", b"a", b"b"]
