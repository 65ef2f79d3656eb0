"""The lines that a suite prints and the harness reads.

Owns: their shape, and nothing else. A suite in any language prints one JSON object a line on standard output:

    {"client": "kcat", "plan": ["case a", "case b"]}                        once, first: every case that will report
    {"client": "kcat", "version": "1.7.1"}                                  optional: what exactly was driven
    {"client": "kcat", "case": "case a", "begin": true}                     optional: names the case that hung
    {"client": "kcat", "case": "case a", "ok": true, "detail": "", "seconds": 0.2}
    {"client": "kcat", "missing": "no kcat on PATH"}                        instead of all the others

`ok` is true, false, or null for a case that was skipped; `detail` says why for the last two. Any other line is noise
of the client: it is kept in the suite's log and not judged. A suite exits 0 when it could say all it had to say,
whatever the results; a planned case that never reported counts as failed.

Must not know: which suites exist, how they are started, what they drive.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Result:
    """One case of one client: `ok` is None when it was skipped."""

    client: str
    case: str
    ok: bool | None
    detail: str = ""
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """How known_gaps.toml and --case name it."""
        return f"{self.client}: {self.case}"

    def line(self) -> str:
        """The line to print."""
        return json.dumps(
            {
                "client": self.client,
                "case": self.case,
                "ok": self.ok,
                "detail": self.detail,
                "seconds": round(self.seconds, 3),
            }
        )


@dataclass(slots=True)
class Collector:
    """Feeds on a suite's lines; afterwards knows what was planned, what was said and what was not."""

    client: str
    version: str = ""
    missing: str | None = None
    plan: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Result | None:
        """Take one line; the result in it, if it holds one."""
        message = parse(line)
        if message is None:
            return None
        if "missing" in message:
            self.missing = str(message["missing"])
        if "version" in message:
            self.version = str(message["version"])
        if "plan" in message:
            self.plan = [str(case) for case in message["plan"]]
        case = message.get("case")
        if not isinstance(case, str):
            return None
        if "ok" not in message:
            self.running.append(case)
            return None
        if case in self.running:
            self.running.remove(case)
        ok = message["ok"]
        result = Result(
            self.client,
            case,
            None if ok is None else bool(ok),
            str(message.get("detail", "")),
            float(message.get("seconds", 0.0)),
        )
        self.results[case] = result
        return result

    def finish(self, why: str) -> list[Result]:
        """The suite has ended: a failed result for each case that was planned or begun and never reported."""
        lost = []
        for case in dict.fromkeys([*self.running, *self.plan]):
            if case not in self.results:
                where = "while this case ran" if case in self.running else "before this case"
                lost.append(Result(self.client, case, False, f"{why} {where}"))
                self.results[case] = lost[-1]
        return lost


def parse(line: str) -> dict[str, Any] | None:
    """The object in a line, or None for noise."""
    line = line.strip()
    if not line.startswith("{"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "client" in message else None
