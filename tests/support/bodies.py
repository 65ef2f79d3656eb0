"""The bodies of Kafka messages, as clients send them.

Owns: encoding a message without size and header.
Must not know: what a message means.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

from kop.wire.messages import Message


def encode_body(message: Message) -> bytes:
    """Encode a message by kafka-python's own encoder, without its size and its header.

    The base class does it: the one of MetadataRequest puts an empty list in the place of null.
    """
    return bytes(ApiMessage.encode(message))
