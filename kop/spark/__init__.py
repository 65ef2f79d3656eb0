"""PySpark and the topics: the data source `format("kop")`. The only room that imports pyspark.

Owns: what a user of PySpark imports; see docs/spark.md. A client of the gateway like any other: it talks Kafka's
protocol through kafka-python, and knows of kop only how record batches are laid out.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kop.spark.group_progress import print_lag
    from kop.spark.listener import track_progress
    from kop.spark.mesh.notebook import run_mesh
    from kop.spark.streams import write_stream
    from kop.spark.tables import latest, sql

__all__ = ["latest", "print_lag", "register", "run_mesh", "sql", "track_progress", "write_stream"]


def register(spark: Any) -> None:
    """Make `format("kop")` known to a SparkSession that does not find it by itself; one that knows it already is left
    as it is.

    PySpark finds `pyspark_kop` where kop is installed in the driver's environment. It does not where the package comes
    another way (an archive, an editable install that hides its modules), or where another `pyspark_*` module does not
    import: PySpark then finds no Python data source at all.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 (the rest of the room needs pyspark)

    from kop.spark.source import KopDataSource  # noqa: PLC0415

    try:
        spark.dataSource.register(KopDataSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # PySpark 4.0 has found `pyspark_kop` itself; newer versions take the same source again.


_HOMES = {
    "latest": "kop.spark.tables",
    "print_lag": "kop.spark.group_progress",
    "run_mesh": "kop.spark.mesh.notebook",
    "sql": "kop.spark.tables",
    "track_progress": "kop.spark.listener",
    "write_stream": "kop.spark.streams",
}
"""The modules of this package's names. Each is imported when it is asked for: a task loads no more than it needs."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
