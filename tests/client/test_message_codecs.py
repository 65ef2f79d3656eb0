"""The code that is compiled before processes of functions are forked is the code that they need."""

from __future__ import annotations

import pytest
from kafka.protocol.api_message import ApiMessage
from support.waiting import wait_until

from kop.client.message_codecs import VERSIONS, compile_codecs
from kop.testing import Broker
from kop.testing.functions import Functions


def shout(text: str) -> str:
    return text.upper()


def test_a_function_gets_only_answers_whose_code_is_compiled(
    kop_broker: Broker, kop_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_codecs()
    answers = set[str]()
    decode = ApiMessage.decode.__func__

    def noting(cls, /, data, version=None, **options):  # type: ignore[no-untyped-def]
        if not cls.is_request():
            answers.add(cls.__name__)
        return decode(cls, data, version=version, **options)

    monkeypatch.setattr(ApiMessage, "decode", classmethod(noting))
    for topic in ("lines", "loud"):
        kop_broker.create_topic(topic)
    function = kop_functions(shout, inputs="lines", output="loud", processing_guarantees="EFFECTIVELY_ONCE")
    kop_broker.produce("lines", ["hello"])
    wait_until(lambda: function.processed == 1, "the message to be done")
    function.stop()
    assert answers == {f"{answer.__name__}_v{version}" for _, answer, version in VERSIONS}
