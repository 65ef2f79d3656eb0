"""The errors that clients of a coordinator get if a record could not be written.

Owns: the table, which is that of all of Kafka's coordinators.
Must not know: what was to be written.
"""

from __future__ import annotations

from typing import Final

from kop.errors import ErrorCode

_ANSWERS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def answer_for(failed_write: ErrorCode) -> ErrorCode:
    """Return the error code for a client whose answer needs a record that could not be written; `failed_write` is the
    error of that write. An error that clients of coordinators may get comes back as it is, and so does NONE.
    """
    return _ANSWERS.get(failed_write, failed_write)
