"""How many examples a property test tries.

`make test` tries some of them, so that it stays short; `make test-full` sets KOP_ALL_EXAMPLES=1 and tries all.
"""

from __future__ import annotations

import os

ALL_EXAMPLES = os.environ.get("KOP_ALL_EXAMPLES") == "1"
_SHARE, _FEWEST = 5, 50


def examples(most: int) -> int:
    """`most` in the full run, otherwise a share of them."""
    return most if ALL_EXAMPLES else max(most // _SHARE, min(most, _FEWEST))
