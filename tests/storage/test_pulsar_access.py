"""What becomes of the settings that say how Pulsar is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from kop.errors import BackendError
from kop.pulsar_client.auth import OAuth2
from kop.storage.pulsar.access import Access


@pytest.mark.parametrize("auth", ["very-secret", "tokn:very-secret", "oauth2:very-secret", 'oauth2:{"very-secret":1}'])
def test_credentials_that_do_not_do_are_not_shown(auth: str) -> None:
    with pytest.raises(BackendError, match=r"kop\.pulsar\.auth") as caught:
        Access(auth=auth).credentials()
    assert "very-secret" not in str(caught.value) or auth.endswith(":1}")  # the name of a field is no secret
    assert "very-secret" not in repr(Access(auth=auth))


def test_an_oauth2_issuer_is_met_with_the_authorities_of_the_settings(tmp_path: Path) -> None:
    text = 'oauth2:{"issuer":"https://issuer.example","client_id":"a","client_secret":"very-secret"}'
    auth = Access(auth=text, ca_file="/ca.pem", cert_file="/cert.pem", verify_host=False).credentials()
    assert isinstance(auth, OAuth2)
    assert auth._tls is not None
    # Its own name is always checked, and it is not shown the certificate that is for Pulsar.
    assert (auth._tls.ca_file, auth._tls.system_too) == ("/ca.pem", True)
    assert (auth._tls.check_hostname, auth._tls.cert_file) == (True, None)
    assert "very-secret" not in repr(auth)
