"""The declaration of a room's settings, and their possible values: addresses, numbers of some bits, lists.

Owns: the base of the rooms' settings; reading and checking one value. What is wrong with it is a ValueError with a line
for people.
Must not know: which settings there are.

A room declares in its `settings.py` a class of `Settings`, whose fields are made by `setting`. A field that is not made
so is no setting for people: the room's code and tests give it. The attribute of a setting is its name with `_` for `.`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from kop.address import Address, NamedAddress, parse_address

PROTOCOLS: Final = ("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT")
"""The protocols that may be spoken on a listener, by Kafka's names."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The mechanisms of SASL that there are."""
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class Settings(BaseModel):
    """The settings of a room, checked when they are made of texts, and immutable."""

    # A class is built when something is checked by it first: each command loads all, and checks by one alone.
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, populate_by_name=True, defer_build=True
    )

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Return the fields that `repr` shows, without the values of secrets."""
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            yield name, "[hidden]" if field is not None and "password" in field.metadata and value else value

    def problems(self) -> Iterable[str]:
        """Return a line for each contradiction between settings. A subclass that has some adds them to those of
        `super`.
        """
        return ()


def setting(
    name: str, default: Any, doc: str, *, by_listener: bool = False, by_mechanism: bool = False, **limits: Any
) -> Any:
    """Declare a setting: return pydantic's field for it. A `default` that is made of the settings before it is a
    function of these; `limits` are pydantic's.

    Kafka's settings have Kafka's names; ours begin with `kop.`, or have no dot. With `by_listener` a listener may have
    a value of its own, which is given with `listener.name.NAME.` before the name; with `by_mechanism` too each of its
    mechanisms, with `listener.name.NAME.MECHANISM.`.
    """
    extra: dict[str, Any] = {"by_listener": by_listener or by_mechanism, "by_mechanism": by_mechanism}
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, alias=name, description=doc, json_schema_extra=extra, **limits)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting as `kop config` and DescribeConfigs show it; `default` and `current` as text, "" for none.

    `current` of a secret that is set is hidden.
    """

    name: str
    type: str
    """The type of the value by Kafka's names: boolean, int, long, double, string, list, or password for a secret."""
    default: str
    current: str
    origin: str
    """The origin of the present value: default, flag, or the name of the variable or file that set it."""
    doc: str
    kafka: bool
    """True if the setting's name is one of Kafka's, false if it is one of kop's own."""
    env: str
    """The environment variable that sets it; "" if none does."""


def _items(value: Any) -> Any:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _addresses(value: Any) -> Any:
    return tuple(parse_address(item) if isinstance(item, str) else item for item in _items(value))


def _address_or_none(value: Any) -> Any:
    if isinstance(value, str):
        return parse_address(value) if value.strip() else None
    return value


def _empty_is_none(value: Any) -> Any:
    return None if value == "" else value


def _some(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("must not be empty")
    return value


def _store(value: str) -> str:
    scheme, colon, path = value.partition(":")
    if scheme in {"pulsar", "pulsar+ssl"} and path.startswith("//") and len(path) > 2:
        return value
    if value == "memory:":
        return value
    if not colon or scheme != "sqlite" or not path:
        raise ValueError("must be sqlite:PATH, memory:, pulsar://HOST:PORT or pulsar+ssl://HOST:PORT")
    return f"sqlite:{os.path.expanduser(path)}"


def _admin_url(value: str) -> str:
    for part in value.split(","):
        if not re.fullmatch(r"\s*https?://(\[[0-9a-fA-F:.]+\]|[-\w.]+)(:[0-9]{1,5})?/?\s*", part):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT, without a user (see kop.pulsar.auth)")
    return value


def _namespace(value: str) -> str:
    if not re.fullmatch(r"[-\w.=:]+/[-\w.=:]+", value):
        raise ValueError("must be TENANT/NAMESPACE")
    return value


def _advertise(value: tuple[Address, ...], info: ValidationInfo) -> tuple[Address, ...]:
    listeners = len(info.data.get("listen", value))
    if len(value) not in {0, 1, listeners}:
        raise ValueError(f"must name one address, or one for each of the {listeners} in listen")
    if any(not address.host or address.host in {"0.0.0.0", "::"} for address in value):
        raise ValueError("must be an address that clients can connect to, not a wildcard")
    return value


def _listeners(value: Any) -> Any:
    return tuple(_listener(item) if isinstance(item, str) else item for item in _items(value))


def _listener(text: str) -> NamedAddress:
    name, scheme, address = text.partition("://")
    if not scheme or not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise ValueError(f"must be NAME://HOST:PORT, got {text!r}")
    return NamedAddress(name.upper(), parse_address(address))


def _protocols(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    protocols: dict[str, str] = {}
    for item in _items(value):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise ValueError(f"must be NAME:PROTOCOL, one of {', '.join(PROTOCOLS)}, got {item!r}")
        name = name.strip().upper()
        if protocols.setdefault(name, protocol.upper()) != protocol.upper():
            raise ValueError(f"{name} is there twice, with {protocols[name]} and {protocol.upper()}")
    return protocols


def _bits(bits: int) -> AfterValidator:
    # A validator and not Field(ge=..., le=...): those would replace the limits that a setting states itself.
    def check(value: int) -> int:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"must fit into {bits} bits")
        return value

    return AfterValidator(check)


# The string is the type's name, as `kop config` prints it and DescribeConfigs reports it.
Int: TypeAlias = Annotated[int, "int", _bits(32)]
Long: TypeAlias = Annotated[int, "long", _bits(64)]
OptionalInt: TypeAlias = Annotated[Int | None, "int", BeforeValidator(_empty_is_none)]
OptionalLong: TypeAlias = Annotated[Long | None, "long", BeforeValidator(_empty_is_none)]
Texts: TypeAlias = Annotated[tuple[str, ...], "list", BeforeValidator(_items)]
Listeners: TypeAlias = Annotated[tuple[NamedAddress, ...], "list", BeforeValidator(_listeners)]
Protocols: TypeAlias = Annotated[dict[str, str], "list", BeforeValidator(_protocols)]
"""Protocols by the names of listeners."""
Addresses: TypeAlias = Annotated[tuple[Address, ...], "list", BeforeValidator(_addresses)]
Policies: TypeAlias = Annotated[
    tuple[Literal["delete", "compact"], ...], "list", BeforeValidator(_items), AfterValidator(_some)
]
Secret: TypeAlias = Annotated[str, "password"]
"""The type of a setting that is a secret: it is shown neither by `kop config`, nor to clients, nor in messages."""
Level: TypeAlias = Annotated[Literal["debug", "info", "warning", "error"], "string", BeforeValidator(str.lower)]
SomeAddresses: TypeAlias = Annotated[Addresses, AfterValidator(_some)]
Advertised: TypeAlias = Annotated[Addresses, AfterValidator(_advertise)]
OptionalAddress: TypeAlias = Annotated[Address | None, "string", BeforeValidator(_address_or_none)]
Store: TypeAlias = Annotated[str, AfterValidator(_store)]
AdminUrl: TypeAlias = Annotated[str, AfterValidator(_admin_url)]
Namespace: TypeAlias = Annotated[str, AfterValidator(_namespace)]
