"""What rooms say of themselves for a status page: values that are known, the same that a scrape shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from support.commits import commit
from support.gateway import RawClient, batch, gateway, produce_fields, run

from kop.groups.offsets import Commit


def test_each_room_says_what_it_has_and_a_scrape_shows_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:", node_id="3") as serving:
            gw, server = serving.gateway, serving.server
            await gw.engine.topics.create("t", 2, {})
            client = await RawClient.connect(serving)
            await client.call(0, 9, **produce_fields("t", batch([b"a", b"b", b"c"]), version=9))
            assert await commit(gw.groups, "g", [Commit("t", None, 0, 1)]) == 0
            rooms = gw.groups, gw.transactions, gw.topics, gw.cluster, gw.engine, server
            json.dumps([asdict(room.snapshot()) for room in rooms])  # a page shows plain values

            def shown(name: str, **labels: str) -> float | None:
                return gw.metrics.registry.get_sample_value(name, labels)

            groups = gw.groups.snapshot()
            assert (groups.by_state["Empty"], groups.pending_offsets, groups.waiting_for) == (1, 0, None)
            assert shown("kop_groups", state="Empty") == 1
            topics = gw.topics.snapshot()
            assert (topics.topics, topics.partitions) == (2, 2 + 4)
            assert shown("kop_partitions") == topics.partitions
            assert shown("kop_log_high_watermark", topic="t", partition="0") == 3
            assert (gw.cluster.snapshot().broker_id, gw.cluster.snapshot().others) == (3, ())
            now = server.snapshot()
            assert (now.connections, now.bytes_in) == (1, shown("kop_bytes_in_total"))
            assert now.bytes_out == shown("kop_bytes_out_total") != 0
            transactions = gw.transactions.snapshot()
            assert (transactions.open, transactions.oldest_open_ms, transactions.committed) == (0, 0, 0)
            assert transactions.aborted == {"client": 0, "timeout": 0, "new_instance": 0}
            engine = gw.engine.snapshot()
            assert (engine.healthy, engine.about, engine.losses) == (None, None, None)
            assert shown("kop_storage_writable") == 1
            monkeypatch.setattr(type(gw.engine), "healthy", "the disk is full")
            assert gw.engine.snapshot().healthy == "the disk is full"
            assert shown("kop_storage_writable") == 0

    run(main())
