"""Kafka's wire protocol, no I/O: frames and headers, a strict decoder, hand-written Produce and Fetch, state records.

The only package that imports kafka-python's codec, whose internals are not promised stable.
"""

import warnings

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that Python 3.11 and 3.12 call deprecated. Whoever imports the
    # gateway is not told: in their test run a warning may be an error.
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer  # noqa: F401 - loaded here, used by the modules of this package

    import kop.wire.delegation_tokens  # noqa: F401
