"""The throttle time gets into answers that are encoded already: into those of each API, in each version."""

from __future__ import annotations

import pytest

from kop.handlers import registry
from kop.handlers.api import Api
from kop.wire import codec, fetch, produce
from kop.wire.messages import RESPONSES
from kop.wire.throttle_time import place, with_throttle_time

WITHOUT = {17, 18, 27, 36, 55}
"""SaslHandshake, ApiVersions (at no fixed place), WriteTxnMarkers, SaslAuthenticate, DescribeQuorum."""


@pytest.mark.parametrize("api", registry.build().values(), ids=lambda api: str(api.key))
def test_the_time_is_at_its_place(api: Api) -> None:
    response_class = RESPONSES[api.key]
    since = {**dict.fromkeys(WITHOUT, 99), 0: 1, 1: 1, 2: 2, 3: 3, 8: 3, 9: 3, 10: 1, 11: 2, 20: 1, 23: 2}
    for version in range(api.advertised_min, api.max_version + 1):
        at = place(response_class, version)
        if at is None:
            assert version < since.get(api.key, 1)
            continue
        frame = codec.encode_response(7, response_class(version=version))
        (changed,) = with_throttle_time((frame,), at, 123_456)
        assert len(changed) == len(frame), version
        begin = 9 if response_class.flexible_version_q(version) else 8
        assert codec.decode(response_class, version, memoryview(changed), begin).throttle_time_ms == 123_456, version


@pytest.mark.parametrize("version", range(1, 14))
def test_a_produce_has_it_at_its_end_and_keeps_a_longer_one(version: int) -> None:
    response_class = RESPONSES[0]
    at = place(response_class, version)
    assert at is not None
    topic = bytes(16) if version >= 13 else "t"
    frame = produce.encode_response(7, version, [(topic, [produce.ProducePartitionAnswer(0, 0)])], 50)
    for wanted, told in ((40, 50), (60, 60), (2**40, 2**31 - 1)):
        (changed,) = with_throttle_time((frame,), at, wanted)
        message = codec.decode(response_class, version, memoryview(changed), 9 if version >= 9 else 8)
        assert (message.throttle_time_ms, len(message.responses)) == (told, 1)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_a_fetch_of_several_buffers_keeps_its_records(version: int) -> None:
    at = place(RESPONSES[1], version)
    assert at is not None
    answer = fetch.FetchPartitionAnswer(0, 0, 5, 5, 0, [memoryview(b"records")], 7)
    frame = fetch.encode_response(7, version, [("t", [answer])])
    changed = with_throttle_time(frame, at, 9)
    assert [bytes(part) for part in changed[1:]] == [bytes(part) for part in frame[1:]]
    assert changed[0][at : at + 4] == (9).to_bytes(4, "big")
