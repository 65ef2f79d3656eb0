"""Pulsar's tokens: checked with Pulsar's key, or else by Pulsar itself.

Owns: which of the two, and Pulsar's forms of a key.
Must not know: how Pulsar is asked, by which mechanism a token came.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from kop import clock
from kop.errors import ConfigError, KopError
from kop.repeats import Repeats
from kop.security.sasl.exchange import ClientIdentity
from kop.security.sasl.oauthbearer import TokenError
from kop.security.settings import SecuritySettings
from kop.security.token_keys import KeySource, KeySources, ReadKeys
from kop.security.tokens import (
    TokenKey,
    TokenRules,
    checked,
    claimed_by,
    identity_of,
    public_key,
    secret_key,
    unchecked_claims,
)
from kop.storage.base import TokenAuthority

log = logging.getLogger(__name__)


class PulsarTokens:
    """The check of Pulsar's tokens. Without keys the authority decides."""

    def __init__(self, keys: Callable[[], tuple[TokenKey, ...]], rules: TokenRules, authority: TokenAuthority) -> None:
        """`keys` returns the keys that are valid now; an empty tuple if there never are any."""
        self._keys = keys
        self._rules = rules
        self._authority = authority
        self._lines = Repeats()

    async def check(self, token: str) -> ClientIdentity:
        """Return the identity that a token of Pulsar gives, by the keys, or without any by asking Pulsar. TokenError if
        the token is not valid, or Pulsar cannot be asked.
        """
        if keys := self._keys():
            return checked(token, keys, self._rules, clock.wall())
        with claimed_by(token, self._rules):
            return await self._asked(token)

    async def _asked(self, token: str) -> ClientIdentity:
        identity = identity_of(unchecked_claims(token), self._rules, clock.wall())
        try:
            good = await self._authority.accepts(token)
        except KopError as error:
            if self._lines.say(error.message, clock.monotonic()) is not None:
                log.error("no token of Pulsar is taken now: %s", error.message)
            raise TokenError("Pulsar cannot be asked now") from None
        if not good:
            raise TokenError("Pulsar does not take it")
        return identity


def pulsar_tokens(settings: SecuritySettings, authority: TokenAuthority | None, sources: KeySources) -> PulsarTokens:
    """Return the check of Pulsar's tokens that the settings ask for. ConfigError if the storage is not Pulsar, or the
    key cannot be read.

    A key in a file is read again and again by `sources`.
    """
    if authority is None:
        raise ConfigError(["kop.pulsar.tokens needs --store pulsar://...: other stores have no tokens"])
    secret, public = settings.kop_pulsar_token_secret_key, settings.kop_pulsar_token_public_key
    if secret and public:
        raise ConfigError(["kop.pulsar.token.secret.key and kop.pulsar.token.public.key are both set: one of them"])
    try:
        keys = _keys(secret or public, _secret if secret else _public, sources)
    except (OSError, ValueError) as error:
        name = "kop.pulsar.token.secret.key" if secret else "kop.pulsar.token.public.key"
        raise ConfigError([f"{name}: {getattr(error, 'strerror', None) or error}"]) from None
    audience = settings.kop_pulsar_token_audience
    rules = TokenRules(
        audiences=(audience,) if audience else (),
        audience_claim=settings.kop_pulsar_token_audience_claim,
        name_claim=settings.kop_pulsar_token_auth_claim,
        namespace_claim=settings.kop_tenant_claim,
        skew=0.0,
    )
    return PulsarTokens(keys, rules, authority)


def _keys(place: str, read: ReadKeys, sources: KeySources) -> Callable[[], tuple[TokenKey, ...]]:
    """Return a function that returns the current keys at a place, which is given in one of Pulsar's forms. OSError or
    ValueError if there are none.
    """
    if not place:
        return tuple
    if place.startswith("data:"):
        given = read(_inline(place))
        return lambda: given
    path = Path(unquote(urlsplit(place).path) if place.startswith("file:") else place)
    keys = read(path.read_bytes())
    source = sources.follow(KeySource(path.absolute().as_uri(), read=read))
    source.keys = keys
    return lambda: source.keys


def _inline(place: str) -> bytes:
    form, comma, text = place.partition(",")
    try:
        if not comma or not form.endswith(";base64"):
            raise ValueError
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is not data:;base64,TEXT") from None


def _secret(content: bytes) -> tuple[TokenKey, ...]:
    return (secret_key(content),)


def _public(content: bytes) -> tuple[TokenKey, ...]:
    load = load_pem_public_key if content.lstrip().startswith(b"-----") else load_der_public_key
    try:
        key = public_key(load(content))
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("it is no public key: DER, as pulsar tokens create-key-pair writes it, or PEM") from None
    if key is None:
        raise ValueError("it is none of RSA from 2048 bits on, EC P-256 to P-521, Ed25519")
    return (key,)
