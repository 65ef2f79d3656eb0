"""Pulsar's own registry: the schemas of a topic.

Owns: what Pulsar's admin REST says of a topic's schema, pairs of key and value among them.
Must not know: formats, pyspark.

A record does not tell the version of its schema: that is in Pulsar's metadata, which gateways of kop pass on
(`kop.schemas.by_version`). Of other records all versions are asked for, and `kop.schemas.versions` finds the one that a
record fits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kop.pulsar_client import PulsarError, TlsOptions
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.auth import parse_auth
from kop.schemas.access import PulsarAccess
from kop.schemas.errors import SchemaError, UnknownSchemaError

A = TypeVar("A")
T = TypeVar("T")

KEY_VALUE: Final = "KEY_VALUE"


@dataclass(frozen=True, slots=True)
class PulsarSchema:
    """A version of a topic's schema."""

    kind: str
    """The type in Pulsar's words, such as AVRO, JSON, INT32, KEY_VALUE."""
    text: str = ""
    """The definition: Avro's JSON for AVRO and JSON; empty for a primitive."""
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None

    @property
    def separated(self) -> bool:
        """True for a pair whose key is the message's key, and whose value is the message."""
        return self.properties.get("kv.encoding.type", "INLINE").upper() == "SEPARATED"

    def part(self, which: str) -> PulsarSchema:
        """Return the schema of the `key` or the `value` (`which`) of a key-value schema. SchemaError if it is
        malformed.
        """
        try:
            parts = json.loads(self.text)
        except ValueError:
            raise SchemaError("Pulsar's schema of key and value is no JSON") from None
        kind = self.properties.get(f"{which}.schema.type")
        part = parts.get(which, "") if isinstance(parts, dict) else ""
        if kind is None:
            raise SchemaError(f"Pulsar's schema of key and value does not say what the {which} is")
        return PulsarSchema(kind, part if isinstance(part, str) else json.dumps(part), {}, self.version)


def topic_schema(access: PulsarAccess, topic: str, version: int | None = None) -> PulsarSchema:
    """Return a version of the schema of a topic, `persistent://TENANT/NAMESPACE/TOPIC`, the latest if `version` is
    None; blocks while Pulsar's admin REST is asked. UnknownSchemaError if there is none, SchemaError if Pulsar refuses
    or does not answer.
    """
    which = "no schema" if version is None else f"no version {version} of a schema"
    return _asked(access, lambda client: client.schema(topic, version), _schema, f"Pulsar has {which} for {topic}")


def topic_schemas(access: PulsarAccess, topic: str) -> list[PulsarSchema]:
    """Return all versions of the schema of a topic, `persistent://TENANT/NAMESPACE/TOPIC`; blocks while Pulsar's admin
    REST is asked. UnknownSchemaError if there are none, SchemaError if Pulsar refuses or does not answer.
    """
    return _asked(
        access,
        lambda client: client.schemas(topic),
        lambda answers: [_schema(answer) for answer in answers],
        f"Pulsar has no schema for {topic}",
    )


def _schema(answer: Mapping[str, Any]) -> PulsarSchema:
    return PulsarSchema(
        str(answer["type"]).upper(), answer.get("data") or "", answer.get("properties") or {}, answer.get("version")
    )


def _asked(access: PulsarAccess, ask: Callable[[Admin], Awaitable[A]], make: Callable[[A], T], not_there: str) -> T:
    async def once() -> A:
        tls = TlsOptions(ca_file=access.ca_file, system_too=True)
        async with Admin(access.url, auth=parse_auth(access.auth, tls), tls=tls) as client:
            return await ask(client)

    try:
        return make(asyncio.run(once()))
    except PulsarError as error:
        if error.code == "NotFound":
            raise UnknownSchemaError(f"set the format to bytes, or give the schema: {not_there}") from None
        raise SchemaError(f"set pulsar.admin.url and pulsar.auth to what is right: {access.url} says {error}") from None
    except ValueError as error:
        raise SchemaError(f"set pulsar.admin.url to Pulsar's admin REST, http://HOST:PORT: {error}") from None
