"""The gateway's answers about groups and offsets are, one for one, those that Apache Kafka 4.3.1 gave."""

import json
from pathlib import Path
from typing import Any

from handlers.group_scenario import play
from support.gateway import RawClient, gateway, run

KAFKAS = json.loads(Path(__file__).with_name("group_answers.json").read_text())


def test_every_answer_is_kafkas(tmp_path: Path) -> None:
    async def main() -> list[list[Any]]:
        async with gateway(tmp_path) as serving:
            return await play(lambda: RawClient.connect(serving), 0.03)

    answers = run(main())
    assert [label for label, _ in answers] == [label for label, _ in KAFKAS]
    wrong = [(mine, kafkas) for mine, kafkas in zip(answers, KAFKAS, strict=True) if mine != kafkas]
    assert wrong == []
