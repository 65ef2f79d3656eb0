"""PySpark and the topics: the data source `format("kop")`. The only room that imports pyspark.

Owns: what a user of PySpark imports; see docs/spark.md. A client of the gateway like any other: it talks Kafka's
protocol through kafka-python, and knows of kop only how record batches are laid out.
"""
