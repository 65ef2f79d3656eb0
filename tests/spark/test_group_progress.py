"""How far queries have read, as offsets of a group and as text."""

from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, errors
from support.waiting import wait_until

from kop.client.write_client import WriteClient
from kop.spark import group_progress
from kop.spark.given import OptionError
from kop.spark.group_progress import (
    GroupProgress,
    PartitionProgress,
    lag_table,
    partitions_of,
    print_lag,
    progress_settings,
)
from kop.testing import Broker

SOURCE = {
    "description": "KafkaV2[Subscribe[orders]]",
    "endOffset": {"orders": {"0": 7, "1": 3}},
    "latestOffset": {"orders": {"0": 9}},
}


def test_partitions_of_the_progress_of_a_query() -> None:
    wanted = [PartitionProgress("orders", 0, 7, 9), PartitionProgress("orders", 1, 3, None)]
    as_object = SimpleNamespace(endOffset=json.dumps(SOURCE["endOffset"]), latestOffset='{"orders": {"0": 9}}')
    assert partitions_of([SOURCE]) == wanted
    assert partitions_of([as_object]) == wanted
    assert [row.lag for row in wanted] == [2, None]


@pytest.mark.parametrize(
    "offset", [None, "", "12", 12, "not JSON", '{"a": 1}', '{"t": {"0": "7"}}', '{"t": {"0": -1}}']
)
def test_sources_of_other_kinds_are_left_out(offset: Any) -> None:
    assert partitions_of([{"endOffset": offset}]) == []


def test_the_lag_as_a_table() -> None:
    assert lag_table(partitions_of([SOURCE])).splitlines() == [
        "TOPIC   PARTITION  OFFSET  END  LAG",
        "orders          0       7    9    2",
        "orders          1       3    -    -",
    ]
    out = io.StringIO()
    print_lag(SimpleNamespace(lastProgress=None), out)
    print_lag(SimpleNamespace(lastProgress={"sources": [SOURCE]}), out)
    assert out.getvalue().startswith("the query has not finished a batch yet\nTOPIC ")


def test_offsets_are_committed_to_a_group(kop_shared_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    kop_shared_broker.create_topic("read-by-spark", 2)
    progress = GroupProgress({"bootstrap_servers": [kop_shared_broker.bootstrap], "client_id": "t"}, "spark-group")
    with caplog.at_level(logging.WARNING, "kop.spark"):
        progress.commit([PartitionProgress("read-by-spark", 0, 5, None), PartitionProgress("deleted", 0, 5, None)])
        progress.commit(
            [PartitionProgress("read-by-spark", 0, 7, None), PartitionProgress("read-by-spark", 1, 6, None)]
        )
        progress.close()
    admin = KafkaAdminClient(bootstrap_servers=kop_shared_broker.bootstrap)
    committed = admin.list_group_offsets({"spark-group": None})["spark-group"]
    admin.close()
    assert {tuple(place): value.offset for place, value in committed.items()} == {
        ("read-by-spark", 0): 7,
        ("read-by-spark", 1): 6,
    }
    assert "the offset of deleted-0 was not committed to spark-group" in caplog.text


def test_a_commit_that_fails_is_tried_again_without_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway may be away when the last batch of an idle query ends."""
    monkeypatch.setattr(group_progress, "RETRY_SECONDS", 0.1)
    with Broker() as broker:
        broker.create_topic("t", 1)
        refused = iter([True, False])
        commit = WriteClient.commit

        def fail(client: WriteClient, group: str, offsets: Any) -> Any:
            if next(refused):
                raise errors.KafkaConnectionError("away")
            return commit(client, group, offsets)

        monkeypatch.setattr(WriteClient, "commit", fail)
        progress = GroupProgress({"bootstrap_servers": [broker.bootstrap], "client_id": "t"}, "again")
        progress.commit([PartitionProgress("t", 0, 5, None)])
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        committed = wait_until(lambda: admin.list_group_offsets({"again": None})["again"], "the commit")
        progress.close()
        admin.close()
    assert [value.offset for value in committed.values()] == [5]


def test_what_waits_is_committed_when_the_process_ends(kop_shared_broker: Broker) -> None:
    """A script with Trigger.AvailableNow ends right behind its query."""
    kop_shared_broker.create_topic("read-by-a-script", 1)
    script = f"""
from kop.spark import group_progress
from kop.spark.group_progress import GroupProgress, PartitionProgress
progress = GroupProgress({{"bootstrap_servers": ["{kop_shared_broker.bootstrap}"], "client_id": "t"}}, "script")
progress.commit([PartitionProgress("read-by-a-script", 0, 5, None)])
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    admin = KafkaAdminClient(bootstrap_servers=kop_shared_broker.bootstrap)
    committed = admin.list_group_offsets({"script": None})["script"]
    admin.close()
    assert [value.offset for value in committed.values()] == [5]


def test_options_of_the_query_may_be_given_but_a_connection_is_not_guessed() -> None:
    query = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "Kafka.Isolation.Level": "read_committed"}
    assert progress_settings(query | {"kafka.compression.type": "zstd"})["bootstrap_servers"] == ["a:1"]
    with pytest.raises(OptionError, match=r"did you mean kafka\.security\.protocol\?"):
        progress_settings(query | {"kafka.securty.protocol": "SSL"})


def test_a_server_that_says_nothing_is_told_of_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING, "kop.spark"):
        settings = {"bootstrap_servers": [f"127.0.0.1:{silent.getsockname()[1]}"], "client_id": "t"}
        progress = GroupProgress(settings, "g", patience=0.2)
        progress.commit([PartitionProgress("t", 0, 5, None)])
        progress.close()
    assert "was not committed to group g" in caplog.text
