"""The sequence window of one idempotent producer on one partition, over Pulsar's deduplication; and the highest
sequence ids that this broker has seen stored there.

Owns: the sequence id under which Pulsar deduplicates, what Pulsar knows or has refused, and what a client is told where
the window cannot answer. What a producer's next batch may be, by its epoch, sequence and last five batches, is the rule
of all engines, `kop.storage.idempotence.ProducerWindow`. Beside it the highest sequence id that was seen stored, for a
bounded number of producer names. Pure machines: no sockets, no clock.
Must not know: how a batch is sent or stored.

Pulsar keeps, for each producer name, the highest sequence id that it has stored; ours is `epoch << 47 | unwrapped`. The
unwrapped sequence counts on where Kafka's falls back to 0 after 2147483647: the raw one would be dropped as a duplicate
there. 15 bits of epoch and 47 of sequence fill Pulsar's signed 64 bits.

The window is this broker's own memory of what it sent; Pulsar's sequence id is what all brokers know. What lies at or
below that and is not in the window was stored, or is being stored this moment for a broker that is gone: it is sent
once more, so that Pulsar says which. Dropped as a duplicate there, it is looked for in the log: Pulsar compares the
first sequence id alone, and the entries tell whether they hold this very batch. If they lie too far back, it is
DUPLICATE_SEQUENCE_NUMBER to the client, by which clients learn "stored" without an offset.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kop.errors import ErrorCode, PeerError
from kop.records.batch import MAX_SEQUENCE, BatchHeader, add_sequence
from kop.storage.idempotence import ProducerWindow

EPOCH_SHIFT: Final = 47
"""The number of low bits of a sequence id, below the epoch."""
_MASK: Final = (1 << EPOCH_SHIFT) - 1


class Sent(NamedTuple):
    """A batch in the window, with the sequence id that it was sent under."""

    base_sequence: int
    last_sequence: int
    owner: Any
    """The object that a duplicate of the batch has to wait for, chosen by the caller."""
    sequence_id: int = -1
    """Pulsar's sequence id of the batch's first record."""
    crc: int = 0
    """The checksum in the batch's header."""


class Verdict(NamedTuple):
    """The result of `check`: one of `sequence_id`, `original` and `error` is set."""

    sequence_id: int | None = None
    """The sequence id under which the batch's first record is to be sent."""
    known: bool = False
    """True if Pulsar had these sequences before this broker began: the batch is sent to be confirmed, and enters no
    window.
    """
    original: Sent | None = None
    """The batch in the window that this one is a duplicate of."""
    error: PeerError | None = None


