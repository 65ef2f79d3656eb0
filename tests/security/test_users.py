"""Users and their credentials: what is made of a password, and who hears of a change."""

from __future__ import annotations

from base64 import b64decode

import pytest

from kop.security.users import Mechanism, ScramCredential, Users

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


def test_a_credential_is_that_of_rfc_7677() -> None:
    """The server's signature of the RFC's example follows from its server key."""
    import hashlib
    import hmac

    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    made = ScramCredential.of_password(SHA_256, "pencil", 4096, salt)
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    assert hmac.digest(made.server_key, message, "sha256") == b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(made.stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == made.stored_key


@pytest.mark.parametrize("mechanism", Mechanism)
def test_each_credential_has_a_salt_of_its_own_and_shows_no_secret(mechanism: Mechanism) -> None:
    first, second = (ScramCredential.of_password(mechanism, "secret") for _ in range(2))
    assert first.salt != second.salt
    assert first.stored_key != second.stored_key
    assert len(first.stored_key) == {SHA_256: 32, SHA_512: 64}[mechanism]
    assert repr(first) == "ScramCredential(iterations=4096)"
    assert mechanism.text == f"SCRAM-SHA-{'256' if mechanism is SHA_256 else '512'}"


def credential(password: str) -> ScramCredential:
    return ScramCredential.of_password(SHA_256, password, salt=b"salt")


def test_who_listens_hears_of_each_change_and_of_no_other() -> None:
    users, heard = Users(), list[str]()
    users.on_change(heard.append)
    users.put("alice", SHA_256, credential("a"))
    users.put("alice", SHA_256, credential("a"))
    users.put("bob", SHA_256, None)
    assert heard == ["alice"]
    users.put("alice", SHA_256, credential("b"))
    users.put("alice", SHA_512, credential("b"))
    assert users.scram(SHA_256, "alice") == credential("b")
    users.put("alice", SHA_256, None)
    assert users.scram(SHA_256, "alice") is None
    assert list(users.names()) == ["alice"]
    users.put("alice", SHA_512, None)
    assert "alice" not in users
    assert heard == ["alice"] * 5


def test_all_users_are_replaced_by_what_differs() -> None:
    users, heard = Users(), list[str]()
    for name in ("alice", "bob", "carol"):
        users.put(name, SHA_256, credential(name))
    users.on_change(heard.append)
    wanted = {
        ("bob", SHA_256): credential("bob"),
        ("carol", SHA_256): credential("x"),
        ("dave", SHA_512): credential("d"),
    }
    users.replace(wanted)
    assert sorted(heard) == ["alice", "carol", "dave"]
    assert {(name, mechanism): each for name in users.names() for mechanism, each in users.of(name).items()} == wanted
