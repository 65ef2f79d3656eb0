"""From a history to its anomalies. Pure: no clock, no file, no server.

Owns: what each kind of anomaly means.
Must not know: clients, servers, where a history comes from.

| kind | meaning |
|---|---|
| lost | acknowledged outside of a transaction, or sent in a committed one, and not there in the end |
| doubled | a record of an idempotent writer is stored more than once |
| elsewhere | stored, and not at the offset in the acknowledgement |
| untold | acknowledged without an offset |
| invented | read, and never sent to that partition |
| aborted_read | read under read_committed, and its transaction was aborted |
| uncommitted_read | read under read_committed before its producer asked for the commit |
| torn | of one transaction, some records or offsets are there and others are not |
| reordered | an idempotent writer's record stands behind a later one of the same partition |
| two_values | two readers, or two acknowledgements, have different records for one offset |
| skipped | a consumer's position passed a record that it was not given |
| vanished | a consumer was given a record that the reader of the whole partition does not find |
| position_back | within a session, a position or an offset that does not lie behind the one before |
| end_back | a log start, last stable offset or high watermark lower than one that was told before |
| end_behind | an end that excludes what was read or acknowledged before, or a high watermark below the stable one |
| commit_back | a committed offset lower than one that was told before |
| commit_lost | a committed offset lower than one whose commit was acknowledged before |
| commit_invented | a committed offset that nobody had asked for, or an aborted transaction alone |
| half_committed | one answer has a part of the offsets of a committed transaction |
| chain_lost | an input that a chain has passed is the source of no output |
| chain_doubled | an input is the source of several outputs |
| chain_invented | an output whose source is no committed record of the inputs |
| unfenced | a producer committed though a later one of its transactional id had been initialized before |

A transaction of which it is not known how it ended may have ended either way, but wholly. Offsets are compared in the
partitions that a reader read wholly once everything had ended (history.Whole): `lost`, `torn` and `chain_*` say nothing
of others. Where open transactions hide what lies behind them (history.Engine), an acknowledgement says nothing of ends.

Where librdkafka gives up a record after message.timeout.ms, it raises its epoch and sends all that is not answered, in
all partitions, again under new sequences (https://github.com/confluentinc/librdkafka/issues/4953). No server can know
these for the same records: outside of transactions, what was under way then is neither `doubled` nor `reordered`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conformance.checker.history import (
    NOT_SENT,
    UNREADABLE,
    Chain,
    Committed,
    End,
    History,
    Instance,
    Isolation,
    Place,
    Poll,
    Record,
    Send,
    Transaction,
    name_of,
    source_of,
)

KINDS = (
    "lost",
    "doubled",
    "elsewhere",
    "untold",
    "invented",
    "aborted_read",
    "uncommitted_read",
    "torn",
    "reordered",
    "two_values",
    "skipped",
    "vanished",
    "position_back",
    "end_back",
    "end_behind",
    "commit_back",
    "commit_lost",
    "commit_invented",
    "half_committed",
    "chain_lost",
    "chain_doubled",
    "chain_invented",
    "unfenced",
)
ISOLATIONS: tuple[Isolation, ...] = ("committed", "uncommitted")
_GIVEN_UP = "_MSG_TIMED_OUT"
"""librdkafka's name of the error of a record that it gave up."""


class Anomaly(NamedTuple):
    """Something that must not be. `at` is when it was seen, 0 where only the end of the run shows it."""

    kind: str
    who: str
    """A record, a transaction, a session, a group."""
    topic: str
    partition: int
    offset: int
    """-1 where none is meant."""
    at: float
    detail: str


def check(history: History) -> list[Anomaly]:
    """Every anomaly, in the order of the table above."""
    indexed = _IndexedHistory(history)
    anomalies = [
        *_sends(indexed),
        *_doubled(indexed),
        *_reads(indexed),
        *_torn(indexed),
        *_reordered(indexed),
        *_two_values(indexed),
        *_sessions(indexed),
        *_ends(indexed),
        *_commits(indexed),
        *_half_committed(indexed),
        *_chains(indexed),
        *_unfenced(indexed),
    ]
    return sorted(anomalies, key=lambda anomaly: KINDS.index(anomaly.kind))


