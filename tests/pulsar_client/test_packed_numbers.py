"""Message ids as numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kop.pulsar_client import Position
from kop.pulsar_client.packed import LAST_ENTRY, LEDGER_NUMBERS, MOST_LEDGERS, MOST_MESSAGES, fits, pack, unpack

IDS = st.tuples(st.integers(0, MOST_LEDGERS - 1), st.integers(0, LAST_ENTRY - 1), st.integers(0, MOST_MESSAGES - 1))


@given(IDS)
def test_a_number_is_a_positive_int64_and_tells_the_id(message_id: tuple[int, int, int]) -> None:
    ledger, entry, place = message_id
    number = pack(Position(ledger, entry), place)
    assert 0 <= number < 2**63
    assert unpack(number) == (Position(ledger, entry), place)
    assert fits(Position(ledger, entry))


@given(IDS, IDS)
def test_numbers_sort_as_the_ids_do(left: tuple[int, int, int], right: tuple[int, int, int]) -> None:
    def number(message_id: tuple[int, int, int]) -> int:
        return pack(Position(*message_id[:2]), message_id[2])

    assert (left < right) == (number(left) < number(right))


def test_what_has_no_number() -> None:
    assert pack(Position(7, 0)) == 7 * LEDGER_NUMBERS
    assert not fits(Position(1, LAST_ENTRY))
    assert not fits(Position(MOST_LEDGERS, 0))
    assert not fits(Position(-1, -1))
    assert fits(Position(MOST_LEDGERS - 1, LAST_ENTRY - 1))
    assert pack(Position(MOST_LEDGERS - 1, LAST_ENTRY), MOST_MESSAGES - 1) == 2**63 - 1
