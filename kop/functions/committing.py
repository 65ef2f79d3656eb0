"""The end of a batch: its outputs and its offsets, beside, before, or in one transaction.

Owns: the order of these two for each guarantee, when offsets are committed, and that it is done in transactions of the
instance if the server has them.
Must not know: which offsets may be committed.

`batch_end` chooses among the ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from kop import clock
from kop.client.offsets import Offsets, TopicPartition
from kop.client.write_client import Identity, WriteClient
from kop.functions.reading import Taken
from kop.functions.spec import Guarantee
from kop.functions.writing import Outputs

INTERVAL_SECONDS: Final = 0.2
"""The least seconds between two commits that are made beside the work."""
RENEW_SECONDS: Final = 600.0
"""The seconds after which offsets are committed again that did not change: so those of idle functions do not expire
(offsets.retention.minutes, a week by default), and an instance that was replaced notices it though it has nothing to
do."""


class WrittenState(Protocol):
    """The part of a state, or of several, that the end of a batch needs."""

    @property
    def is_open(self) -> bool:
        """True once there is state."""

    def serve(self) -> None:
        """Answer what other threads have asked of the state."""

    def flush(self, outputs: Outputs) -> None:
        """Add the entries that have changed to the outputs, and count them as written."""

    def written(self) -> None:
        """Note that what was flushed is committed, and tell it to those who wait for that."""


def commit(
    client: WriteClient, identity: Identity | None, groups: Collection[str], offsets: Mapping[TopicPartition, int]
) -> None:
    """Commit offsets of groups in one transaction of the identity, so that an instance that was replaced cannot.
    Without an identity, commit each group's without a transaction, and raise the error of the first partition that is
    refused.
    """
    if identity is None:
        for group in groups:
            for error in client.commit(group, offsets).values():
                raise error
        return
    for group in groups:
        client.commit_in_transaction(identity, group, offsets)
    client.end_transaction(identity)


class BatchEnd:
    """The end of a batch. `positions` of the classes below are the offsets that are committed."""

    def begin(self, taken: Collection[Taken]) -> None:
        """Do what has to be done before the function is called with these records; nothing here."""

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the outputs, and return once they are durable. `offsets` are, by partition, those before which all is
        done then, so that they may be committed.
        """
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until all offsets that may be committed are, or cannot be any more."""

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, at which `write` is to be called even if nothing is new;
        None for never.
        """
        return None

    def finish(self) -> None:
        """Note that the function is called no more, and that all calls were handled without an error."""

    def close(self) -> None:
        """Commit the offsets that may be committed, and end."""


