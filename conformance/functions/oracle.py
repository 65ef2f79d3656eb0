"""What must not be in what functions gave: a pure comparison with what a run without faults would have given.

Owns: what a run without faults gives, what each guarantee promises of it.
Must not know: clients, processes, faults.

| kind | what it is | once | at-least | at-most |
|---|---|---|---|---|
| lost | a message has no output in a topic that it should have one in | x | x | |
| repeated | it has more than one there | x | | x |
| reordered | an output of a unit lies before one of an earlier message of the same unit | x | | |
| elsewhere | outputs of a unit lie in more than one partition | x | x | x |
| miscounted | the state that an output tells of is not that of a clean run | x | | |
| invented | an output that no message has | x | x | x |
| uncommitted | the offset of a partition is not its end, although all is done | x | x | x |
| unlike | over Pulsar: its own consumers are given something else, or in another order | x | x | x |
| open | a transaction on a partition of outputs has not ended | x | x | x |
| hangs | an instance that was replaced has not ended | x | x | x |
| ended | an instance ended otherwise than it should, or that should not have | x | x | x |

A unit is what has an order: the messages of an input partition, or of one key in it.
"""

from __future__ import annotations

import itertools
import signal
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
Unit: TypeAlias = tuple[str, int, str]
"""Topic and partition of inputs, and a key; an empty one for all keys together."""


class Message(NamedTuple):
    """An input as a reader of committed records finds it. Its text is another one than that of all others."""

    topic: str
    partition: int
    offset: int
    key: str
    text: str


class Output(NamedTuple):
    """An output as a reader of committed records finds it. `at`: seconds since 1970, when it was written."""

    topic: str
    partition: int
    offset: int
    at: float
    text: str


class Promise(NamedTuple):
    """What a guarantee promises."""

    name: str
    keeps: bool
    """Nothing is lost."""
    repeats: bool
    """Outputs may be there more than once, and in another order."""
    counts: bool
    """Outputs tell of a state, which is right."""


class Topics(NamedTuple):
    """Where a function writes: its results, and what it publishes of messages that have a key."""

    results: str
    published: str


class Anomaly(NamedTuple):
    """Something that must not be. `at`: seconds since 1970, about; 0 if nothing tells."""

    kind: str
    function: str
    topic: str
    partition: int
    offset: int
    detail: str
    at: float = 0.0


class Verdict(NamedTuple):
    """What was found, and what is allowed but worth telling."""

    anomalies: list[Anomaly]
    messages: int
    repeated: int
    lost: int


class _Wanted(NamedTuple):
    message: Message
    number: int
    """Its place in its unit."""
    unit: Unit
    told: str
    """What a clean run tells of the state."""


def check(promise: Promise, topics: Topics, messages: Iterable[Message], outputs: Iterable[Output]) -> Verdict:
    """Compare all outputs of a function with all its inputs, which come in the order of their offsets."""
    anomalies: list[Anomaly] = []
    wanted = _wanted(topics, messages, promise.counts)
    seen: dict[tuple[str, str], int] = Counter()
    homes: dict[tuple[str, Unit], int] = {}
    reached: dict[tuple[str, Unit], int] = {}
    repeated = 0

    def wrong(kind: str, output: Output, detail: str) -> None:
        anomalies.append(Anomaly(kind, promise.name, output.topic, output.partition, output.offset, detail, output.at))

    for output in sorted(outputs, key=lambda each: (each.topic, each.partition, each.offset)):
        text, _, told = output.text.partition(" ")
        want = wanted[output.topic].get(text)
        if want is None:
            wrong("invented", output, output.text)
            continue
        where = output.topic, want.unit
        if homes.setdefault(where, output.partition) != output.partition:
            wrong("elsewhere", output, f"{text}: others of {want.unit} are in partition {homes[where]}")
        seen[output.topic, text] += 1
        if seen[output.topic, text] > 1:
            repeated += 1
            if not promise.repeats:
                wrong("repeated", output, f"{text} for the {seen[output.topic, text]}. time")
            continue
        if not promise.repeats:
            last = reached.get(where, -1)
            if promise.keeps and want.number < last:
                wrong("reordered", output, f"{text} is number {want.number} of {want.unit}, behind number {last}")
            reached[where] = max(last, want.number)
        if promise.counts and told != want.told:
            wrong("miscounted", output, f"{text}: {told or 'nothing'} instead of {want.told}")
    lost = 0
    for topic, by_text in wanted.items():
        for text, want in by_text.items():
            if not seen[topic, text]:
                lost += 1
                if promise.keeps:
                    message = want.message
                    detail = f"{text} of {message.topic}-{message.partition} offset {message.offset} is not in {topic}"
                    anomalies.append(
                        Anomaly("lost", promise.name, message.topic, message.partition, message.offset, detail)
                    )
    return Verdict(anomalies, sum(map(len, wanted.values())), repeated, lost)


