"""Spark's types as pyarrow has them.

Owns: what differs in that between versions of PySpark.
Must not know: sources and sinks.
"""

from __future__ import annotations

from typing import Any


def arrow_type(kind: Any) -> Any:
    """Return the type of pyarrow in which values of a type of Spark go to Python workers and come from them."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 (a module that takes pyarrow along)

    try:
        return to_arrow_type(kind, timezone="UTC")
    except TypeError:  # before PySpark 4.1 times are of UTC
        return to_arrow_type(kind)