class Beside(BatchEnd):
    """Outputs first, their offsets later and by a thread of its own: ATLEAST_ONCE and MANUAL.

    `client` is the one of that thread, which closes it; `failed` is told of the error that ends the thread.
    """

    def __init__(
        self,
        client: WriteClient,
        identity: Identity | None,
        groups: Sequence[str],
        outputs: Outputs,
        positions: Offsets,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._identity = identity
        self._groups = groups
        self._outputs = outputs
        self._failed = failed
        self._committed = dict(positions)
        self._offered: Offsets = {}
        self._is_committing = False
        self._has_ended = False
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kop-function-commit", daemon=True)
        self._thread.start()

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the outputs; once they are durable, let the thread that commits have the offsets. Does not wait for
        that thread.
        """
        self._outputs.write()
        if offsets:
            with self._changed:
                self._offered.update(offsets)
                self._changed.notify_all()

    def settle(self) -> None:
        """Wait until the offsets that `write` was given are committed, or until the thread that commits has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or not (self._offered or self._is_committing))

    def close(self) -> None:
        """Let the thread commit the offsets that it has still, and wait for its end."""
        self._over.set()
        with self._changed:
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while offsets := self._next():
                commit(self._client, self._identity, self._groups, offsets)
                self._committed.update(offsets)
                with self._changed:
                    self._is_committing = False
                    self._changed.notify_all()
                self._over.wait(INTERVAL_SECONDS)
        except Exception as error:
            self._failed(error)
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
            self._client.close()

    def _next(self) -> Offsets:
        """Wait for offsets to be committed, and return those that have come; if none came for 600 s, return all that
        are committed, to renew them. Empty at the end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._offered or self._over.is_set(), RENEW_SECONDS)
            offered, self._offered = self._offered, {}
            self._is_committing = bool(offered)
        return offered if offered or self._over.is_set() else self._committed


class Before(BatchEnd):
    """Offsets first: ATMOST_ONCE."""

    def __init__(
        self,
        client: WriteClient,
        identity: Identity | None,
        groups: Sequence[str],
        outputs: Outputs,
        positions: Offsets,
    ) -> None:
        self._client = client
        self._identity = identity
        self._groups = groups
        self._outputs = outputs
        self._committed = dict(positions)
        self._done = dict(positions)
        self._due = clock.monotonic() + RENEW_SECONDS

    def begin(self, taken: Collection[Taken]) -> None:
        """Commit the offsets behind the records that the function is going to be called with. If there are none, and
        the last commit was 600 s ago, commit all again.
        """
        offsets = {some.partition: some.next_offset for some in taken}
        if not offsets and clock.monotonic() < self._due:
            return
        self._committed |= offsets
        commit(self._client, self._identity, self._groups, offsets or self._committed)
        self._due = clock.monotonic() + RENEW_SECONDS

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the outputs, and commit their transaction if they have one. `offsets` are only noted for `finish`:
        `begin` has committed what is behind them.
        """
        if self._outputs.write() and self._outputs.is_transactional:
            self._outputs.end_transaction()
        self._done |= offsets

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, at which the committed offsets are to be committed again,
        so that the group does not lose them.
        """
        return self._due

    def finish(self) -> None:
        """Set the committed offsets back to the first messages that were taken and are not going to be called, so that
        another instance calls them.
        """
        left = {partition: offset for partition, offset in self._done.items() if offset < self._committed[partition]}
        if left:
            commit(self._client, self._identity, self._groups, left)


class InOneTransaction(BatchEnd):
    """Outputs and offsets of a batch together: EFFECTIVELY_ONCE."""

    def __init__(
        self, client: WriteClient, identity: Identity, groups: Sequence[str], outputs: Outputs, positions: Offsets
    ) -> None:
        self._client = client
        self._identity = identity
        self._groups = groups
        self._outputs = outputs
        self._committed = dict(positions)
        self._due = clock.monotonic() + RENEW_SECONDS

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write outputs and offsets, and commit the transaction of both. Without any, do nothing, or renew the
        committed offsets if that is due.
        """
        self.taken(offsets)()

    def taken(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """Take the outputs so far, and return a callable that does with them and `offsets` what `write` does. Another
        thread may call it while outputs are added that follow; several are to be called in the order of their making,
        one after the other.
        """
        batches = self._outputs.take()
        if not batches and not offsets and clock.monotonic() < self._due:
            return lambda: None
        self._committed |= offsets
        return partial(self._commit, batches, offsets or dict(self._committed))

    def _commit(
        self, batches: Mapping[TopicPartition, Sequence[bytearray]], offsets: Mapping[TopicPartition, int]
    ) -> None:
        if batches:
            self._outputs.send(batches, self._groups[0])
        for group in self._groups:
            added = bool(batches) and group == self._groups[0]
            self._client.commit_in_transaction(self._identity, group, offsets, added=added)
        self._outputs.end_transaction()
        self._due = clock.monotonic() + RENEW_SECONDS

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, at which the committed offsets are to be committed again,
        so that the group does not lose them.
        """
        return self._due


class WithState(BatchEnd):
    """An end that writes the state too. Once there is state, outputs, changelog and offsets are one transaction, but
    for ATMOST_ONCE, whose offsets are committed before.

    `switch` returns the end that takes the place of the first one then, given the offsets that are committed.
    """

    def __init__(
        self,
        end: BatchEnd,
        state: WrittenState,
        outputs: Outputs,
        positions: Offsets,
        switch: Callable[[Offsets], BatchEnd],
    ) -> None:
        self._end = end
        self._state = state
        self._outputs = outputs
        self._committed = dict(positions)
        self._switch: Callable[[Offsets], BatchEnd] | None = switch

    def begin(self, taken: Collection[Taken]) -> None:
        """Do what has to be done before the function is called with these records."""
        self._end.begin(taken)

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Answer what other threads have asked of the state, write outputs, changed state and offsets as the end does,
        and tell those who have put values that they are written.
        """
        self._state.serve()
        if self._switch is not None and self._state.is_open:
            self._end, self._switch = self._switch(self._committed), None
        self._state.flush(self._outputs)
        self._end.write(offsets)
        self._committed |= offsets
        self._state.written()

    def settle(self) -> None:
        """Wait until all offsets that may be committed are, or cannot be any more."""
        self._end.settle()

    def next_due(self) -> float | None:
        """Return the time, in seconds of the monotonic clock, at which `write` is to be called even if nothing is new;
        None for never.
        """
        return self._end.next_due()

    def finish(self) -> None:
        """Note that the function is called no more, and that all calls were handled without an error."""
        self._end.finish()

    def close(self) -> None:
        """Commit the offsets that may be committed, and end."""
        self._end.close()


def batch_end(
    guarantee: Guarantee,
    writer: WriteClient,
    identity: Identity | None,
    groups: Sequence[str],
    outputs: Outputs,
    positions: Offsets,
    state: WrittenState,
    *,
    new_writer: Callable[[], WriteClient],
    failed: Callable[[BaseException], None],
) -> BatchEnd:
    """Return the object that ends batches as the guarantee asks. Once there is state, it does so in transactions of
    `identity`.

    `positions` are the committed offsets at the start. `new_writer` makes the client of a thread that commits beside
    the work; `failed` gets the error that ends that thread.
    """
    end: BatchEnd
    if guarantee is Guarantee.EFFECTIVELY_ONCE:
        assert identity is not None
        end = InOneTransaction(writer, identity, groups, outputs, positions)
    elif guarantee is Guarantee.ATMOST_ONCE:
        end = Before(writer, identity, groups, outputs, positions)
    else:
        end = Beside(new_writer(), identity, groups, outputs, positions, failed)

    def switch(committed: Offsets) -> BatchEnd:
        assert identity is not None  # without transactions no state is opened
        if guarantee is Guarantee.EFFECTIVELY_ONCE:
            return end
        end.close()
        outputs.use(identity)
        if guarantee is Guarantee.ATMOST_ONCE:
            return end
        return InOneTransaction(writer, identity, groups, outputs, committed)

    return WithState(end, state, outputs, positions, switch)
