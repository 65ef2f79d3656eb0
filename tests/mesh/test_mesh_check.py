"""What is wrong with a whole mesh: line, name and remedy, all at once."""

from __future__ import annotations

import pytest

from kop.functions.topics import TopicNames
from kop.mesh.file import draft_of
from kop.mesh.mesh_check import Checked, check
from kop.mesh.plan import Facts
from kop.mesh.spec import FunctionPart

SINK = "sinks: [{name: s, inputs: t, format: json}]"
HEAD = "name: m\nfunctions:\n"


def function(name: str, inputs: str, output: str = "", more: str = "") -> str:
    return f"- {{name: {name}, className: f, py: f.py, inputs: [{inputs}], output: {output or '~'}, {more}}}\n"


def checked(text: str, facts: Facts | None = None, cores: int | None = None) -> Checked:
    return check(draft_of(text, "mesh.yaml"), facts, cores)


def told(text: str, facts: Facts | None = None, cores: int | None = None) -> list[str]:
    return [f"{mistake.line}: {mistake.text}" for mistake in checked(text, facts, cores).mistakes]


def test_a_mesh_that_is_right_has_a_plan_and_tells_what_others_write() -> None:
    made = checked(HEAD + function("a", "in", "t") + function("b", "t", "out"))
    assert made.mistakes == ()
    assert made.notes == ("topics that others have to write: in",)
    assert made.plan is not None
    assert [component.names for component in made.plan.components] == [("a", "b")]


def test_all_mistakes_are_told_at_once() -> None:
    text = (
        "name: m\nfusee: true\nfunctions:\n"
        + function("a", "in, u", "t", "paralelism: 2")
        + function("b", "t", "u", "parallelism: 0")
        + function("b", "t", "v", "outputSchemaType: json")
        + function("c", "t", "v", "outputSchemaType: string")
        + "sinks:\n- {name: s, inputs: x, format: ~}\n"
    )
    assert told(text) == [
        "2: fusee: there is no such field; is it fuse?",
        "4: function a: a cycle, a -(t)-> b -(u)-> a: let one of them write another topic",
        "4: function a: paralelism: there is no such field; is it parallelism?",
        "5: function b: parallelism: Input should be greater than or equal to 1, got '0'",
        "6: function b: name: line 5 has a function of this name: a name is once in a mesh",
        "7: function c: output: v gets string of it, and json of b (line 6): let both write the same, or give each a "
        "topic of its own",
        "9: sink s: format: is missing: a format that Spark writes, as parquet, csv or jdbc",
    ]


def test_a_cycle_is_told_by_its_shortest_way_and_what_is_behind_it_is_not_reached() -> None:
    text = (
        HEAD
        + function("a", "t3", "t1")
        + function("b", "t1", "t2")
        + function("c", "t2", "t3")
        + function("d", "t2", "out")
    )
    assert told(text) == [
        "3: function a: a cycle, a -(t1)-> b -(t2)-> c -(t3)-> a: let one of them write another topic",
        "6: function d: nothing reaches it: b before it gets no messages",
    ]


def test_dead_letters_may_come_back() -> None:
    """They are no output: a function that tries them again is no cycle."""
    text = (
        HEAD
        + function("a", "in, again", "t", "deadLetterTopic: dead, maxMessageRetries: 1")
        + function("b", "dead", "again")
    )
    assert told(text) == []


@pytest.mark.parametrize(
    ("head", "facts", "mistake"),
    [
        ("", Facts({"in": 1}), "inputs: ordres is not on the server, and no part writes it; is it orders?"),
        (
            "externalWriters: [in]\n",
            None,
            "inputs: ordres is written by no part, and externalWriters does not name it; is it orders?",
        ),
    ],
)
def test_an_input_that_nobody_writes(head: str, facts: Facts | None, mistake: str) -> None:
    text = head + HEAD + function("a", "in", "orders") + function("b", "ordres", "t") + function("c", "t", "out")
    line = 3 + text.count("\n") - 4
    assert told(text, facts) == [
        f"{line}: function b: {mistake}",
        f"{line + 1}: function c: nothing reaches it: b before it gets no messages",
    ]


@pytest.mark.parametrize(
    ("topic", "written", "is_near"),
    [
        ("orders", "clean-orders", False),
        ("clean-orders", "orders", False),
        ("mesh-lines", "mesh-loud", False),
        ("late-orders", "large-orders", False),
        ("orders-1", "orders-2", False),
        ("order", "orders", True),
        ("Orders", "orders", True),
        ("oders", "orders", True),
        ("orderz", "orders", True),
        ("ordres", "orders", True),
    ],
)
def test_a_topic_is_guessed_if_one_letter_makes_the_difference(topic: str, written: str, is_near: bool) -> None:
    text = HEAD + function("a", "in", written) + function("b", topic, "t")
    guess = f" (is it {written}?)" if is_near else ""
    assert checked(text).notes == (f"topics that others have to write: in, {topic}{guess}",)


def test_an_input_may_be_written_by_others() -> None:
    text = HEAD + function("a", "in", "orders") + function("b", "ordres", "t")
    assert checked(text).notes == ("topics that others have to write: in, ordres (is it orders?)",)
    assert told("externalWriters: [in, ordres]\n" + text) == []
    on_server = check(draft_of(text, "mesh.yaml"), Facts({"in": 1, "ordres": 2}))
    assert (on_server.mistakes, on_server.notes) == ((), ()), "the server has them"
    alone = HEAD + function("b", "topic")
    assert told(alone, Facts({"in": 1})) == [
        "3: function b: inputs: topic is not on the server, and no part writes it; name topic in externalWriters if "
        "others write it"
    ]


