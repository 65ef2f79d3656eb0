"""ApiVersions: what KoP got wrong first of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gateway import RawClient, gateway, run
from support.waiting import until

from conformance.authorization.world import request_frame
from kop.errors import ErrorCode
from kop.handlers import registry
from kop.handlers.api import ConnectionInfo
from kop.server.request import RequestPipeline
from kop.wire.messages import REQUESTS

FLOOR = {
    0: (3, 9), 1: (4, 12), 2: (1, 6), 3: (0, 9), 8: (2, 8), 9: (1, 7), 10: (0, 3), 11: (0, 7), 12: (0, 4), 13: (0, 4),
    14: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 22: (0, 4),
}  # fmt: skip
"""What every client in use finds a version of its own in."""

KAFKA_4_3 = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9),
    12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7),
    20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4),
    24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4),
    33: (0, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2), 40: (1, 2), 41: (1, 3),
    42: (0, 2), 43: (0, 2), 44: (0, 1), 46: (0, 0),
    47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0),
    65: (0, 0), 66: (0, 2), 74: (0, 1), 75: (0, 0),
}  # fmt: skip
"""What Apache Kafka 4.3.1 answers, for the APIs that are served here."""


def ranges(response: Any) -> dict[int, tuple[int, int]]:
    return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_advertised_ranges_are_kafkas_for_every_api_that_is_served(tmp_path: Path, version: int) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            known = {"client_software_name": "raw", "client_software_version": "1"} if version >= 3 else {}
            return await client.call(18, version, **known)

    response = run(main())
    assert response.error_code == 0
    assert ranges(response) == KAFKA_4_3


@pytest.mark.parametrize("version", [5, 6, 32767])
def test_a_version_above_ours_is_answered_in_version_0_with_our_own_range_alone(tmp_path: Path, version: int) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            client.send_body(18, version, b"\x04new\x021\0some fields that we cannot know")
            _, refused = await client.receive(18, 0)
            assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert ranges(refused) == {18: (0, 4)}
            return await client.call(18, 4, client_software_name="a", client_software_version="1")

    assert run(main()).error_code == 0, "the connection goes on after the downgrade"


def test_an_illegal_software_name_is_invalid_request(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            return await client.call(18, 3, client_software_name="-bad-", client_software_version="1")

    assert run(main()).error_code == ErrorCode.INVALID_REQUEST


def test_little_is_kept_of_a_long_software_name(tmp_path: Path) -> None:
    """Its client need not have logged in."""

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            conn, pipeline = ConnectionInfo("192.0.2.1", "192.0.2.9", 9092), RequestPipeline(serving.gateway)
            software = dict(client_software_name="a" * 400_000, client_software_version="1" * 100_000)
            pipeline.look_at_clocks()
            answer = pipeline.start(memoryview(request_frame(18, 3, software))[4:], conn, owned=True)
            await until(lambda: answer.ready)
            assert answer.error is None
            assert (conn.software_name, conn.software_version) == ("a" * 100, "1" * 100)

    run(main())


def test_every_client_finds_a_version_it_speaks() -> None:
    served = registry.build()
    for key, (low, high) in FLOOR.items():
        assert served[key].min_version <= low, key
        assert served[key].max_version >= high, key


@pytest.mark.parametrize("version", [2, 3, 4])
def test_transactions_of_version_2_are_finalized(tmp_path: Path, version: int) -> None:
    async def main() -> Any:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await RawClient.connect(serving)
            known = {"client_software_name": "raw", "client_software_version": "1"} if version >= 3 else {}
            return await client.call(18, version, **known)

    response = run(main())
    if version < 3:
        return
    assert [(row.name, row.min_version_level, row.max_version_level) for row in response.finalized_features] == [
        ("transaction.version", 2, 2)
    ]
    assert response.finalized_features_epoch == 1
    supported = [(row.name, row.min_version, row.max_version) for row in response.supported_features]
    assert supported == ([("transaction.version", 0, 2)] if version >= 4 else [])


def test_versions_reach_as_far_as_the_codec() -> None:
    for key, api in registry.build().items():
        low, high = REQUESTS[key].valid_versions
        if key == 22:
            high = 5  # version 6 belongs to transactions in two phases (KIP-939), which Kafka 4.3.1 does not serve
        assert (max(low, api.min_version), api.max_version) == (api.min_version, high), REQUESTS[key].__name__
