"""What the error of a query says.

Owns: which of the many lines of Spark's errors is told.
Must not know: what queries do; it does not import pyspark.
"""

from __future__ import annotations

import re
from typing import Final

_ERROR: Final = re.compile(
    r"^(?:: |Caused by: )?(?:[\w.]+\.)?(?:NotPlannedError: )?(\w*(?:Error|Exception|Exit)): (.+)", re.MULTILINE
)


def told_of(error: BaseException) -> str:
    """Return the reason that an error gives: what `told` makes of its text if the error is one of Spark's, which names
    others, else its type and its text.
    """
    is_of_spark = type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}
    return told(str(error) if is_of_spark else f"{type(error).__name__}: {error}")


def told(text: str) -> str:
    """Return the reason in the text of a query's error, up to 1000 characters: the innermost error that it names, which
    is that of the failed task, or the driver's if it could not plan a batch, without the stacks around it; the first
    line if it names none.
    """
    if "Python worker exited unexpectedly" in text:
        return "its Python worker has ended"
    errors = [f"{name}: {rest}" for name, rest in _ERROR.findall(text) if not name.startswith("Py4J")]
    lines = text.strip().splitlines()
    return (errors[-1] if errors else lines[0] if lines else "no reason is known")[:1000]
