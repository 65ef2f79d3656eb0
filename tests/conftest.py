"""What all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for `from support import ...` in every folder

# On a slow machine examples take as long as they take.
settings.register_profile("kop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kop")

pytest_plugins = ("support.pulsar",)
