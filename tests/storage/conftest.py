"""`store` is each engine in turn; `tail_in_time` is for logs over a Pulsar without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.engines import BESIDE, STORES, MemoryStore, PackedStore, PulsarStore, SqliteStore, Store
from storage.sqlite_tools import InterceptedStore
from support.pulsar import fresh_namespace

from kop.storage.pulsar.partition import appends


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        yield SqliteStore(tmp_path)
    elif request.param == "sqlite-segments":
        yield SqliteStore(tmp_path, **BESIDE)
    else:
        kind = PackedStore if request.param == "packed" else PulsarStore
        with fresh_namespace(request.getfixturevalue("pulsar_urls")) as pulsar:
            yield kind(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


@pytest.fixture
def tail_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the tail counts as in time: Pulsar is not asked where an entry lies instead."""
    monkeypatch.setattr(appends, "LATE_TAIL_SECONDS", 3600.0)


@pytest.fixture(params=["rows", "files"])
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> InterceptedStore:
    return InterceptedStore(tmp_path, **(BESIDE if request.param == "files" else {}))
