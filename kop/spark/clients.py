"""The clients of a read or a write, whose errors name the options of Spark: `kafka.` stands before Kafka's own names.

Owns: what an error of a client is for a user of Spark.
Must not know: pyspark, which options there are beyond those that errors name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from kop.client.errors import ClientError, FencedError, NoTransactionsError, UnreachableError
from kop.client.properties import PROPERTIES, REFUSED
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.spark.exactly_once import SinkError

_NAMED: Final = re.compile(
    r"(?<![\w.-])(?={})".format(
        "|".join(
            rf"{re.escape(name)}(?!\.?[\w-])"
            for name in (*PROPERTIES, *REFUSED, "max.request.size", "transaction.timeout.ms")
        )
    )
)
"""The pattern of places before each property of Kafka that an error of a client may name."""


def in_options(text: str) -> str:
    """Return an error's text with `kafka.` before each property of Kafka that it names, as Spark's options have it."""
    return _NAMED.sub("kafka.", text)


class AttemptFencedError(FencedError):
    """An error for a task's attempt that is fenced: a newer attempt has begun, or its transaction was aborted at its
    timeout.
    """

    def __str__(self) -> str:
        return (
            f"{self.args[0]}: a newer attempt of this task has begun, and this one ends; or the transaction was open "
            "for longer than kafka.transaction.timeout.ms: raise that if a task takes so long"
        )


@contextmanager
def naming_options() -> Iterator[None]:
    """Turn errors of a write's Kafka clients, inside the block, into errors that name the options of Spark: SinkError
    for what the user has to mend, AttemptFencedError for a fenced producer, UnreachableError for servers that do not
    answer. Other errors pass unchanged.
    """
    try:
        yield
    except NoTransactionsError as error:
        raise SinkError(f"{in_options(str(error))} Without them use deliveryGuarantee=at-least-once.") from error
    except ClientError as error:
        raise SinkError(in_options(str(error))) from error
    except AttemptFencedError:
        raise
    except FencedError as error:
        raise AttemptFencedError(*error.args) from error
    except UnreachableError as error:
        raise UnreachableError(in_options(str(error))) from error


def read_client(settings: Mapping[str, Any], patience_ms: int) -> ReadClient:
    """Return a connected client that reads topics, with kafka-python's `settings`; it tries requests again for up to
    `patience_ms`. Errors of connecting name Spark's options, those of its methods do not.
    """
    try:
        return ReadClient(settings, patience_ms)
    except UnreachableError as error:
        raise UnreachableError(in_options(str(error))) from error


@naming_options()
def write_client(settings: Mapping[str, Any], patience: float) -> WriteClient:
    """Return a connected client that writes to topics, with kafka-python's `settings`; it tries requests again for up
    to `patience` seconds. Errors of connecting name Spark's options; those of its methods are left to the caller to
    turn into Spark's words.
    """
    return WriteClient(settings, patience)
