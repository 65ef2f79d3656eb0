"""Judges results: known gaps, the control's verdict, the table, the closing line.

Must not know: how suites run.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.protocol import Collector, Result

GAPS = Path(__file__).resolve().parent / "known_gaps.toml"
TARGETS = ("kop", "kop-pulsar", "kafka")


class Gaps:
    """The cases that cannot pass yet on one target, with their reasons."""

    def __init__(self, target: str, path: Path = GAPS) -> None:
        self._reasons: dict[str, str] = {}
        for entry in tomllib.loads(path.read_text()).get("gap", []):
            targets = [entry["target"]] if isinstance(entry["target"], str) else entry["target"]
            unknown = set(targets) - set(TARGETS)
            if unknown or not entry["reason"].strip():
                raise ValueError(f"{path.name}: {entry['case']}: targets {targets}, reason {entry['reason']!r}")
            if target in targets or (target == "kop-pulsar" and "kop" in targets):
                self._reasons[entry["case"]] = entry["reason"]

    def reason(self, result: Result) -> str | None:
        """Why this case cannot pass; a listed name that ends in * stands for all that begin so."""
        for name, reason in self._reasons.items():
            if name == result.id or (name.endswith("*") and result.id.startswith(name[:-1])):
                return reason
        return None


@dataclass(slots=True)
class Report:
    """Everything that a run found out."""

    bootstrap: str
    target: str
    gaps: Gaps
    collectors: list[Collector] = field(default_factory=list)
    control: dict[str, Result] = field(default_factory=dict)

    def verdict(self, result: Result) -> str:
        """passed, failed, skipped or gap."""
        if result.ok:
            return "passed"
        if result.ok is None:
            return "skipped"
        return "gap" if self.gaps.reason(result) else "failed"

    def results(self, verdict: str) -> list[Result]:
        """The results with this verdict, in order."""
        return [r for c in self.collectors for r in c.results.values() if self.verdict(r) == verdict]

    @property
    def failed(self) -> int:
        return len(self.results("failed"))

    def text(self) -> str:
        """The table, what did not pass and why, and the closing line."""
        lines = ["", *self._table()]
        self._section(lines, "gap", "known gaps (conformance/known_gaps.toml)", lambda r: self.gaps.reason(r) or "")
        self._section(lines, "skipped", "skipped", lambda r: r.detail)
        self._section(lines, "failed", "failures", self._failure)
        stale = [r.id for r in self.results("passed") if self.gaps.reason(r)]
        if stale:
            lines += ["", "listed as a gap, and passed:", *(f"  {name}" for name in stale)]
        missing = [(c.client, c.missing) for c in self.collectors if c.missing is not None]
        if missing:
            lines += ["", f"{len(missing)} missing:", *(f"  {client}: {why}" for client, why in missing)]
        skipped = len(self.results("skipped")) + len(self.results("gap"))
        closing = f"{len(self.results('passed'))} passed, {self.failed} failed"
        closing += f", {skipped} skipped" if skipped else ""
        return "\n".join([*lines, "", closing])

    def _failure(self, result: Result) -> str:
        seen = self.control.get(result.id)
        if seen is None:
            return result.detail
        if seen.ok:
            return f"{result.detail}\n    passes on Apache Kafka"
        return f"{result.detail}\n    the client's own: fails on Apache Kafka too ({seen.detail})"

    def _section(self, lines: list[str], verdict: str, title: str, say: Any) -> None:
        results = self.results(verdict)
        if results:
            lines += ["", f"{title}:"]
            for result in results:
                lines.append(f"  {result.id}")
                lines += [f"    {part}" if i == 0 else part for i, part in enumerate(say(result).split("\n"))]

    def _table(self) -> list[str]:
        rows: list[tuple[str, ...]] = [("client", "version", "passed", "failed", "gaps", "skipped", "seconds")]
        for c in self.collectors:
            counts = dict.fromkeys(("passed", "failed", "gap", "skipped"), 0)
            for result in c.results.values():
                counts[self.verdict(result)] += 1
            if c.missing is not None and not c.results:
                rows.append((c.client, "missing", "-", "-", "-", "-", "-"))
                continue
            seconds = f"{sum(r.seconds for r in c.results.values()):.1f}"
            rows.append((c.client, c.version, *(str(n) for n in counts.values()), seconds))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        out = []
        for row in rows:
            cells = [
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            out.append("  ".join(cells).rstrip())
        return out

    def json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "bootstrap": self.bootstrap,
            "target": self.target,
            "missing": {c.client: c.missing for c in self.collectors if c.missing is not None},
            "versions": {c.client: c.version for c in self.collectors if c.version},
            "results": [
                {
                    "client": r.client,
                    "case": r.case,
                    "verdict": self.verdict(r),
                    "detail": self.gaps.reason(r) or r.detail,
                    "seconds": r.seconds,
                    "control": None if r.id not in self.control else self.control[r.id].ok,
                }
                for c in self.collectors
                for r in c.results.values()
            ],
        }
