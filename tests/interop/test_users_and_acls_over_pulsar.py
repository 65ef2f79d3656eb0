"""The recorded requests by a user who has logged in, whose rights are ACLs in the state topic in Pulsar."""

from __future__ import annotations

import pytest
from handlers.guarded_gateway import SETTINGS, Guarded
from handlers.test_users_and_acls import denied_and_allowed
from interop.interop_kit import Interop
from support.pulsar_gateway import PulsarGateway

pytestmark = pytest.mark.pulsar


def test_each_request_of_a_user_is_answered_as_kafka_does(interop: Interop) -> None:
    gateway = PulsarGateway(interop.pulsar, "users", **SETTINGS)
    gateway.start()

    async def main() -> list[str]:
        assert gateway.serving is not None
        at = Guarded(gateway.serving)
        await at.open()
        try:
            return await denied_and_allowed(at, with_operations=False)
        finally:
            at.close()

    try:
        assert gateway.call(main()) == []
    finally:
        gateway.stop()
