"""Keystores, truststores and the other `ssl.*` settings: what is taken, and what each mistake reads as."""

from __future__ import annotations

import base64
import logging
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority

from kop.errors import ConfigError
from kop.security.issuing import truststore
from kop.security.keystores import Store
from kop.security.tls import TlsContext, TlsFiles, client_context, server_context

PASSWORD = "of the stores"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pem(ca: Authority) -> str:
    return ca.keystore("broker")


@pytest.fixture(scope="module")
def p12(ca: Authority) -> str:
    return ca.write("broker.p12", ca.issue("broker").pkcs12(ca.issued, PASSWORD))


def keystore(location: str = "", **more: Any) -> Store:
    return Store(kind="keystore", location=location, **more)


def trusted(location: str = "", **more: Any) -> Store:
    return Store(kind="truststore", location=location, **more)


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands in memory, and resume a session if one is given; SSLError of the side that refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session),
    )
    for _ in range(4):
        for side in reversed(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return sides


# -- what is taken


@pytest.mark.parametrize("kind", ["pem", "texts", "pkcs12"])
def test_the_whole_chain_is_shown_and_clients_are_known(ca: Authority, pem: str, p12: str, kind: str) -> None:
    whole = Path(pem).read_text()
    chain, begin, key = whole.partition("-----BEGIN PRIVATE KEY-----")
    stores = {
        "pem": (keystore(pem), trusted(ca.pem)),
        "texts": (keystore(certificates=chain, key=begin + key), trusted(certificates=Path(ca.pem).read_text())),
        "pkcs12": (
            keystore(p12, type="PKCS12", password=PASSWORD),
            trusted(ca.write("trust.p12", truststore(ca.issued, PASSWORD)), type="PKCS12", password=PASSWORD),
        ),
    }
    keys, trust = stores[kind]
    options = TlsFiles(keystore=keys, truststore=trust, client_auth="required")
    server, stored = server_context(options)
    assert [(each.store, each.certificate.subject) for each in stored] == [
        ("keystore", "CN=broker"),
        ("keystore", "CN=ca of tests"),
        ("truststore", "CN=ca of tests"),
    ]
    client, _ = client_context(options)
    of_server, of_client = shake(server, client)
    assert of_server.getpeercert(binary_form=True) == of_client.getpeercert(binary_form=True) is not None


OF_KEYTOOL = (
    "MIID5gIBAzCCA5AGCSqGSIb3DQEHAaCCA4EEggN9MIIDeTCCASAGCSqGSIb3DQEHAaCCAREEggENMIIBCTCCAQUGCyqGSIb3DQEMCgECoIG9MI"
    "G6MGYGCSqGSIb3DQEFDTBZMDgGCSqGSIb3DQEFDDArBBSUNWspbSWHr8iZ/mgnQzJBIeRpcQICJxACASAwDAYIKoZIhvcNAgkFADAdBglghkgB"
    "ZQMEASoEENimerzMvtU27hl/Dj/npv0EUHZbEswSzPV+ZizIUlWoYCFTs/WpZU1Li/akE3BSAn28/wKiet4KAoJpW+D4vDxP/oRVsw+P96EoTQ"
    "IiV8LiCPNI7ydSffLfaX382G25g5cmMTYwEQYJKoZIhvcNAQkUMQQeAgBhMCEGCSqGSIb3DQEJFTEUBBJUaW1lIDE3OTU3OTMwMzQyMjgwggJR"
    "BgkqhkiG9w0BBwagggJCMIICPgIBADCCAjcGCSqGSIb3DQEHATBmBgkqhkiG9w0BBQ0wWTA4BgkqhkiG9w0BBQwwKwQUlxZpRUtkYA6mN5AZxL"
    "+wLVf55J0CAicQAgEgMAwGCCqGSIb3DQIJBQAwHQYJYIZIAWUDBAEqBBBSzpoxSj9TzKgod+3PeXPhgIIBwAsjToq9HCxGpYo16LRJYmIw0sPx"
    "GPZhCpZwT9tvGd8knE1DnEwG3h1vDtaDRntLRulEfXEjo0uTRAaRJW4OoY/kHLROBpd3/e1MiDyAe2rx9CAGdYn1Tt+B3D9nBKLffGjcf1b6JQ"
    "h2a8qfSu+lsvKyQupK7Z3OgmO7fGNX2E4eVudTWNrU1Ifgokv1v0QqgYvHxgOIusutG1UlZJTSM+zOzOQ+MF/Ez9VB+6DpLCBaqfnBn1lnRDpO"
    "Cp/AHgcMUnu7Air0maNmUj47Yg0B1npYKOgfr61qfsweFLmlSlPkH45oknmnZgQ5sL6j2eAzbsn6ZNSXUthzEJcaypbhlyeN0EjR9ixUYximyY"
    "D3/Nd4uiHDU4NcRZyiq7DOiMGN7QR2uw34J1UrbyQ/BPr0GtpIx/UVuW4pal5sy2+Q4U4ft1TcuzZJ66F6vYt1g/RaIAl/1LB4RdAgh/BF+yMP"
    "6cPCCNMvunV7obk2Cdey35bLQ3b6sl/4oYSpFkvBpu6PvaG8AcEGpfP0yg0+PoBIr1fYtTXYiI3cLkaHHMCZLocvH3X62RsoJGUCtCNd4Pr3YJ"
    "OKsTlm9A2pMd6ur5QHT1swTTAxMA0GCWCGSAFlAwQCAQUABCCAPgYK5yYmLshJctuDdW9gjCA18x4LnL0U86sEh6iv1QQUzM94AmVcUU5GySOx"
    "Ie8yi1jLP4UCAicQ"
)
"""Made by `keytool -genkeypair -storetype PKCS12` of Java 17, with the password `changeit`, to hold for 100 years."""


def test_keytools_stores_are_read(ca: Authority) -> None:
    path = ca.write("java.p12", base64.b64decode(OF_KEYTOOL))
    _, stored = server_context(TlsFiles(keystore=keystore(path, type="PKCS12", password="changeit")))
    assert [each.certificate.subject for each in stored] == ["CN=j,C=DE"]


@pytest.mark.parametrize("auth", ["required", "requested"])
def test_certificates_of_clients_are_asked_for(ca: Authority, pem: str, auth: str) -> None:
    server, _ = server_context(TlsFiles(keystore=keystore(pem), truststore=trusted(ca.pem), client_auth=auth))
    without, _ = client_context(TlsFiles(truststore=trusted(ca.pem)))
    if auth == "required":
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            shake(server, without)
    else:
        assert shake(server, without)[0].getpeercert(binary_form=True) is None
    other = Authority(ca.folder, "other")
    for of_client in (other.keystore("stranger"), ca.keystore("late", days=(-3, -2))):
        context = ssl.create_default_context(cafile=ca.pem)
        context.load_cert_chain(of_client)
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(server, context)


@pytest.mark.parametrize("auth", ["none", "requested", "required"])
def test_tls_1_3_resumes_no_session_where_certificates_are_asked_for(ca: Authority, pem: str, auth: str) -> None:
    files = TlsFiles(keystore=keystore(pem), truststore=trusted(ca.pem), enabled_protocols=("TLSv1.3",))
    server, _ = server_context(replace(files, client_auth=auth))
    client, _ = client_context(files)
    of_server, of_client = shake(server, client)
    of_server.write(b"x")
    of_client.read(1)  # tickets come before it
    again, _ = shake(server, client, of_client.session)
    assert again.session_reused == (auth == "none")


def test_a_certificate_by_itself_is_trusted_as_in_java(ca: Authority, pem: str) -> None:
    only_it = ca.write("only.pem", ca.issue("only").pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server_context(TlsFiles(keystore=keystore(pem)))[0], ssl.create_default_context(cafile=only_it))
    itself = ca.write("itself.pem", Path(pem).read_bytes().partition(b"-----END CERTIFICATE-----\n")[0] + END)
    shake(
        server_context(TlsFiles(keystore=keystore(pem)))[0],
        client_context(TlsFiles(truststore=trusted(itself)))[0],
    )


END = b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("suites", "version", "cipher"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-SHA256"),
        (
            "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256",
            "TLSv1.3",
            "TLS_AES_256_GCM_SHA384",
        ),
    ],
)
def test_suites_have_javas_names_and_decide_the_version(
    ca: Authority, pem: str, suites: str, version: str, cipher: str
) -> None:
    server, _ = server_context(TlsFiles(keystore=keystore(pem), cipher_suites=tuple(suites.split(","))))
    client, _ = client_context(TlsFiles(truststore=trusted(ca.pem)))
    client.set_ciphers("ALL:@SECLEVEL=0")
    of_server, _ = shake(server, client)
    assert (of_server.version(), (of_server.cipher() or [None])[0]) == (version, cipher)


