"""What becomes of the settings that say how Pulsar is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from storage.engines import policy_of

from kop.cli.common import CliError
from kop.cli.pulsar import ask
from kop.config import Config
from kop.errors import BackendError
from kop.pulsar_client.auth import OAuth2
from kop.storage.pulsar.access import check_access, credentials_of
from kop.storage.pulsar.engine import open_engine
from kop.storage.pulsar.settings import PulsarSettings


def options(**settings: Any) -> PulsarSettings:
    return PulsarSettings(**settings)


@pytest.mark.parametrize("auth", ["very-secret", "tokn:very-secret", "oauth2:very-secret", 'oauth2:{"very-secret":1}'])
def test_credentials_that_do_not_do_are_not_shown(auth: str) -> None:
    with pytest.raises(BackendError, match=r"kop\.pulsar\.auth") as caught:
        credentials_of(options(kop_pulsar_auth=auth))
    assert "very-secret" not in str(caught.value) or auth.endswith(":1}")  # the name of a field is no secret
    assert "very-secret" not in repr(options(kop_pulsar_auth=auth))


ADMIN_URLS = {
    "http://h:8080": True,
    "HTTP://h:8080": True,
    "https://a:8443, http://b:8080": True,
    "https://a:8443,https://b:8443": False,
}


@pytest.mark.parametrize("admin_url", ADMIN_URLS)
@pytest.mark.parametrize("service_url", ["pulsar://h:6650", "pulsar+ssl://h:6651"])
@pytest.mark.parametrize("auth", ["", "token:very-secret"])
def test_credentials_do_not_go_to_rest_in_clear_where_the_service_has_tls(
    service_url: str, admin_url: str, auth: str
) -> None:
    made = options(kop_pulsar_auth=auth)
    if ADMIN_URLS[admin_url] and auth and "ssl" in service_url:
        with pytest.raises(BackendError, match=r"kop\.pulsar\.admin\.url.*clear text.*https") as caught:
            check_access(made, service_url, admin_url)
        assert "very-secret" not in str(caught.value)
    else:
        check_access(made, service_url, admin_url)


async def test_an_engine_does_not_begin_with_credentials_in_clear() -> None:
    with pytest.raises(BackendError, match=r"kop\.pulsar\.admin\.url"):
        await open_engine(
            "pulsar+ssl://127.0.0.1:1",
            "http://127.0.0.1:1",
            policy=policy_of,
            settings=PulsarSettings(kop_pulsar_auth="token:t"),
        )


def test_commands_do_not_send_credentials_in_clear() -> None:
    async def never(admin: object) -> None:
        raise AssertionError("it was asked")

    config = Config.load(overrides={"store": "pulsar+ssl://h:6651", "kop.pulsar.auth": "token:very-secret"}, environ={})
    with pytest.raises(CliError, match="clear text") as caught:
        ask("http://127.0.0.1:1", config, never)
    assert "very-secret" not in str(caught.value)


def test_an_oauth2_issuer_is_met_with_the_authorities_of_the_settings(tmp_path: Path) -> None:
    text = 'oauth2:{"issuer":"https://issuer.example","client_id":"a","client_secret":"very-secret"}'
    auth = credentials_of(
        options(
            kop_pulsar_auth=text,
            kop_pulsar_tls_ca_file="/ca.pem",
            kop_pulsar_tls_cert_file="/cert.pem",
            kop_pulsar_tls_verify_host=False,
        )
    )
    assert isinstance(auth, OAuth2)
    assert auth.tls is not None
    # Its own name is always checked, and it is not shown the certificate that is for Pulsar.
    assert (auth.tls.ca_file, auth.tls.system_too) == ("/ca.pem", True)
    assert (auth.tls.check_hostname, auth.tls.cert_file) == (True, None)
    assert "very-secret" not in repr(auth)
