"""Pulsar's binary protocol as protobuf messages. Owns: the generated code (`pulsar_pb2`), nothing by hand."""