# -- what is wrong


def mistakes(ca: Authority, pem: str, p12: str) -> list[tuple[TlsFiles, str]]:
    other = ca.issue("other")
    good = ca.issue("good")
    swapped = ca.write("swapped.pem", good.pem + other.key_pem)
    jks = ca.write("store.jks", b"\xfe\xed\xfe\xed\0\0\0\2")
    text = ca.write("text.txt", b"hello")
    empty = ca.write("empty.pem", b"-----BEGIN NOTHING-----\n")
    keyless = ca.write("keyless.p12", truststore(ca.issued, PASSWORD))
    keys = keystore(pem)
    required = TlsFiles(keystore=keys, client_auth="required")
    converted = f"keytool -importkeystore -srckeystore {jks} -destkeystore {jks}.p12 -deststoretype PKCS12, then set "
    expired, early = ca.keystore("expired", days=(-3, -2)), ca.keystore("early", days=(1, 2))
    return [
        (TlsFiles(), "TLS needs ssl.keystore.location"),
        (TlsFiles(keystore=keystore("/no/such")), "ssl.keystore.location /no/such: there is no such file"),
        (TlsFiles(keystore=keystore(text)), "it is not PEM"),
        (TlsFiles(keystore=keystore(empty)), "a certificate with its key is wanted"),
        (TlsFiles(keystore=keystore(ca.pem)), "there is no key in it"),
        (TlsFiles(keystore=keystore(swapped)), "the key is not the one of the certificate"),
        (TlsFiles(keystore=keystore(expired)), "the certificate 'CN=expired' has expired"),
        (TlsFiles(keystore=keystore(early)), "the certificate 'CN=early' is not valid yet"),
        (TlsFiles(keystore=keystore(pem, certificates="x")), "are both given"),
        (TlsFiles(keystore=keystore(certificates="x")), "ssl.keystore.certificate.chain and ssl.keystore.key go"),
        (TlsFiles(keystore=keystore(certificates="x", key="y", type="PKCS12")), "ssl.keystore.type is PKCS12"),
        (TlsFiles(keystore=keystore(pem, password="x")), "the password of its key is ssl.key.password"),
        (TlsFiles(keystore=keystore(jks)), f"{converted}ssl.keystore.type=PKCS12"),
        (TlsFiles(keystore=keystore(jks, type="PKCS12")), f"-srckeystore {jks} -destkeystore"),
        (TlsFiles(keystore=keystore(pem, type="PKCS12")), "it is PEM: set ssl.keystore.type=PEM"),
        (TlsFiles(keystore=keystore(text, type="PKCS12")), "it is not PKCS12"),
        (TlsFiles(keystore=keystore(p12)), "it is not PEM"),
        (TlsFiles(keystore=keystore(p12, type="PKCS12")), "ssl.keystore.password is missing"),
        (TlsFiles(keystore=keystore(p12, type="PKCS12", password="x")), "ssl.keystore.password is wrong"),
        (TlsFiles(keystore=keystore(keyless, type="PKCS12", password=PASSWORD)), "no key with its certificate"),
        (required, "ssl.client.auth=required needs ssl.truststore.location"),
        (replace(required, truststore=trusted(text)), "it is not PEM"),
        (replace(required, truststore=trusted(jks)), f"{converted}ssl.truststore.type=PKCS12"),
        (replace(required, truststore=trusted(empty)), "there is no certificate in it"),
        (replace(required, truststore=trusted(ca.pem, password="x")), "ssl.truststore.password is for"),
        (replace(required, truststore=trusted(keyless, type="PKCS12", password="x")), "ssl.truststore.password is w"),
        (TlsFiles(keystore=keys, enabled_protocols=("TLSv1.1",)), "ssl.enabled.protocols has to be of"),
        (TlsFiles(keystore=keys, enabled_protocols=()), "ssl.enabled.protocols has to be of"),
        (TlsFiles(keystore=keys, cipher_suites=("TLS_NO_SUCH", "AES128-SHA")), "has TLS_NO_SUCH, not known here"),
        (TlsFiles(keystore=keys, cipher_suites=("ALL",)), "has ALL, not known here"),
        (TlsFiles(keystore=keys, cipher_suites=("TLS_AES_256_GCM_SHA384",)), "of TLSv1.3 all or none can be had"),
        (
            TlsFiles(keystore=keys, cipher_suites=("AES128-SHA",), enabled_protocols=("TLSv1.3",)),
            "has none of the versions in ssl.enabled.protocols",
        ),
    ]


