"""Gaps between two entries of a partition that a reader was sent: offsets of which nothing came.

Owns: the rule by which a gap is known to hold no records.
Must not know: who met a gap, what is answered for its offsets, how Pulsar is asked.

A Pulsar broker's dispatcher reads all entries in their order from where the reader's cursor stands. It leaves out
markers (of transactions, of replicated subscriptions), the entries of aborted transactions, and what it cannot parse or
is told to filter: no reader is ever sent these. An entry that could not be written may have taken an index, too. Each
of them has an offset, so a gap is there, and what it was made of need not be known.

There is one other way past entries: Pulsar moves cursors of readers as those of subscriptions, when messages expire
(message TTL, `expire-messages`), are skipped, cleared or truncated, and when retention takes ledgers. Whatever moves a
cursor sets its mark-delete position first, and its read position behind that (`ManagedCursorImpl`). The gateway's
readers acknowledge nothing, and a mark-delete position never goes back. So where it still lies before a gap when the
entry behind the gap is here, the dispatcher itself has read all entries in the gap and left them out. One answer of the
Pulsar broker serves all gaps that were met before it was asked.

What the dispatcher leaves out it acknowledges, so the mark-delete position may have come past a gap that directly
follows the place where a reader began. Then, too, nothing is taken for granted: the gap is read by another reader.
"""

from __future__ import annotations

from typing import NamedTuple

from kop.pulsar_client import Position


class Gap(NamedTuple):
    """Offsets `base` to `last` between two entries that came, and where these two lie."""

    base: int
    last: int
    entry_before: Position
    entry_behind: Position

    @property
    def has_no_entries(self) -> bool:
        """Whether the two entries directly follow each other."""
        before, behind = self.entry_before, self.entry_behind
        return before.ledger == behind.ledger and before.entry + 1 == behind.entry

    def passed_over(self, mark_delete: Position | None) -> bool:
        """Whether Pulsar may have moved the reader over entries in the gap that are there.

        `mark_delete` is where the cursor of the reader was marked when `entry_behind` had come; None: nobody knows.
        """
        return not self.has_no_entries and (mark_delete is None or mark_delete > self.entry_before)
