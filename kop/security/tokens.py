"""JSON web tokens: which are taken, and whose they are.

Owns: the rules for a token, the keys by which it may be signed, and which algorithms go with which key.
Must not know: where keys come from, how a token came.

A key is used with the algorithms of its own kind alone: a public key is never the secret of an HMAC. `none` is no
algorithm here; `unsecured` is for trying out.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from kop.security.sasl.exchange import LONGEST_NAME, ClientIdentity, NamespaceClaim
from kop.security.sasl.oauthbearer import TokenError
from kop.security.tenants import space_of

if TYPE_CHECKING:
    from jwt.types import Options

LONGEST_TOKEN: Final = 65_536
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON can write and UTF-8 cannot."""
_MOST_KEYS: Final = 100
_LEAST_RSA_BITS: Final = 2048
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_HMAC: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The bytes that a secret has to have for each algorithm."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, and what it may sign."""

    key: Any
    algorithms: tuple[str, ...]
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules for the claims of a token. Times in seconds."""

    issuer: str | None = None
    """None: any, or none."""
    audiences: tuple[str, ...] = ()
    """One of these has to be among the token's; empty: it need not have one."""
    audience_claim: str = "aud"
    name_claim: str = "sub"
    scope_claim: str = "scope"
    namespace_claim: str = ""
    """The claim that says to which namespace its bearer belongs; empty: none does."""
    skew: float = 30.0
    """The seconds by which clocks may differ."""
    longest: float | None = None
    """The most seconds from now to the end of a token; None: it need not end."""


def public_key(key: Any, key_id: str | None = None, algorithm: str | None = None) -> TokenKey | None:
    """Return a public key with the algorithms that fit it, or with the given one alone; None if it is too weak, or of a
    kind that is not supported.
    """
    algorithms: Sequence[str] = ()
    if isinstance(key, RSAPublicKey) and key.key_size >= _LEAST_RSA_BITS:
        algorithms = _RSA
    elif isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        algorithms = (_CURVES[key.curve.name],)
    elif isinstance(key, Ed25519PublicKey):
        algorithms = ("EdDSA",)
    chosen = tuple(each for each in algorithms if algorithm in {None, each})
    return TokenKey(key, chosen, key_id) if chosen else None


def secret_key(secret: bytes) -> TokenKey:
    """Return the key of a secret. ValueError if it is too short for any algorithm."""
    algorithms = tuple(name for name, size in _HMAC.items() if len(secret) >= size)
    if not algorithms:
        raise ValueError(f"a secret of {len(secret)} bytes: 32 are the least")
    return TokenKey(secret, algorithms)


def keys_of_jwks(text: bytes) -> tuple[TokenKey, ...]:
    """Return the keys of a JWKS document that can verify tokens, of its first 100. ValueError if there are none."""
    try:
        listed = json.loads(text)["keys"]
        rows = [row for row in listed if isinstance(row, dict)][:_MOST_KEYS]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("it is no JWKS: JSON with a list of keys") from None
    keys = [key for row in rows if (key := _of_jwk(row)) is not None]
    if not keys:
        raise ValueError(
            f"of its {len(rows)} keys none may sign tokens: RSA from 2048 bits on, EC P-256 to P-521, Ed25519"
        )
    return tuple(keys)


def _of_jwk(row: Mapping[str, Any]) -> TokenKey | None:
    if row.get("kty") not in {"RSA", "EC", "OKP"} or row.get("use", "sig") != "sig":
        return None
    key_id, algorithm = row.get("kid"), row.get("alg")
    try:
        key = jwt.PyJWK({name: value for name, value in row.items() if name != "alg"}).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if hasattr(key, "public_key"):
        key = key.public_key()
    return public_key(
        key, key_id if isinstance(key_id, str) else None, algorithm if isinstance(algorithm, str) else None
    )


def is_of_unknown_key(token: str, keys: Sequence[TokenKey]) -> bool:
    """Return true if the token names the id of a key that is not among these."""
    try:
        key_id = _header(token).get("kid")
    except TokenError:
        return False
    return isinstance(key_id, str) and all(key.key_id != key_id for key in keys)


def checked(token: str, keys: Sequence[TokenKey], rules: TokenRules, now: float) -> ClientIdentity:
    """Return the identity that a token gives, at `now` in seconds since the epoch. TokenError if the token is not
    valid.
    """
    with claimed_by(token, rules):
        return _checked(token, keys, rules, now)


@contextmanager
def claimed_by(token: str, rules: TokenRules) -> Iterator[None]:
    """Add to a TokenError of the block the name that the token gives, which may be false."""
    try:
        yield
    except TokenError as error:
        with suppress(TokenError):
            name = {} if len(token) > LONGEST_TOKEN else unchecked_claims(token).get(rules.name_claim)
            error.claimed = name if isinstance(name, str) else None
        raise


