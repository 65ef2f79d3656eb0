"""The first minutes that README.md promises, run word for word: only addresses differ."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from support.pulsar import Pulsar
from support.walk import ROOT, Walk

from kop.pulsar_client.admin import Admin

README = (ROOT / "README.md").read_text()


def blocks(section: str, language: str = "sh") -> list[str]:
    """The blocks of a section of README."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", README, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    return Walk(tmp_path)


def test_sixty_seconds_on_sqlite(walk: Walk) -> None:
    assert "\n`make run` keeps all records in an SQLite database. In another terminal:\n" in README
    other_ports = 'make run ARGS="--listen 127.0.0.1:9093 --http 127.0.0.1:7093"'
    assert f"`{other_ports}`" in README
    (block,) = blocks("Sixty seconds on SQLite")
    serve = other_ports.replace("127.0.0.1:9093", walk.kafka).replace("127.0.0.1:7093", walk.http)
    with (
        walk.running(serve, "kop check --bootstrap"),
        walk.running(block, '{"id": 1}\n', KOP_BOOTSTRAP=walk.kafka) as said,
    ):
        assert f"Everything works: all 14 steps against {walk.kafka}." in said
        assert "orders: created\n" in said
    assert (walk.home / ".local/share/kop/kop.db").exists()


def test_sixty_seconds_over_pulsar(walk: Walk, pulsar: Pulsar) -> None:
    section = "Sixty seconds over Apache Pulsar"
    (settings,) = blocks(section, "")
    in_force = asyncio.run(_settings(pulsar))
    for line in settings.splitlines():
        name, _, value = line.partition("=")
        assert in_force[name].strip("[]").replace(", ", ",") == value
    (block,) = blocks(section)
    assert {"http://pulsar:8080", "pulsar://pulsar:6650"} == set(re.findall(r"\w+://[\w:]+", block))
    block = block.replace("http://pulsar:8080", pulsar.admin_url).replace("pulsar://pulsar:6650", pulsar.service_url)
    ours = {
        "KOP_LISTEN": walk.kafka,
        "KOP_HTTP": walk.http,
        # Beside other tests.
        "KOP_PULSAR_NAMESPACE": pulsar.namespace,
        "KOP_PULSAR_METADATA_NAMESPACE": f"{pulsar.namespace}-kop",
    }
    (clients,) = blocks("Sixty seconds on SQLite")
    with (
        walk.running(block, "kop check --bootstrap", **ours) as served,
        walk.running(clients, '{"id": 1}\n', KOP_BOOTSTRAP=walk.kafka) as said,
    ):
        assert re.search(r"^ok +entry index ", served, re.MULTILINE)
        assert f"all 14 steps against {walk.kafka}." in said


async def _settings(pulsar: Pulsar) -> dict[str, str]:
    async with Admin(pulsar.admin_url) as admin:
        return await admin.broker_config()
