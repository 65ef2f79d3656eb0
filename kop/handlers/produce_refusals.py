"""What a Produce answers for a partition whose batch was not stored.

Owns: the fields of that answer.
Must not know: how the batch was read or sent.
"""

from __future__ import annotations

from kop.errors import ErrorCode, KopError
from kop.handlers.produce_targets import ProduceTargets
from kop.records.validation import RecordsRejectedError
from kop.wire.produce import ProducePartitionAnswer


def refused_partition(partition: int, error: KopError) -> ProducePartitionAnswer:
    """The answer for a batch that was refused before its log had it."""
    rejected = error.records if isinstance(error, RecordsRejectedError) else ()
    return ProducePartitionAnswer(partition, error.code, message=error.message or None, record_errors=rejected)


def refused_by_log(
    targets: ProduceTargets, name_or_id: str | bytes, partition: int, error: KopError
) -> ProducePartitionAnswer:
    """The answer for a batch that its log did not store, or of which it does not know whether it did."""
    answer = refused_partition(partition, error)
    if error.code != ErrorCode.UNKNOWN_PRODUCER_ID:
        return answer
    # The Java client sends the same batch again and again where it is not told the log start (KIP-360).
    return answer._replace(log_start_offset=targets.log_start_offset(name_or_id, partition))
