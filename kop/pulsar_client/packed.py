"""A message id as one number that sorts as the ids do: ledger, entry, place in the batch, from the high bits down.

Owns: the widths, and what follows from them.
Must not know: who needs such numbers.

63 bits are there, so that the number is a positive int64:

- 30 for the ledger. BookKeeper counts ledgers for the whole cluster, every topic and cursor takes one about every four
  hours of use: 100,000 busy ones would need more than four years for 2^30. Nothing helps a cluster that is beyond it,
  so this is the widest one that the other two leave.
- 19 for the entry. A ledger is closed at 50,000 entries as Pulsar comes, but never before it is ten minutes old: 2^19
  are 873 entries a second for that long. Whoever writes faster has to have the ledger closed earlier, which is possible
  at any time. The last entry that fits is no message's: it stands for all that do not fit.
- 14 for the place in the batch: 16,384 messages. Pulsar's own clients put up to 1,000 into a batch, librdkafka 10,000.
"""

from __future__ import annotations

from typing import Final

from kop.pulsar_client.types import Position

LEDGER_BITS: Final = 30
ENTRY_BITS: Final = 19
PLACE_BITS: Final = 14
MOST_MESSAGES: Final = 1 << PLACE_BITS
"""The most messages of one entry that can have numbers."""
LAST_ENTRY: Final = (1 << ENTRY_BITS) - 1
"""The number of the last entry of a ledger, which stands for all further ones."""
MOST_LEDGERS: Final = 1 << LEDGER_BITS
LEDGER_NUMBERS: Final = 1 << ENTRY_BITS + PLACE_BITS
"""The distance between the numbers of one ledger and those of the next."""


def pack(position: Position, place: int = 0) -> int:
    """Return the number of a message id. Only for an entry that `fits`, and a place in it below 16,384."""
    return (position.ledger << ENTRY_BITS | position.entry) << PLACE_BITS | place


def unpack(number: int) -> tuple[Position, int]:
    """Return the position of the entry and the place in it that a number stands for."""
    entry = number >> PLACE_BITS
    return Position(entry >> ENTRY_BITS, entry & LAST_ENTRY), number & MOST_MESSAGES - 1


def fits(position: Position) -> bool:
    """Return true if the messages of this entry have numbers of their own: its ledger id is below 2^30, and its number
    in the ledger below 2^19 - 1.
    """
    return 0 <= position.entry < LAST_ENTRY and 0 <= position.ledger < MOST_LEDGERS
