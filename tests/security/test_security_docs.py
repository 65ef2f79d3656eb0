"""The first section of docs/security.md, run word for word: only ports differ."""

from __future__ import annotations

import re
from pathlib import Path

from support.walk import ROOT, Walk


def blocks(language: str) -> list[str]:
    """The blocks of the section."""
    section = (ROOT / "docs" / "security.md").read_text().partition("## Try it out\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_from_an_empty_folder_to_a_user_who_may_do_one_thing(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    port = walk.kafka.rpartition(":")[2]
    (settings,), (prepare, serve, use) = blocks("toml"), (text.replace("9093", port) for text in blocks("sh"))
    (tmp_path / "kop.toml").write_text(settings.replace("9093", port))
    made = walk.run(prepare)
    assert made.returncode == 0, made.stderr
    with walk.running(serve, "kop check --bootstrap", KOP_HTTP=walk.http):
        used = walk.run(use)
    assert used.stdout.splitlines()[-1] == '{"id": 1}', used.stderr
    assert used.stderr.splitlines()[-1] == "kop: others: TOPIC_AUTHORIZATION_FAILED: Authorization failed."
    assert (used.returncode, used.stderr.count("kop: ")) == (1, 1), "nothing but the last command fails"
