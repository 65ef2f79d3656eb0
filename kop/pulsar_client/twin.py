"""Which of the twins takes the bytes of a socket apart: the compiled `kop._native`, or `kop.pulsar_client._pure`.

Owns: the choice.
Must not know: what the twins do.
"""

from __future__ import annotations

from kop.compiled import compiled
from kop.pulsar_client import _pure

twin = compiled(_pure)
