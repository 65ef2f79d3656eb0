"""The rights in Pulsar that a gateway's role needs and lacks, for `kop check`.

Owns: which rights these are, and the commands that give them.
Must not know: how the answer is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kop.pulsar_client.admin import Admin

_DENIED: Final = frozenset({"Forbidden", "Unauthorized"})
_TRANSACTIONS: Final = "persistent://pulsar/system/transaction_coordinator_assign"


async def settings_in_force(admin: Admin) -> dict[str, str] | None:
    """Return the settings of the Pulsar brokers; None if the role may not see them, which it does not need."""
    from kop.pulsar_client import PulsarError

    try:
        return await admin.broker_config()
    except PulsarError as error:
        if error.code in _DENIED:
            return None
        raise


async def lacking(admin: Admin, home: str, metadata: str) -> tuple[list[str], list[str]]:
    """Return the rights that the role lacks and that the gateway needs, and those that it lacks and that transactions
    need, each as a text with the command that gives it, as far as there is one.

    `home` and `metadata` are the gateway's namespaces. PulsarError if Pulsar does not answer.
    """
    tenants = dict.fromkeys(namespace.partition("/")[0] for namespace in (home, metadata))
    needed = [
        f"it is no admin of the tenant {tenant}, which topics, their policies and reading grants need "
        f"(pulsar-admin tenants update {tenant} --admin-roles ROLE,...)"
        for tenant in tenants
        if await _is_denied(admin.tenant_admins(tenant))
    ]
    if not needed and await _is_denied(admin.namespace_policies(home)):
        needed.append(f"it may not read the policies of {home}, which have its grants")
    wanted = []
    if await _is_denied(admin.partitioned_metadata(_TRANSACTIONS)):
        wanted.append(
            "it may not use transactions (pulsar-admin namespaces grant-permission pulsar/system --role ROLE --actions "
            "produce,consume)"
        )
    return needed, wanted


async def _is_denied(answer: Awaitable[object]) -> bool:
    """Await `answer`, and return true if Pulsar refuses it to the role. That something does not exist is no refusal;
    any other PulsarError is raised.
    """
    from kop.pulsar_client import PulsarError

    try:
        await answer
    except PulsarError as error:
        if error.code in _DENIED:
            return True
        if error.code != "NotFound":
            raise
    return False
