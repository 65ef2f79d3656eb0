"""Refusals of a server that concern one function, and not those who work for it: their status, and their reason.

Owns: which errors they are, and what is told of them.
Must not know: who asked the server for what.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kop.client.connection import TEMPORARY
from kop.client.errors import ANSWERS, OF_TRANSACTION, RIGHTS, NotMemberError

NOT_ALLOWED: Final = 403
WRONG: Final = 400
LATER: Final = 503


class RefusedFunctionError(Exception):
    """A server does not give what a function needs. `status` is one of HTTP."""

    def __init__(self, fqfn: str, error: Exception) -> None:
        self.fqfn = fqfn
        why = error.args[0] if isinstance(error, NotMemberError) and error.args else error
        if isinstance(error, RIGHTS):
            self.status = NOT_ALLOWED
            self.reason = f"let the workers' user use what {fqfn} needs: {why}"
        elif isinstance(error, TEMPORARY):
            self.status = LATER
            self.reason = f"ask again later, the server does not have what {fqfn} needs at the moment: {why}"
        else:
            self.status = WRONG
            self.reason = f"the server refuses what {fqfn} needs: {why}"
        super().__init__(self.reason)


@contextmanager
def concerning(fqfn: str, *, in_transaction: bool = False) -> Iterator[None]:
    """Raise RefusedFunctionError of this function in place of an error by which a server refuses something within the
    block; other errors are raised as they are.

    `in_transaction`: the transaction is of more than this function, so the transaction's own errors are raised as they
    are.
    """
    try:
        yield
    except ANSWERS as error:
        if in_transaction and isinstance(error, OF_TRANSACTION):
            raise
        raise RefusedFunctionError(fqfn, error) from None
