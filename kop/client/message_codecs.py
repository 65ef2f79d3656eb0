"""The code that encodes and decodes Kafka's messages, compiled before a process that needs it is forked.

Owns: which messages a client of functions sends and gets, in the versions that it agrees on with a gateway of kop.
Must not know: what they are sent for.

kafka-python compiles code for each message and version when the first of them is encoded or decoded. That takes 150 ms
of CPU and 2 MiB of memory for a function; done before the fork it is in pages that all processes share. What another
server agrees on in another version is compiled then.
"""

from __future__ import annotations

from typing import Final

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from kop.client.read_client import FetchRequest

VERSIONS: Final[tuple[tuple[type[ApiMessage], type[ApiMessage], int], ...]] = (
    (ApiVersionsRequest, ApiVersionsResponse, 4),
    (MetadataRequest, MetadataResponse, 13),
    (FindCoordinatorRequest, FindCoordinatorResponse, 4),
    (InitProducerIdRequest, InitProducerIdResponse, 4),
    (OffsetFetchRequest, OffsetFetchResponse, 8),
    (ListOffsetsRequest, ListOffsetsResponse, 11),
    (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 3),
    (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, 3),
    (TxnOffsetCommitRequest, TxnOffsetCommitResponse, 3),
    (EndTxnRequest, EndTxnResponse, 3),
    (FetchRequest, FetchResponse, 12),
    (ProduceRequest, ProduceResponse, 9),
)
"""Requests, their answers, and the version that a gateway of kop and kafka-python agree on."""


def compile_codecs() -> None:
    """Compile the code that encodes the requests of a client of functions and decodes their answers, in the versions of
    VERSIONS.
    """
    for request, response, version in VERSIONS:
        request(version=version).encode()
        response.decode(response(version=version).encode(), version=version)
