"""Pulsar's admin REST for the commands that ask it, with the access that the settings give.

Owns: the client of that REST and how its failures read.
Must not know: what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from kop.cli.common import fail
from kop.config import Config

if TYPE_CHECKING:
    from kop.pulsar_client.admin import Admin

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""The seconds within which Pulsar has to answer one question, attempts and pauses included."""
_ADMIN_URL = "kop.pulsar.admin.url"
_NO_ANSWER = frozenset({"ConnectionLost", "InvalidAddress", "Timeout", "TlsError"})
"""The codes of errors that the REST client raises by itself because Pulsar gave no answer."""


def configured_url(config: Config) -> str | None:
    """Return the address of Pulsar's admin REST that the environment or the settings file names; None if neither
    does.
    """
    return next((row.current for row in config.table() if row.name == _ADMIN_URL and row.origin != "default"), None)


def ask(url: str, config: Config, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run `work` with a client of Pulsar's admin REST at `url`, and return its result. The command ends with one line
    if Pulsar refuses or does not answer, or if credentials would go there in clear text or are malformed.
    """
    from kop.pulsar_client import PulsarError, TlsOptions
    from kop.pulsar_client.address import is_in_clear
    from kop.pulsar_client.admin import Admin
    from kop.pulsar_client.auth import parse_auth

    if config.kop_pulsar_auth and is_in_clear(config.store, url):
        fail(
            f"{url} has no TLS and {config.store} has: the credentials of kop.pulsar.auth would go there in clear "
            "text. Name the REST interface's https URL"
        )

    async def do() -> T:
        authorities = config.kop_pulsar_tls_ca_file or None
        try:
            auth = parse_auth(config.kop_pulsar_auth, TlsOptions(ca_file=authorities, system_too=True))
        except ValueError as error:
            return fail(f"kop.pulsar.auth: {error}")
        tls = TlsOptions(
            ca_file=authorities,
            cert_file=config.kop_pulsar_tls_cert_file or None,
            key_file=config.kop_pulsar_tls_key_file or None,
            check_hostname=config.kop_pulsar_tls_verify_host,
        )
        try:
            admin = Admin(url, auth=auth, tls=tls, timeout=ANSWER_SECONDS)
        except ValueError as error:
            return fail(str(error))
        async with admin:
            return await work(admin)

    try:
        return asyncio.run(do())
    except PulsarError as error:
        if error.code in _NO_ANSWER:
            return fail(f"cannot ask Pulsar: {error.message}; see --admin-url")
        return fail(f"Pulsar says {error}")
