"""SaslHandshake and SaslAuthenticate where there is no SASL: an answer, not a closed connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gateway import RawClient, gateway, run

from kop.errors import ErrorCode
from kop.repeats import Repeats


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


def test_handshakes_without_a_login_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            for _ in range(20):
                assert (await client.call(17, 1, mechanism="PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE

    monkeypatch.setattr("kop.handlers.sasl.log_lines", Repeats())
    caplog.set_level("INFO")
    run(main())
    lines = [line for line in caplog.messages if "asked for SASL" in line]
    assert lines == [
        "client 'raw' at 127.0.0.1 asked for SASL, which is not served: This listener does not use SASL: connect with "
        "security.protocol=PLAINTEXT or SSL"
    ]
