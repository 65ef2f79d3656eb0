"""The table of the APIs that are served, in which versions, by whom: the only source of ApiVersions.

Owns: the table, put together from the modules of this package.
Must not know: sockets.
"""

from __future__ import annotations

from kop.handlers import (
    acls,
    api_versions,
    client_quotas,
    cluster,
    configs,
    delegation_tokens,
    describe_producers,
    fetch,
    group_offsets,
    groups,
    list_offsets,
    metadata,
    produce,
    producer_ids,
    sasl,
    scram_users,
    topics,
    transaction_admin,
    transactions,
    txn_markers,
    txn_offset_commit,
)
from kop.handlers.api import Api

_MODULES = (
    produce,
    fetch,
    list_offsets,
    metadata,
    group_offsets,
    groups,
    api_versions,
    topics,
    producer_ids,
    configs,
    describe_producers,
    cluster,
    acls,
    scram_users,
    client_quotas,
    delegation_tokens,
    sasl,
    transactions,
    transaction_admin,
    txn_markers,
    txn_offset_commit,
)


def build() -> dict[int, Api]:
    """Return the served APIs by API key. ValueError if two modules have the same key."""
    served: dict[int, Api] = {}
    for module in _MODULES:
        for api in module.APIS:
            if api.key in served:
                raise ValueError(f"API {api.key} is registered twice")
            served[api.key] = api
    return dict(sorted(served.items()))