class _IndexedHistory:
    """A history with the indexes that several checks use."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends: dict[Record, Send] = {send.record: send for send in history.sends}
        self.transactions = {transaction.name: transaction for transaction in history.transactions}
        """Of several lines of one transaction the last counts."""
        self.idempotent = {writer.name for writer in history.writers if writer.idempotent}
        self._gave_up: defaultdict[str, list[float]] = defaultdict(list)
        """When each writer's client gave up a record, in order."""
        for send in sorted(history.sends, key=lambda send: send.done):
            if send.error == _GIVEN_UP:
                self._gave_up[send.writer].append(send.done)
        self.of_transaction: defaultdict[str, list[Send]] = defaultdict(list)
        for send in history.sends:
            if send.transaction and send.error != NOT_SENT:
                self.of_transaction[send.transaction].append(send)
        self.places: defaultdict[str, set[Place]] = defaultdict(set)
        """The partitions of each topic that anything was sent to."""
        for send in history.sends:
            self.places[send.topic].add(send.place)
        whole = {whole.session for whole in history.wholes}
        self.whole: dict[Isolation, set[Place]] = {
            isolation: {whole.place for whole in history.wholes if whole.isolation == isolation}
            for isolation in ISOLATIONS
        }
        """What was read wholly."""
        self.rows: dict[Isolation, defaultdict[Place, list[tuple[int, Record]]]] = {
            isolation: defaultdict(list) for isolation in ISOLATIONS
        }
        """What the readers of whole partitions found there, as offsets and records."""
        self.at: dict[Isolation, defaultdict[Record, list[tuple[Place, int]]]] = {
            isolation: defaultdict(list) for isolation in ISOLATIONS
        }
        """Where they found each record."""
        for poll in history.polls:
            if poll.session in whole and poll.place in self.whole[poll.isolation]:
                for offset, writer, number in poll.records:
                    self.rows[poll.isolation][poll.place].append((offset, (writer, number)))
                    self.at[poll.isolation][writer, number].append((poll.place, offset))
        self.sessions: defaultdict[tuple[str, Place], list[Poll]] = defaultdict(list)
        for poll in history.polls:
            self.sessions[poll.session, poll.place].append(poll)

    def transaction_of(self, record: Record) -> Transaction | None:
        """The transaction that a record was sent in. One without a line was never ended by its producer."""
        send = self.sends.get(record)
        if send is None or not send.transaction:
            return None
        never = Transaction(send.transaction, "", 0, 0.0, 0.0, 0.0, "", "", "", ())
        return self.transactions.get(send.transaction, never)

    def aborted(self, record: Record) -> bool:
        transaction = self.transaction_of(record)
        return transaction is not None and transaction.outcome == "aborted"

    def sent_anew(self, record: Record) -> bool:
        """Whether its client gave up a record of the same writer while this one was under way, in no transaction."""
        send = self.sends.get(record)
        if send is None or send.transaction:
            return False
        gave_up = self._gave_up.get(send.writer, [])
        first = bisect_left(gave_up, send.sent)
        return first < len(gave_up) and gave_up[first] <= send.done

    def places_of(self, record: Record) -> set[tuple[Place, int]]:
        """Wherever a reader of whole partitions found it."""
        return {place for isolation in ISOLATIONS for place in self.at[isolation].get(record, ())}


def _of_send(kind: str, send: Send, detail: str = "") -> Anomaly:
    return Anomaly(kind, name_of(send.record), send.topic, send.partition, send.offset, send.done, detail)


# --- what was sent


