"""Meshes: functions, sources, sinks and queries between topics, as one graph: read, checked, planned and drawn."""
