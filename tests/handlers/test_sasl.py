"""SaslHandshake and SaslAuthenticate where there is no SASL: an answer, not a closed connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gateway import RawClient, gateway, run

from kop.errors import ErrorCode


@pytest.mark.parametrize("version", range(2))
def test_a_handshake_is_illegal_sasl_state_and_the_connection_lives_on(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            answer = await client.call(17, version, mechanism="PLAIN")
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
            assert (await client.call(3, 4, topics=[], allow_auto_topic_creation=False)).brokers

    run(main())


@pytest.mark.parametrize("version", range(3))
def test_authentication_is_illegal_sasl_state_and_the_connection_lives_on(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            answer = await client.call(36, version, auth_bytes=b"\0alice\0secret")
            assert (answer.error_code, answer.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
            assert answer.error_message
            assert (await client.call(3, 4, topics=[], allow_auto_topic_creation=False)).brokers

    run(main())