class SequenceWindow:
    """The sequence window of one producer id on one partition.

    `last_sequence_id` is Pulsar's answer when the producer was opened; -1: it knows nothing of that producer.
    `complete`: what Pulsar does not know was never stored under this name. Then a producer may begin with any sequence,
    as in Kafka: it wrote to a topic of the same name that was deleted.
    """

    def __init__(self, last_sequence_id: int, *, complete: bool = False) -> None:
        self.complete = complete
        epoch, last = (last_sequence_id >> EPOCH_SHIFT, last_sequence_id & _MASK) if last_sequence_id >= 0 else (-1, -1)
        self._window: ProducerWindow[Sent] = ProducerWindow(epoch, last & MAX_SEQUENCE if last >= 0 else -1)
        self._last = last
        """The unwrapped sequence of the last record taken, in the window's epoch."""
        self._stored = last
        """The unwrapped sequence up to which Pulsar had stored records when the window began, or when it refused a
        batch.
        """
        self._refused: list[tuple[int, int]] = []
        """The first and last unwrapped sequences that Pulsar refused, with later ones taken behind them. It will never
        store them: what is not above the highest sequence id that it has stored is a duplicate to it.
        """
        self._split: list[tuple[int, int]] = []
        """The first and last unwrapped sequences of batches of which Pulsar refused some entries and not all."""
        self.last_timestamp = -1
        """The largest timestamp (ms) of the last batch taken; -1 before the first."""

    @property
    def epoch(self) -> int:
        """The producer's epoch; -1 if none is known."""
        return self._window.epoch

    @property
    def last_sequence(self) -> int:
        """Kafka's sequence of the last record; -1 if none is known."""
        return self._window.last_sequence

    @property
    def unbroken(self) -> bool:
        """True if a batch was taken in the producer's epoch, and Pulsar refused in that epoch no part of a batch, and
        no whole one that later ones were sent behind.
        """
        return bool(self._window.batches) and not self._refused and not self._split

    @property
    def next_sequence(self) -> int:
        """The unwrapped sequence, for Pulsar's sequence id, of the record that comes next in the epoch."""
        return self._last + 1

    def known(self, sequence_id: int) -> bool:
        """Return true if this sequence id, of the window's epoch, is not above what Pulsar had stored when the window
        began or last refused a batch: Pulsar may have it, or have refused it.
        """
        return sequence_id >> EPOCH_SHIFT == self.epoch and sequence_id & _MASK <= self._stored

    def comes_next(self, header: BatchHeader) -> bool:
        """Return true if a batch begins directly behind the last record, or begins a new epoch."""
        if header.producer_epoch == self.epoch:
            return header.base_sequence == add_sequence(self.last_sequence, 1)
        return header.producer_epoch > self.epoch and header.base_sequence == 0

    def directly_before(self, header: BatchHeader) -> int:
        """Return the sequence id of the record before a batch that lies ahead of what is known."""
        if header.producer_epoch == self.epoch:
            ahead = (header.base_sequence - self.last_sequence) & MAX_SEQUENCE
            return self.epoch << EPOCH_SHIFT | self._last + ahead - 1
        return header.producer_epoch << EPOCH_SHIFT | header.base_sequence - 1

    def check(self, header: BatchHeader, *, from_zero: bool = False) -> Verdict:
        """Decide if a batch is sent, under which sequence id, or is a duplicate or an error; this changes nothing.

        `from_zero`: the producer begins each epoch at sequence 0, so that a higher one is out of order if Pulsar knows
        nothing of the producer. Otherwise such a batch is sent if the window is `complete`, and else
        UNKNOWN_PRODUCER_ID.
        """
        original, error = self._window.check(header)
        epoch, sequence = header.producer_epoch, header.base_sequence
        if original is None and error is None:
            return Verdict(epoch << EPOCH_SHIFT | (self._last + 1 if epoch == self.epoch else sequence))
        if original is not None:
            if self._refused and original.crc != header.crc:
                return self._ambiguous(header)
            return Verdict(original=original)
        if epoch > self.epoch and self.epoch < 0 and not from_zero:
            if self.complete:
                return Verdict(epoch << EPOCH_SHIFT | sequence)
            return _refused(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"Pulsar knows nothing of the producer, its batch has sequence {sequence}",
            )
        if epoch == self.epoch:
            behind = (self.last_sequence - sequence) & MAX_SEQUENCE
            first = self._last - behind
            """The unwrapped sequence of the batch's first record, if the batch lies behind and not ahead."""
            last = first + header.last_offset_delta
            if behind <= MAX_SEQUENCE // 2:
                if any(first <= end and begin <= last for begin, end in self._refused):
                    return _refused(
                        ErrorCode.UNKNOWN_PRODUCER_ID,
                        f"sequences from {sequence} on were refused in epoch {epoch} and later ones are stored: they "
                        "can be stored in a new epoch only",
                    )
                if self._refused and not any(begin <= first and last <= end for begin, end in self._split):
                    return self._ambiguous(header)
                if first >= 0 and last <= self._stored:
                    return Verdict(epoch << EPOCH_SHIFT | first, known=True)
                if 0 <= first <= self._stored == self._last:
                    # A split batch of which the first pieces are stored: the rest goes after them, Pulsar drops those.
                    return Verdict(epoch << EPOCH_SHIFT | first)
        return Verdict(error=error)

    def _ambiguous(self, header: BatchHeader) -> Verdict:
        """Return the refusal of a batch that may be another one than the batch that was stored with its sequences.

        Java clients before 2.5 count their sequences down by those of a batch that was refused for good. The sequences
        that they use next are those of records that were on their way behind that batch, and are stored.
        """
        return _refused(
            ErrorCode.UNKNOWN_PRODUCER_ID,
            f"an earlier batch of epoch {self.epoch} was refused, and other records are stored with sequences from "
            f"{header.base_sequence} on: they can be stored in a new epoch only",
        )

    def take(self, header: BatchHeader, sequence_id: int, owner: Any) -> None:
        """Add a batch, which `check` accepted and which is sent under this sequence id, to the window. `owner` is what
        `check` gives for a duplicate of the batch.
        """
        epoch = header.producer_epoch
        if epoch != self.epoch:
            self._refused.clear()
            self._split.clear()
            self._stored = -1
        self._last = (sequence_id & _MASK) + header.last_offset_delta
        self.last_timestamp = header.max_timestamp
        sent = Sent(header.base_sequence, header.last_sequence, owner, sequence_id, header.crc)
        self._window = self._window.then(epoch, sent)

    def refuse(self, sequence_id: int, count: int, owner: Any) -> None:
        """Note that Pulsar will not store `count` records of a batch in the window, from this sequence id on.

        As in Kafka a refused batch uses up no sequence, as long as no later one was accepted.
        """
        if sequence_id >> EPOCH_SHIFT != self.epoch:
            return
        first = sequence_id & _MASK
        for sent in self._window.batches:
            size = ((sent.last_sequence - sent.base_sequence) & MAX_SEQUENCE) + 1
            if sent.owner is owner and size > count:
                begin = sent.sequence_id & _MASK
                self._split.append((begin, begin + size - 1))
        self._refused.append((first, first + count - 1))
        self._refused.sort()
        while self._refused and self._refused[-1][1] == self._last:
            self._last = self._refused.pop()[0] - 1
        self._stored = self._last  # of a batch that was split, some may be stored: Pulsar says which
        self._window = ProducerWindow(
            self.epoch,
            self._last & MAX_SEQUENCE if self._last >= 0 else -1,
            tuple(sent for sent in self._window.batches if sent.owner is not owner),
        )


def _refused(code: ErrorCode, text: str) -> Verdict:
    return Verdict(error=PeerError(text, code))


MOST_NAMES: Final = 1000


class StoredSequences:
    """The highest sequence ids that were seen stored, of each producer name that was seen lately.

    See docs/quirks.md, "Deduplication forgets while a topic is loaded". An id that was read from the log itself is
    always right.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def __contains__(self, producer_name: str) -> bool:
        """Return true if a producer of this name has ended, or an entry of it was seen. The last 1000 names count."""
        return producer_name in self._highest

    def add(self, producer_name: str, sequence_id: int) -> None:
        """Note that an entry is stored whose last message has this sequence id.

        With -1 no entry is known to be stored, only that a producer of this name has ended.
        """
        self._highest[producer_name] = max(self._highest.pop(producer_name, -1), sequence_id)
        if len(self._highest) > MOST_NAMES:
            del self._highest[next(iter(self._highest))]

    def of(self, producer_name: str) -> int:
        """Return the highest sequence id seen of a producer name; -1 if none was seen."""
        return self._highest.get(producer_name, -1)
