"""What the run of Kafka's copier takes for a difference."""

from __future__ import annotations

import pytest

from conformance.copier import differences


@pytest.mark.parametrize(
    ("copied", "told"),
    [
        (["a", "b", "c"], []),
        (["a", "c"], ["1 missing, as b"]),
        (["a", "b", "b", "c"], ["1 more than once, as b"]),
        (["a", "b", "c", "d"], ["1 never written, as d"]),
        (["a", "a", "d"], ["2 missing, as b, c", "1 more than once, as a", "1 never written, as d"]),
        (["b", "a", "c"], ["another order"]),
    ],
)
def test_each_difference_is_named(copied: list[str], told: list[str]) -> None:
    assert differences(["a", "b", "c"], copied) == told
