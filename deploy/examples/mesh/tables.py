"""Show what the mesh has written to Parquet and into the database, while it does not run: `kop spark tables.py`."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.read.parquet("bills.parquet").select("value").orderBy("value").show(truncate=False)
ledger = {"url": "jdbc:derby:ledger", "driver": "org.apache.derby.jdbc.EmbeddedDriver", "dbtable": "bills"}
spark.read.format("jdbc").options(**ledger).load().select("bill", "customer", "price").orderBy("bill").show()