def _sends(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """Lost, elsewhere, untold: each record by itself."""
    for send in indexed.history.sends:
        places = indexed.places_of(send.record)
        if send.acknowledged and send.offset < 0:
            yield _of_send("untold", send)
        if send.acknowledged and send.offset >= 0 and places and (send.place, send.offset) not in places:
            yield _of_send("elsewhere", send, f"stored at {', '.join(str(offset) for _, offset in sorted(places))}")
        if send.place not in indexed.whole["committed"] or indexed.at["committed"].get(send.record):
            continue
        if not send.transaction:
            if send.acknowledged:
                yield _of_send("lost", send)
        elif send.error != NOT_SENT:
            transaction = indexed.transactions.get(send.transaction)
            others = indexed.of_transaction[send.transaction]
            torn = any(indexed.at["committed"].get(other.record) for other in others)
            if transaction is not None and transaction.outcome == "committed" and not torn:
                yield _of_send("lost", send, f"of the committed transaction {transaction.name}")


def _doubled(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    for record in {record: None for isolation in ISOLATIONS for record in indexed.at[isolation]}:
        places = sorted(indexed.places_of(record))
        copies = max(len(indexed.at[isolation].get(record, ())) for isolation in ISOLATIONS)
        if max(len(places), copies) > 1 and record[0] in indexed.idempotent and not indexed.sent_anew(record):
            (topic, partition), offset = places[0]
            text = ", ".join(f"{place[0]} {place[1]} {at}" for place, at in places)
            yield Anomaly("doubled", name_of(record), topic, partition, offset, 0.0, f"stored at {text}")


# --- what was read


def _reads(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """Invented, aborted_read, uncommitted_read: each record that a consumer was given, by itself."""
    for poll in indexed.history.polls:
        for offset, writer, number in poll.records:
            record = (writer, number)
            send = indexed.sends.get(record)
            where = (name_of(record), poll.topic, poll.partition, offset, poll.at)
            if send is None or send.place != poll.place:
                elsewhere = f"sent to {send.topic} {send.partition}" if send else "never sent"
                why = "no record of the run" if writer == UNREADABLE else elsewhere
                yield Anomaly("invented", *where, f"{why}, read by {poll.session}")
                continue
            transaction = indexed.transaction_of(record)
            if poll.isolation != "committed" or transaction is None:
                continue
            if transaction.outcome == "aborted":
                yield Anomaly("aborted_read", *where, f"transaction {transaction.name}, read by {poll.session}")
            elif poll.at < transaction.ending:
                before = f"{transaction.ending - poll.at:.3f} s before the commit of {transaction.name} was asked for"
                yield Anomaly("uncommitted_read", *where, f"{before}, read by {poll.session}")


def _torn(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """Of a transaction that may have been committed, at the end everything is there or nothing."""
    last = _last_committed(indexed.history.committed)
    for transaction in indexed.transactions.values():
        if transaction.outcome == "aborted":
            continue
        sends = [send for send in indexed.of_transaction[transaction.name] if send.place in indexed.whole["committed"]]
        missing = [send for send in sends if not indexed.at["committed"].get(send.record)]
        there = len(sends) - len(missing)
        if there and missing:
            send = missing[0]
            text = (
                f"{there} of {len(sends)} records are there, missing: {', '.join(name_of(m.record) for m in missing)}"
            )
            yield Anomaly("torn", transaction.name, send.topic, send.partition, send.offset, transaction.ended, text)
        if there or transaction.outcome == "committed":
            for topic, partition, offset in transaction.offsets:
                told = last.get((transaction.group, (topic, partition)))
                if told is not None and told < offset:
                    text = f"its records are there, and {transaction.group} is committed at {told} in the end"
                    yield Anomaly("torn", transaction.name, topic, partition, offset, transaction.ended, text)


def _last_committed(answers: Iterable[Committed]) -> dict[tuple[str, Place], int]:
    """What each group was told last."""
    told: dict[tuple[str, Place], int] = {}
    for answer in sorted(answers, key=lambda answer: answer.done):
        for topic, partition, offset in answer.offsets:
            told[answer.group, (topic, partition)] = offset
    return told


def _reordered(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    for place in sorted(indexed.whole["committed"] | indexed.whole["uncommitted"]):
        rows = {row for isolation in ISOLATIONS for row in indexed.rows[isolation][place]}
        highest: dict[str, int] = {}
        for offset, (writer, number) in sorted(rows):
            before = highest.get(writer, -1)
            if number < before and writer in indexed.idempotent and not indexed.sent_anew((writer, number)):
                yield Anomaly("reordered", name_of((writer, number)), *place, offset, 0.0, f"behind number {before}")
            highest[writer] = max(before, number)


def _two_values(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """Acknowledgements of what no reader found, as aborted records over Pulsar, are compared with each other."""
    told: dict[tuple[Place, int], tuple[Record, str]] = {}
    readings = (
        (poll.place, offset, (writer, number), poll.session)
        for poll in indexed.history.polls
        for offset, writer, number in poll.records
    )
    unread = (
        (send.place, send.offset, send.record, "its acknowledgement")
        for send in indexed.history.sends
        if send.acknowledged and send.offset >= 0 and not indexed.places_of(send.record)
    )
    reported: set[tuple[Place, int, Record]] = set()
    for source in (readings, unread):
        for place, offset, record, by in source:
            first, of = told.setdefault((place, offset), (record, by))
            if first != record and (place, offset, record) not in reported:
                reported.add((place, offset, record))
                text = f"by {by}; {name_of(first)} by {of}"
                yield Anomaly("two_values", name_of(record), *place, offset, 0.0, text)


# --- sessions


def _sessions(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    for (session, place), polls in indexed.sessions.items():
        yield from _positions(session, place, polls)
        isolation = polls[0].isolation
        if place in indexed.whole[isolation]:
            yield from _against_the_whole(indexed, session, place, polls)


def _positions(session: str, place: Place, polls: list[Poll]) -> Iterator[Anomaly]:
    position = polls[0].start
    for poll in polls:
        if poll.start < position:
            yield Anomaly("position_back", session, *place, poll.start, poll.at, f"the position was {position}")
        behind = max(position, poll.start)
        for offset, writer, number in poll.records:
            if offset < behind:
                text = f"{name_of((writer, number))} is given at position {behind}"
                yield Anomaly("position_back", session, *place, offset, poll.at, text)
            behind = max(behind, offset + 1)
        if poll.position < behind:
            text = f"the position is {poll.position} behind what was given up to {behind - 1}"
            yield Anomaly("position_back", session, *place, poll.position, poll.at, text)
        position = max(behind, poll.position)


def _against_the_whole(indexed: _IndexedHistory, session: str, place: Place, polls: list[Poll]) -> Iterator[Anomaly]:
    """What a session was given of the offsets that it passed, against what is there in the end."""
    isolation = polls[0].isolation
    given = {offset: (writer, number) for poll in polls for offset, writer, number in poll.records}
    whole = dict(indexed.rows["committed"][place])  # everybody has to see that
    if isolation == "uncommitted":
        whole |= dict(indexed.rows["uncommitted"][place])
    start, end = polls[0].start, max(poll.position for poll in polls)
    begun = {transaction.name for record in given.values() if (transaction := indexed.transaction_of(record))}
    for offset, record in sorted(whole.items()):
        passed = start <= offset < end and offset not in given
        if passed and not (isolation == "committed" and indexed.aborted(record)):
            transaction = indexed.transaction_of(record)
            torn = transaction is not None and transaction.name in begun
            text = f"{session} passed it and was not given it"
            if transaction is not None and torn:
                text += f", but others of {transaction.name}"
            yield Anomaly("torn" if torn else "skipped", name_of(record), *place, offset, polls[-1].at, text)
    for offset, record in given.items():
        explained = isolation == "committed" and indexed.aborted(record)
        send = indexed.sends.get(record)
        if offset not in whole and not explained and send is not None and send.place == place:
            yield Anomaly("vanished", name_of(record), *place, offset, polls[-1].at, f"{session} was given it")


# --- what may only grow


class _Floor:
    """The greatest value that was known before a time."""

    def __init__(self, known: Iterable[tuple[float, int, str]]) -> None:
        self._times: list[float] = []
        self._greatest: list[tuple[int, str]] = []
        for at, value, what in sorted(known):
            if not self._greatest or value > self._greatest[-1][0]:
                self._times.append(at)
                self._greatest.append((value, what))

    def before(self, at: float) -> tuple[int, str] | None:
        """The value and what made it known; None: nothing was."""
        place = bisect_left(self._times, at)
        return self._greatest[place - 1] if place else None


def _ends(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    history = indexed.history
    asked: defaultdict[tuple[Place, str], list[End]] = defaultdict(list)
    for end in history.ends:
        asked[end.place, end.kind].append(end)
    read: dict[str, defaultdict[Place, list[tuple[float, int, str]]]] = {
        "stable": defaultdict(list),
        "high": defaultdict(list),
    }
    for poll in history.polls:
        for offset, _, _ in poll.records[-1:]:
            given = (poll.at, offset + 1, f"offset {offset} was read by {poll.session}")
            read["high"][poll.place].append(given)
            if poll.isolation == "committed":
                read["stable"][poll.place].append(given)
    hides = any(engine.hides for engine in history.engines)
    for send in history.sends:
        if send.acknowledged and send.offset >= 0 and not hides:
            text = f"offset {send.offset} was acknowledged for {name_of(send.record)}"
            read["high"][send.place].append((send.done, send.offset + 1, text))
    for (place, kind), ends in sorted(asked.items()):
        before = _Floor((end.done, end.offset, f"{end.offset} was told") for end in ends)
        included = _Floor(read[kind][place]) if kind in read else _Floor([])
        stable = [(end.done, end.offset, f"the last stable offset was {end.offset}") for end in asked[place, "stable"]]
        below = _Floor(stable if kind == "high" else [])
        for end in ends:
            greater = [
                (problem, known[1])
                for problem, floor in (("end_back", before), ("end_behind", included), ("end_behind", below))
                if (known := floor.before(end.begin)) is not None and known[0] > end.offset
            ]
            for problem, text in greater[:1]:
                yield Anomaly(problem, kind, *place, end.offset, end.done, f"before that {text}")


def _commits(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """What answers about committed offsets say, against commits and earlier answers.

    A commit without an answer may be carried out late, behind one that the same member made afterwards: what equals one
    is not held against the server.
    """
    history = indexed.history
    told: defaultdict[tuple[str, Place], list[tuple[float, int, str]]] = defaultdict(list)
    plain: defaultdict[tuple[str, Place], list[tuple[float, int, str]]] = defaultdict(list)
    ended: defaultdict[tuple[str, Place], list[tuple[float, int, str]]] = defaultdict(list)
    asked: defaultdict[tuple[str, Place, int], list[float]] = defaultdict(list)
    aborted: set[tuple[str, Place, int]] = set()
    late: set[tuple[str, Place, int]] = set()
    for answer in history.committed:
        for topic, partition, offset in answer.offsets:
            told[answer.group, (topic, partition)].append((answer.done, offset, f"{offset} was told"))
    for commit in history.commits:
        for topic, partition, offset in commit.offsets:
            place = (topic, partition)
            asked[commit.group, place, offset].append(commit.begin)
            if commit.error:
                late.add((commit.group, place, offset))
            else:
                plain[commit.group, place].append((commit.done, offset, f"{offset} was committed"))
    for transaction in indexed.transactions.values():
        for topic, partition, offset in transaction.offsets:
            place = (topic, partition)
            if transaction.outcome == "aborted":
                aborted.add((transaction.group, place, offset))
                continue
            asked[transaction.group, place, offset].append(transaction.ending)
            if transaction.outcome == "committed":
                text = f"{offset} was committed by {transaction.name}"
                ended[transaction.group, place].append((transaction.ended, offset, text))
    keys = {*told}
    earlier = {key: _Floor(told[key]) for key in keys}
    floors = {True: {key: _Floor(plain[key] + ended[key]) for key in keys}, False: {k: _Floor(plain[k]) for k in keys}}
    for answer in history.committed:
        for topic, partition, offset in answer.offsets:
            key = (answer.group, (topic, partition))
            where = (answer.group, topic, partition, offset, answer.done)
            if offset >= 0 and not any(begin <= answer.done for begin in asked[*key, offset]):
                why = "an aborted transaction asked for it" if (*key, offset) in aborted else "nobody had asked for it"
                yield Anomaly("commit_invented", *where, why)
            if (*key, offset) in late:
                continue
            for problem, floor in (("commit_back", earlier[key]), ("commit_lost", floors[answer.stable][key])):
                known = floor.before(answer.begin)
                if known is not None and known[0] > offset:
                    yield Anomaly(problem, *where, f"before that {known[1]}")
                    break


def _half_committed(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """In one answer, a transaction's offsets for several partitions are there or are not."""
    by_group: defaultdict[str, list[Transaction]] = defaultdict(list)
    for transaction in indexed.transactions.values():
        if transaction.outcome == "committed" and len(transaction.offsets) > 1:
            by_group[transaction.group].append(transaction)
    for transactions in by_group.values():
        transactions.sort(key=lambda transaction: transaction.ended)
    reported: set[str] = set()
    for answer in indexed.history.committed:
        if not answer.stable:
            continue
        transactions = by_group[answer.group]
        offsets = {(topic, partition): offset for topic, partition, offset in answer.offsets}
        # What had ended before the question is held by `commit_lost`, what was asked for behind the answer by
        # `commit_invented`.
        for transaction in transactions[
            bisect_right(transactions, answer.begin, key=lambda transaction: transaction.ended) :
        ]:
            if transaction.ending > answer.done or transaction.name in reported:
                continue
            asked = [asked_offset for asked_offset in transaction.offsets if asked_offset[:2] in offsets]
            missing = [
                asked_offset
                for asked_offset in transaction.offsets
                if offsets.get(asked_offset[:2], asked_offset[2]) < asked_offset[2]
            ]
            if missing and len(missing) < len(asked):
                reported.add(transaction.name)
                topic, partition, at = missing[0]
                text = f"{answer.group} is at {offsets[topic, partition]} here and has other offsets of it"
                yield Anomaly("half_committed", transaction.name, topic, partition, at, answer.done, text)


# --- chains and producers


def _chains(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    last = _last_committed(indexed.history.committed)
    for chain in indexed.history.chains:
        yield from _chain(indexed, chain, last)


def _chain(indexed: _IndexedHistory, chain: Chain, last: dict[tuple[str, Place], int]) -> Iterator[Anomaly]:
    inputs = {
        source_of(place, offset): (place, offset)
        for topic in chain.inputs
        for place in sorted(indexed.places[topic])
        for offset, _ in indexed.rows["committed"][place]
    }
    whole = indexed.whole["committed"]
    inputs_are_whole = all(indexed.places[topic] <= whole for topic in chain.inputs)
    outputs: Counter[str] = Counter()
    for place in sorted(indexed.places[chain.output]):
        for offset, record in indexed.rows["committed"][place]:
            send = indexed.sends.get(record)
            if send is None or indexed.aborted(record):
                continue  # invented, aborted_read
            if not send.source:
                continue  # of a writer that is no part of the chain
            outputs[send.source] += 1
            if send.source not in inputs and inputs_are_whole:
                text = f"made from {send.source} by {chain.name}"
                yield Anomaly("chain_invented", name_of(record), *place, offset, 0.0, text)
    for source, (place, offset) in inputs.items():
        if outputs[source] > 1:
            text = f"{outputs[source]} outputs of {chain.name}"
            yield Anomaly("chain_doubled", source, *place, offset, 0.0, text)
        elif (
            not outputs[source]
            and indexed.places[chain.output] <= whole
            and offset < last.get((chain.group, place), -1)
        ):
            text = f"no output of {chain.name}, which has passed it"
            yield Anomaly("chain_lost", source, *place, offset, 0.0, text)


def _unfenced(indexed: _IndexedHistory) -> Iterator[Anomaly]:
    """A producer that was refused may have been told so late: its records show what happened."""
    initialized: defaultdict[str, list[Instance]] = defaultdict(list)
    for instance in indexed.history.instances:
        initialized[instance.transactional_id].append(instance)
    for transaction in indexed.transactions.values():
        read = any(indexed.at["committed"].get(send.record) for send in indexed.of_transaction[transaction.name])
        if transaction.outcome == "committed" or (transaction.outcome == "unknown" and read):
            others = initialized[transaction.transactional_id]
            later = [
                other.number
                for other in others
                if other.number > transaction.instance and other.done < transaction.ending
            ]
            if later:
                text = (
                    f"producer {transaction.instance} of {transaction.transactional_id}, "
                    f"after {max(later)} was initialized"
                )
                yield Anomaly("unfenced", transaction.name, "", -1, -1, transaction.ending, text)
