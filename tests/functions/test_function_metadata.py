"""What other threads find while records change what is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kop.functions.definitions import Assignment, DamagedRecordError, InstanceName, instance_key
from kop.functions.metadata import ASSIGNMENTS, FunctionsMetadata
from kop.functions.packages import Assembler

NAME: InstanceName = ("a/b/c", 1)
KEY = instance_key(NAME)
FIRST, SECOND = (Assignment(worker=worker, revision=1, partitions=(("in", 0),), number=1) for worker in ("v", "w"))


class NeverSmaller(dict[InstanceName, Assignment]):
    """Rows of which none may be missing for a moment."""

    def pop(self, *_: Any) -> Any:
        raise AssertionError("another thread would find nothing")

    __delitem__ = pop


def test_a_row_that_changes_is_there_all_the_time(tmp_path: Path) -> None:
    metadata = FunctionsMetadata(Assembler(tmp_path), assignments=NeverSmaller())
    for assignment in (FIRST, SECOND):
        metadata.take(ASSIGNMENTS, 0, 0, KEY, assignment.to_json())
        assert metadata.assignments == {NAME: assignment}


def test_a_row_that_is_deleted_or_damaged_does_not_stay(tmp_path: Path) -> None:
    metadata = FunctionsMetadata(Assembler(tmp_path))
    metadata.take(ASSIGNMENTS, 0, 0, KEY, FIRST.to_json())
    with pytest.raises(DamagedRecordError):
        metadata.take(ASSIGNMENTS, 1, 0, KEY, b"{")
    assert metadata.assignments == {}
    metadata.take(ASSIGNMENTS, 2, 0, KEY, FIRST.to_json())
    metadata.take(ASSIGNMENTS, 3, 0, KEY, None)
    assert metadata.assignments == {}
