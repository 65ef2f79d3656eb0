"""The dashboard that is shipped asks for metrics that a worker has, by labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

from functions.rest_kit import status_of

from kop.functions.metrics import families

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "functions.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_a_dashboard_asks_for_metrics_that_there_are() -> None:
    samples = [sample for family in families({("t/n/f", 0): status_of()}, "c") for sample in family.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    named = {name for text in expressions for name in re.findall(r"(?:kop|pulsar)_function_\w+", text)}
    assert named <= labels.keys()
    assert {"kop_function_lag", "pulsar_function_received_total", "kop_function_running"} <= named
    for text in expressions:
        metrics = re.findall(r"(?:kop|pulsar)_function_\w+", text)
        by = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in re.split(r", *", group)}
        assert all(by <= labels[name] for name in metrics), text


def test_no_panel_lies_on_another() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