def _wanted(topics: Topics, messages: Iterable[Message], counts: bool) -> Mapping[str, dict[str, _Wanted]]:
    """Return the outputs of a clean run by topic and text."""
    wanted: dict[str, dict[str, _Wanted]] = {topics.results: {}, topics.published: {}}
    numbers: Counter[Unit] = Counter()
    state: dict[Unit, tuple[int, int]] = {}
    for message in messages:
        told = ""
        if counts:
            owner = message.topic, message.partition, message.key
            count, total = state.get(owner, (0, 0))
            state[owner] = count, total = count + 1, zlib.crc32(message.text.encode(), total)
            told = f"{count} {total}"
        places = [(topics.results, "")] + ([(topics.published, message.key)] if message.key else [])
        for topic, key in places:
            unit = message.topic, message.partition, key
            wanted[topic][message.text] = _Wanted(message, numbers[unit], unit, told)
        for unit in {(message.topic, message.partition, key) for _, key in places}:
            numbers[unit] += 1
    return wanted


def check_offsets(function: str, committed: Mapping[Place, int], ends: Mapping[Place, int]) -> list[Anomaly]:
    """Compare what a function has committed with the ends of its inputs."""
    return [
        Anomaly("uncommitted", function, *place, committed.get(place, -1), f"its end is {end}")
        for place, end in sorted(ends.items())
        if committed.get(place, -1) != end
    ]


def check_ends(function: str, stable: Mapping[Place, int], high: Mapping[Place, int]) -> list[Anomaly]:
    """Look for transactions on outputs that have not ended."""
    return [
        Anomaly("open", function, *place, stable.get(place, -1), f"its end is {end}")
        for place, end in sorted(high.items())
        if stable.get(place, -1) != end
    ]


def check_views(function: str, outputs: Iterable[Output], native: Mapping[Place, Sequence[str]]) -> list[Anomaly]:
    """Compare outputs with what Pulsar's own consumers are given of the same partitions, in its order."""
    ours: dict[Place, list[Output]] = {place: [] for place in native}
    for output in outputs:
        ours.setdefault((output.topic, output.partition), []).append(output)
    anomalies = []
    for place, texts in native.items():
        for output, text in itertools.zip_longest(ours[place], texts):
            if output is None or output.text != text:
                detail = f"{text or 'nothing'} instead of {output.text if output else 'nothing'}"
                offset, at = (output.offset, output.at) if output else (-1, 0.0)
                anomalies.append(Anomaly("unlike", function, *place, offset, detail, at))
                break  # all behind it is shifted
    return anomalies


class Life(NamedTuple):
    """An instance and its end. `replaced_at` is 0 if nobody replaced it, `code` is None if it has not ended."""

    number: int
    how: str
    """killed, stopped (by a signal that it may follow), replaced, or empty: it should have gone on."""
    at: float
    """Since when it should have ended; or when it was seen to have."""
    code: int | None
    says: str
    """The last line of its log."""


REPLACED = "another one has begun with the transactional id"
STOPPED = "has ended: "
HANGS = (None, -signal.SIGABRT)
"""Exit codes of those that had to be ended; SIGABRT makes Python say where its threads are."""


def check_lives(function: str, lives: Sequence[Life]) -> list[Anomaly]:
    """Look for instances that did not end, or not as they should."""
    anomalies = []
    for life in lives:
        kind, detail = "", ""
        if life.how and life.code in HANGS:
            kind, detail = "hangs", f"it was {life.how}, and has not ended"
        elif life.how == "replaced" and (life.code != 1 or REPLACED not in life.says):
            kind, detail = "ended", "it was replaced, and does not say so"
        elif life.how == "stopped" and (life.code != 0 or STOPPED not in life.says):
            kind, detail = "ended", "it was stopped"
        elif not life.how and life.code is not None:
            kind, detail = "ended", "nobody has ended it"
        if kind:
            said = f"; code {life.code}: {life.says}"
            anomalies.append(
                Anomaly(kind, function, "", life.number, 0, f"instance {life.number}: {detail}{said}", life.at)
            )
    return anomalies
