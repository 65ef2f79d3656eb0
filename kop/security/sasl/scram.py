"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677, KIP-84), on both sides.

Owns: the messages of the exchange, and their proofs.
Must not know: where credentials are kept, requests, sockets.

An unknown user gets the same steps as a known one: a salt that is made of the name under a secret of the cluster, and
the failure at the last step. So nobody learns which users there are. Channel binding is not offered: a client that
asks for it (`p=`) is refused, and the `c=` of its last message has to repeat the header of its first one.

With the extension `tokenauth=true` the user name is the id of a delegation token (KIP-48), and the client is its owner.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from kop.security.sasl.exchange import LONGEST_NAME, AuthenticationError, Exchange, text_of
from kop.security.users import LEAST_ITERATIONS, SALT_BYTES, Mechanism, ScramCredential

if TYPE_CHECKING:
    from kop.security.token_logins import Bearers

HASHES: Final = {mechanism.text: mechanism.hash_name for mechanism in Mechanism}
"""The hash function of each mechanism, by the names of `hashlib`."""
LONGEST_MESSAGE: Final = 4096
"""The most bytes of a client's message: it is kept until the login ends."""
_REFUSED: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
_FIRST: Final = re.compile(r"([^,]*),(?:a=([^,]*))?,((?:m=[^,]*,)?n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+))(?:,(.*))?", re.S)
_FINAL: Final = re.compile(r"(c=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]*)*?),p=([^,]*)", re.S)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class ScramExchange(Exchange):
    """One login. `find` returns the verifier of a user, `secret` is the same on all brokers, `nonce` is fresh. `tokens`
    of None: no client logs in by a delegation token. `host` is the client's address.
    """

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], ScramCredential | None],
        secret: bytes,
        nonce: str,
        tokens: Bearers | None = None,
        host: str = "",
    ) -> None:
        self._host = host
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._find = find
        self._secret = secret
        self._nonce = nonce
        self._tokens = tokens
        self._of_client = ""
        """The client's own part of the nonce."""
        self._name = ""
        self._header = ""
        self._verifier: ScramCredential | None = None
        self._first = ""
        """The first messages of both sides, of which the proof is made; empty before."""

    def is_valid(self) -> bool:
        """Return true if the user still has the password of the login, or the token has not ended."""
        if self.is_by_token:
            token = None if self._tokens is None else self._tokens.valid(self._name)
            return token is not None and token.owner == self.principal
        return self._verifier is not None and self._find(self._name) == self._verifier

    def step(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Return the answer to the client's next message, or an awaitable of it. AuthenticationError if the login has
        failed; for a user that there is not, only at the last message.
        """
        text = text_of(token, self._mechanism, LONGEST_MESSAGE)
        if self.principal is not None:
            raise AuthenticationError(f"a message of {self._mechanism} behind the last one")
        if self._first and self.is_by_token:
            return self._take_final_of_token(text)
        return (self._take_first(text) if not self._first else self._take_final(text)).encode()

    def _take_first(self, text: str) -> str:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationError(f"the first message of {self._mechanism} is malformed")
        binding, authorization, bare, name, nonce, extensions = match.groups()
        if binding != "n":
            raise AuthenticationError(f"{self._mechanism} is served without channel binding: its flag has to be n")
        if bare.startswith("m="):
            raise AuthenticationError(f"{self._mechanism}: the client asks for an extension that is not served")
        self.is_by_token = extensions is not None and "tokenauth=true" in extensions.split(",")
        if self.is_by_token and self._tokens is None:
            raise AuthenticationError("delegation tokens are not served")
        self._name = self.claimed = _unescaped(name)
        if not self._name or len(self._name) > LONGEST_NAME:
            raise AuthenticationError(f"a user name of {len(self._name)} characters")
        if authorization and _unescaped(authorization) != self._name:
            raise AuthenticationError("the authorization id has to be empty or the user name")
        self._header = text[: len(text) - len(bare) - (len(extensions) + 1 if extensions is not None else 0)]
        self._of_client, self._nonce = nonce, nonce + self._nonce
        self._verifier = verifier = None if self.is_by_token else self._find(self._name)
        if verifier is None:
            salt, iterations = self._salt_of_name(), LEAST_ITERATIONS
        else:
            salt, iterations = verifier.salt, verifier.iterations
        answer = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        without_header = text[len(self._header) :]
        self._first = f"{without_header},{answer}"
        return answer

    def _salt_of_name(self) -> bytes:
        return hmac.digest(self._secret, f"{self._mechanism}:{self._name}".encode(), "sha256")[:SALT_BYTES]

    async def _take_final_of_token(self, text: str) -> bytes:
        assert self._tokens is not None
        verifier = await self._tokens.verifier(self._mechanism, self._name, self._salt_of_name(), self._host)
        token = self._tokens.valid(self._name)
        self._verifier = None if token is None else verifier
        answer = self._take_final(text)
        assert token is not None
        self.principal, self.expires_ms = token.owner, token.expires_ms
        return answer.encode()

    def _take_final(self, text: str) -> str:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationError(f"the last message of {self._mechanism} is malformed")
        without_proof, header, nonce, proof_text = match.groups()
        signed = f"{self._first},{without_proof}".encode()
        verifier = self._verifier
        size = hashlib.new(self._hash).digest_size
        stored_key = bytes(size) if verifier is None else verifier.stored_key
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = _from_base64(proof_text)
        client_key = _xor(proof, signature) if len(proof) == size else bytes(size)
        good = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), stored_key)
        # librdkafka before 2.2 puts its own part before the whole nonce once more; Kafka looks at the end alone.
        fresh = nonce in {self._nonce, self._of_client + self._nonce}
        same = fresh and _from_base64(header) == self._header.encode()
        if verifier is None or not good or not same or len(proof) != size:
            raise AuthenticationError(_REFUSED.format(self._mechanism))
        self.principal = f"User:{self._name}"
        return f"v={base64.b64encode(hmac.digest(verifier.server_key, signed, self._hash)).decode()}"


class ScramLogin:
    """The client's side: `first`, then `final` of the server's answer, then `check` of its last one."""

    def __init__(self, mechanism: str, name: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escaped(name)},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """Return the client's last message, which answers the server's first `answer`; the hashing takes milliseconds.
        AuthenticationError if that is malformed.
        """
        match = re.fullmatch(r"r=([^,]+),s=([^,]+),i=([0-9]{1,9})", answer.decode(errors="replace"))
        if match is None or not match[1].startswith(self._nonce) or not int(match[3]):
            raise AuthenticationError("the server's answer is none of SCRAM")
        name = self._hash
        salted = hashlib.pbkdf2_hmac(name, self._password.encode(), _from_base64(match[2]), int(match[3]))
        client_key = hmac.digest(salted, b"Client Key", name)
        without_proof = f"c=biws,r={match[1]}"
        signed = f"{self._bare},{answer.decode()},{without_proof}".encode()
        proof = _xor(client_key, hmac.digest(hashlib.new(name, client_key).digest(), signed, name))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Raise AuthenticationError if the server's last answer does not prove that it knows the verifier of the
        password.
        """
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(answer, expected):
            raise AuthenticationError("the server does not show that it knows the user")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name):
        raise AuthenticationError("a user name with = that stands neither for = nor for a comma")
    return name.replace("=2C", ",").replace("=3D", "=")