def test_names_are_once_among_all_kinds() -> None:
    text = HEAD + function("a", "in", "t") + "sinks:\n- {name: a, inputs: t, format: json}\n"
    assert told(text) == ["5: sink a: name: line 3 has a function of this name: a name is once in a mesh"]


@pytest.mark.parametrize(
    ("parts", "mistake"),
    [
        (
            function("a", "in", "t", "private: true") + function("b", "t", "u", "stateScope: partition"),
            "3: function a: private: b needs the topic t: b has state, and a has no keepsKey: true: leave private away",
        ),
        (
            function("a", "in", "t", "private: true"),
            "3: function a: private: nobody reads t: leave private away, or its messages would be lost",
        ),
        (
            function("a", "in", "t", "private: true")
            + function("b", "t")
            + "sinks: [{name: s, inputs: t, format: json}]",
            "3: function a: private: the sink s needs the topic t: leave private away",
        ),
        (
            function("a", "in", "t", "private: true") + function("b", "t") + function("c", "in", "t"),
            "3: function a: private: c writes t, too, and does not call it private: both or none",
        ),
        (
            function("a", "in", "t", "stateScope: function, parallelism: 2"),
            "3: function a: stateScope: parallelism 2 has no state of the whole function: let it be partition, or "
            "parallelism 1",
        ),
        (
            function("a", "in, more", "t", "stateScope: partition"),
            "3: function a: stateScope: partition needs one topic as input, and no pattern",
        ),
    ],
)
def test_state_and_private_topics_where_they_cannot_be(parts: str, mistake: str) -> None:
    assert told(HEAD + parts) == [mistake]


def test_a_private_topic_that_is_only_called_with_is_right() -> None:
    parts = function("a", "in", "t", "private: true") + function("b", "t", "u")
    assert told(HEAD + parts) == []
    assert told(f"fuse: false\n{HEAD}{parts}") == []


def test_components_that_last_need_a_core_each() -> None:
    parts = function("a", "in", "t") + function("x", "other", "out")
    text = HEAD + parts + "sinks: [{name: s, inputs: t, format: json}]"
    mistake = (
        "1: trigger: 3 cores are needed, of 2, one at all times for each of a, x, sources, sinks and queries: --master "
        "local[3], or trigger: batch"
    )
    assert told(text, cores=2) == [mistake]
    assert told(text, cores=3) == []
    assert told(f"trigger: batch\n{text}", cores=1) == []


def test_parallelism_has_no_effect_which_a_note_tells() -> None:
    text = HEAD + function("a", "in", "t", "parallelism: 3") + function("b", "t", "out", "parallelism: 1")
    assert checked(text, cores=1).notes[0] == (
        "line 3: function a: parallelism: has no effect in a mesh: each component has as many tasks as Spark has cores "
        "for it, and its inputs partitions"
    )
    assert not [note for note in checked(text).notes if "function b" in note]


def test_code_is_looked_at_by_who_can() -> None:
    def look(part: FunctionPart) -> list[str]:
        return ["f.py, line 3: NameError: no"] if part.name == "b" else []

    draft = draft_of(HEAD + function("a", "in", "t") + function("b", "t", "in"), "mesh.yaml")
    assert [mistake.text for mistake in check(draft, code=look).mistakes] == [
        "function a: a cycle, a -(t)-> b -(in)-> a: let one of them write another topic",
        "function b: code: f.py, line 3: NameError: no",
    ]


def test_a_topic_is_read_once_in_a_group() -> None:
    shared = function("a", "in, x", "t", "subName: g") + function("b", "in", "u", "subName: g")
    assert told(HEAD + shared) == [
        "4: function b: subName: a reads in in the group g, too: give each its own, for one would miss what the other "
        "has done"
    ]
    assert told(HEAD + function("a", "in", "t", "subName: g") + function("b", "t", "u", "subName: g")) == []


def test_a_part_with_a_mistake_writes_the_topic_that_others_read() -> None:
    text = "externalWriters: [in]\n" + HEAD
    text += function("a", "in", "persistent://public/default/t", "fuse: 1") + function("b", "public/default/t", "u")
    assert told(text) == ["4: function a: fuse: there is no such field"]


def test_a_topic_that_is_named_with_its_namespace_and_without_is_told() -> None:
    text = HEAD + function("a", "in", "public/default/t") + function("b", "t", "u")
    names = TopicNames(has_namespaces=True)
    assert check(draft_of(text, "mesh.yaml", names)).notes[0] == (
        "t and public/default/t are taken for two topics: if they are one, write one of both names"
    )
    assert check(draft_of(text, "mesh.yaml")).notes == ("topics that others have to write: in",)


def test_the_nearest_topic_is_one_of_the_same_namespace_by_its_own_name() -> None:
    text = HEAD + function("a", "t/n/in, t/n/ordres", "t/n/out") + function("b", "t/n/out", "t/n/orders")
    names = TopicNames(has_namespaces=True)
    assert check(draft_of(text, "mesh.yaml", names)).notes == (
        "topics that others have to write: t/n/in, t/n/ordres (is it t/n/orders?)",
    )
