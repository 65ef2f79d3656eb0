"""What a user of the clients has to do something about. The texts name Kafka's own properties, as `bootstrap.servers`.

Everything else that the clients raise is kafka-python's.
"""

from __future__ import annotations


class ClientError(Exception):
    """A request that cannot be done; the text says what to do about it. Trying again does not help."""


class FencedError(Exception):
    """The transaction was aborted: a newer producer of the same transactional id has begun, or its time was over."""


class UnreachableError(Exception):
    """No server answered, or none let this client in."""
