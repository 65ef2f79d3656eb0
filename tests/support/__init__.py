"""Helpers of the tests: a gateway in this process, and a client that can send anything."""