def _checked(token: str, keys: Sequence[TokenKey], rules: TokenRules, now: float) -> ClientIdentity:
    header = _header(token)
    algorithm, key_id = header.get("alg"), header.get("kid")
    fitting = [key for key in keys if algorithm in key.algorithms and (key_id is None or key.key_id in (None, key_id))]
    if not fitting:
        raise TokenError("no key that is known signs with its algorithm and key id")
    for key in fitting:
        try:
            claims = _decoded(token, key, rules)
        except jwt.InvalidSignatureError:
            continue
        except jwt.MissingRequiredClaimError as error:
            raise TokenError(f"it has no {error.claim}") from None
        except jwt.InvalidIssuerError:
            raise TokenError("it has another issuer") from None
        except jwt.InvalidAudienceError:
            raise TokenError("it is for another audience") from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise TokenError("it is malformed") from None
        return identity_of(claims, rules, now)
    raise TokenError("its signature is wrong")


def _decoded(token: str, key: TokenKey, rules: TokenRules) -> Mapping[str, Any]:
    """Return the claims of a token that the key has signed. Times are not checked here but in `identity_of`, which has
    the clock.
    """
    required = [rules.name_claim]
    if rules.longest is not None:
        required.append("exp")
    if rules.issuer is not None:
        required.append("iss")
    for_us = rules.audiences if rules.audience_claim == "aud" else ()
    if rules.audiences:
        required.append(rules.audience_claim)
    options: Options = {
        "require": required,
        "verify_aud": bool(for_us),
        "verify_iss": rules.issuer is not None,
        "verify_exp": False,
        "verify_nbf": False,
        "verify_iat": False,
        "verify_sub": False,
        "verify_jti": False,
    }
    return jwt.decode(
        token,
        key.key,
        algorithms=list(key.algorithms),
        issuer=rules.issuer,
        audience=list(for_us) or None,
        options=options,
    )


def unsecured(token: str, rules: TokenRules, now: float) -> ClientIdentity:
    """Return the identity that an unsigned token gives, at `now` in seconds since the epoch. TokenError if it is not
    valid, or is signed.
    """
    with claimed_by(token, rules):
        if _header(token).get("alg") != "none" or not token.endswith("."):
            raise TokenError("it is signed, and there is no key to check that")
        return identity_of(unchecked_claims(token), rules, now)


def unchecked_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token without a check of its signature, so that they may be false. TokenError if it is
    malformed.
    """
    try:
        text = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, IndexError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise TokenError("it is malformed")
    return claims


def _header(token: str) -> Mapping[str, Any]:
    if len(token) > LONGEST_TOKEN:
        raise TokenError(f"it has {len(token)} characters")
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenError("it is malformed") from None


def identity_of(claims: Mapping[str, Any], rules: TokenRules, now: float) -> ClientIdentity:
    """Return the identity that these claims of a token give, at `now` in seconds since the epoch. TokenError if they
    name nobody, or do not hold by the rules or at that time.
    """
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or _SURROGATE.search(name):
        raise TokenError(f"its claim {rules.name_claim} is no name")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenError("it has another issuer")
    if rules.audiences and not set(rules.audiences) & set(_texts(claims, rules.audience_claim)):
        raise TokenError("it is for another audience")
    _texts(claims, rules.scope_claim)
    ends = _time(claims, "exp")
    if ends is None and rules.longest is not None:
        raise TokenError("it has no exp")
    if ends is not None and ends + rules.skew <= now:
        raise TokenError("it has expired")
    if ends is not None and rules.longest is not None and ends > now + rules.longest + rules.skew:
        raise TokenError(f"its exp is further than {rules.longest:.0f} s away")
    if any((begins := _time(claims, claim)) is not None and begins > now + rules.skew for claim in ("nbf", "iat")):
        raise TokenError("it is of the future: nbf or iat")
    expires_ms = None if ends is None else int((ends + rules.skew) * 1000)
    return ClientIdentity(f"User:{name}", expires_ms, claim=_claim(claims, rules.namespace_claim))


def _claim(claims: Mapping[str, Any], claim: str) -> NamespaceClaim | None:
    value = claims.get(claim) if claim else None
    if value is None:
        return None
    try:
        return NamespaceClaim(space_of(value if isinstance(value, str) else "").name)
    except ValueError:
        raise TokenError(f"its claim {claim} is no namespace TENANT/NAMESPACE") from None


def _time(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    # JSON's integers have any size: one is compared before it is made a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e11 or math.isnan(value):
        raise TokenError(f"its claim {claim} is no time")
    return value


def _texts(claims: Mapping[str, Any], claim: str) -> Sequence[str]:
    value = claims.get(claim)
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TokenError(f"its claim {claim} is neither a text nor a list of texts")
    return texts