def test_each_mistake_is_named_and_no_secret_is(ca: Authority, pem: str, p12: str) -> None:
    for options, why in mistakes(ca, pem, p12):
        with pytest.raises(ConfigError) as caught:
            TlsContext("SECURE", options, server_context)
        (line,) = caught.value.problems
        assert line.startswith("listener SECURE: "), line
        assert why in line
        assert PASSWORD not in line + repr(options)


def test_a_key_with_a_password(ca: Authority) -> None:
    key = ca.folder / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-v2", "aes256", "-passout", f"pass:{PASSWORD}", "-out", str(key)],
        input=(made := ca.issue("locked")).key_pem,
        check=True,
    )
    store = keystore(ca.write("locked.pem", made.pem + key.read_bytes()))
    TlsContext("SECURE", TlsFiles(keystore=store, key_password=PASSWORD), server_context)
    for wrong, why in (("", "is missing"), ("wrong", "is wrong")):
        with pytest.raises(ConfigError, match=f"ssl.key.password {why}"):
            TlsContext("SECURE", TlsFiles(keystore=store, key_password=wrong), server_context)


# -- changes, and the time that is left


def test_a_changed_truststore_counts_and_a_wrong_keystore_does_not(
    ca: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, trust = tmp_path / "keys.pem", tmp_path / "trust.pem"
    keys.write_bytes(Path(ca.keystore("a")).read_bytes())
    trust.write_bytes(ca.issued.pem)
    options = TlsFiles(keystore=keystore(str(keys)), truststore=trusted(str(trust)), client_auth="required")
    listener, caller = TlsContext("S", options, server_context), TlsContext("S", options, client_context)
    before = listener.context, caller.context
    for context in (listener, caller):
        context.look()
    assert (listener.context, caller.context) == before

    def subjects(context: TlsContext) -> list[str]:
        return [each.certificate.subject for each in context.certificates]

    other = Authority(tmp_path, "other")
    trust.write_bytes(other.issued.pem)
    for context in (listener, caller):
        context.look()
        assert subjects(context) == ["CN=a", "CN=ca of tests", "CN=other of tests"]
    trust.write_bytes(ca.issued.pem)
    keys.write_bytes(Path(ca.keystore("b", days=(-3, -2))).read_bytes())
    before = listener.context, caller.context
    caplog.clear()
    for context in (listener, caller):
        for _ in range(3):
            context.look()
    assert (listener.context, caller.context) == before
    assert [text.partition(": ")[2] for text in caplog.messages if "old content" in text] == [
        f"ssl.keystore {keys}: the certificate 'CN=b' has expired"
    ] * 2


def test_certificates_that_end_soon_are_told_once_a_day(
    ca: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ca.keystore("soon", days=(-1, 20))
    context = TlsContext("S", TlsFiles(keystore=keystore(store)), server_context)
    real = context.certificates[0].certificate.ends - 20 * 86_400
    told = []
    with caplog.at_level(logging.WARNING):
        for days in (0, 5, 6.5, 6.6, 7.6, 21):
            caplog.clear()
            monkeypatch.setattr("kop.clock.wall_ns", lambda days=days: int((real + days * 86_400) * 1e9))
            context.look()
            told += [text for text in caplog.messages if "CN=soon" in text]
    assert [text.partition(" of ssl.keystore ")[2] for text in told] == [
        "ends in 13.5 days",
        "ends in 12.4 days",
        "has expired",
    ]
