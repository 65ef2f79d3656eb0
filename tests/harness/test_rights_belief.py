"""What may be in force while a right changes, by which answers under load are judged."""

from __future__ import annotations

from conformance.rights.belief import Belief


def test_what_held_before_is_right_until_the_bound() -> None:
    belief = Belief("old")
    assert belief.is_right("old", 0, 1, 1.0)
    assert not belief.is_right("new", 0, 1, 1.0)
    belief.change("new", 10.0)
    for _ in range(2):  # under way, or sent and not answered: both may be
        assert belief.possible(10.0, 11.0, 1.0) == {"old", "new"}
    belief.done(12.0)
    assert belief.is_right("new", 9.0, 10.0, 1.0)  # it was under way when the change came
    assert not belief.is_right("new", 8.0, 9.9, 1.0)
    assert belief.is_right("old", 13.0, 20.0, 1.0)
    assert not belief.is_right("old", 13.1, 20.0, 1.0)
    assert belief.possible(13.1, 20.0, 1.0) == {"new"}
    assert (belief.value, belief.worst) == ("new", 1.0)


def test_a_value_that_comes_back_is_right_again() -> None:
    belief = Belief(1)
    for number, value in enumerate((2, 1)):
        belief.change(value, 10.0 * (number + 1))
        belief.done(10.0 * (number + 1) + 1)
    assert belief.is_right(1, 30.0, 30.1, 1.0)
    assert not belief.is_right(2, 30.0, 30.1, 1.0)
    assert not belief.is_right(1, 15.0, 15.1, 1.0)
    assert belief.worst == 0.0
