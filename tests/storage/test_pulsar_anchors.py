"""Which transactions are guarded by an open one, as a table."""

from __future__ import annotations

import pytest

from kop.pulsar_client import TxnId
from kop.storage.pulsar.transactions.anchors import Anchors


@pytest.mark.parametrize(
    ("txn", "until", "is_guarded"),
    [
        (TxnId(1, 6), 99.0, True),
        (TxnId(1, 6), 100.0, True),
        (TxnId(1, 6), 100.1, False),  # the anchor may have ended by then
        (TxnId(1, 5), 50.0, False),  # the anchor itself
        (TxnId(1, 4), 50.0, False),  # it is older than the anchor
        (TxnId(2, 6), 50.0, False),  # it is of another coordinator
    ],
)
def test_a_transaction_is_guarded_by_an_older_one_of_its_coordinator(
    txn: TxnId, until: float, is_guarded: bool
) -> None:
    anchors = Anchors()
    assert not anchors.guard(txn, until)
    anchors.add(TxnId(1, 5), 0.0, 100.0)
    assert anchors.guard(txn, until) == is_guarded


def test_an_anchor_stays_until_its_end() -> None:
    anchors = Anchors()
    anchors.add(TxnId(1, 5), 0.0, 100.0)
    assert [anchors.stays(1, 100.0), anchors.stays(1, 101.0), anchors.stays(0, 1.0)] == [True, False, False]
    anchors.add(TxnId(1, 9), 60.0, 160.0)
    assert anchors.stays(1, 101.0)
    assert anchors.guard(TxnId(1, 7), 100.0)
    assert not anchors.guard(TxnId(1, 7), 101.0)
    anchors.add(TxnId(0, 3), 100.0, 200.0)
    assert not anchors.guard(TxnId(1, 7), 50.0), "it has ended"
