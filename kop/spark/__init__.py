"""PySpark and the topics: the data source `format("kop")`. The only room that imports pyspark.

Owns: what a user of PySpark imports; see docs/spark.md. A client of the gateway like any other: it talks Kafka's
protocol through kafka-python, and knows of kop only how record batches are laid out.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make `format("kop")` known to a SparkSession that does not find it by itself.

    PySpark finds `pyspark_kop` where kop is installed in the driver's environment. It does not where the package comes
    another way (an archive, an editable install that hides its modules), or where another `pyspark_*` module does not
    import: PySpark then finds no Python data source at all.
    """
    from kop.spark.source import KopDataSource  # noqa: PLC0415 (the rest of the room needs pyspark)

    spark.dataSource.register(KopDataSource)
