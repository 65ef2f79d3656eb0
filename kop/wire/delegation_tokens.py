"""The messages of delegation tokens (KIP-48, KIP-373), which kafka-python does not have: schemas of our own.

Owns: their classes, made of the schemas in `schemas/` as kafka-python makes its own.
Must not know: what a message means.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_message import ApiMessage

from kop.wire import schemas


def _message(name: str) -> Any:
    """Return the class of a message, by the name of its schema."""
    kind: Any = type(ApiMessage)
    return kind(name, (ApiMessage,), {"__module__": __name__}, load_json=schemas)


CreateDelegationTokenRequest = _message("CreateDelegationTokenRequest")
CreateDelegationTokenResponse = _message("CreateDelegationTokenResponse")
DescribeDelegationTokenRequest = _message("DescribeDelegationTokenRequest")
DescribeDelegationTokenResponse = _message("DescribeDelegationTokenResponse")
ExpireDelegationTokenRequest = _message("ExpireDelegationTokenRequest")
ExpireDelegationTokenResponse = _message("ExpireDelegationTokenResponse")
RenewDelegationTokenRequest = _message("RenewDelegationTokenRequest")
RenewDelegationTokenResponse = _message("RenewDelegationTokenResponse")
