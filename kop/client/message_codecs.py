"""The code that encodes and decodes Kafka's messages, compiled before a process that needs it is forked.

Owns: which messages a client of functions sends and gets, in the versions that it agrees on with a gateway of kop.
Must not know: what they are sent for.

kafka-python compiles code for each message and version when the first of them is encoded or decoded. That takes 150 ms
of CPU and 2 MiB of memory for a function; done before the fork it is in pages that all processes share. What another
server agrees on in another version is compiled then.
"""

from __future__ import annotations

from typing import Final

from kafka.protocol import consumer, metadata, producer
from kafka.protocol.api_message import ApiMessage

from kop.client.read_client import FetchRequest

VERSIONS: Final[tuple[tuple[type[ApiMessage], type[ApiMessage], int], ...]] = (
    (metadata.ApiVersionsRequest, metadata.ApiVersionsResponse, 4),
    (metadata.MetadataRequest, metadata.MetadataResponse, 13),
    (metadata.FindCoordinatorRequest, metadata.FindCoordinatorResponse, 4),
    (producer.InitProducerIdRequest, producer.InitProducerIdResponse, 4),
    (consumer.OffsetFetchRequest, consumer.OffsetFetchResponse, 8),
    (consumer.ListOffsetsRequest, consumer.ListOffsetsResponse, 11),
    (producer.AddPartitionsToTxnRequest, producer.AddPartitionsToTxnResponse, 3),
    (producer.AddOffsetsToTxnRequest, producer.AddOffsetsToTxnResponse, 3),
    (producer.TxnOffsetCommitRequest, producer.TxnOffsetCommitResponse, 3),
    (producer.EndTxnRequest, producer.EndTxnResponse, 3),
    (FetchRequest, consumer.FetchResponse, 12),
    (producer.ProduceRequest, producer.ProduceResponse, 9),
)
"""Requests, their answers, and the version that a gateway of kop and kafka-python agree on."""


def compile_codecs() -> None:
    """Compile the code that encodes the requests of a client of functions and decodes their answers, in the versions of
    VERSIONS.
    """
    for request, response, version in VERSIONS:
        request(version=version).encode()
        response.decode(response(version=version).encode(), version=version)
