"""The stand-in for the package `pulsar`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from functions.function_kit import context_with

from kop.functions import stand_in
from kop.functions.function import FunctionCode, FunctionLoadError

UserFile = Callable[..., FunctionCode]


def test_files_for_pulsar_import_what_they_know(user_file: UserFile) -> None:
    stand_in.install(force=True)
    text = """
    import pulsar
    from pulsar import *
    from pulsar import Function, Context, SerDe, IdentitySerDe, PickleSerDe
    import pulsar.functions.serde
    from pulsar.functions import serde
    from pulsar.functions.function import Function as F
    from pulsar.functions.context import Context as C
    from pulsar.functions.serde import SerDe as S
    assert F is Function is pulsar.Function and C is Context and S is SerDe and serde.SerDe is SerDe

    class Shout(Function):
        def process(self, input, context):
            assert isinstance(context, Context)
            assert pulsar.Result.Ok != pulsar.Result.UnknownError
            pulsar.CompressionType.LZ4
            return input + "!"

    class Empty(Function):
        pass
    """
    context = context_with([])
    assert user_file(text, "code.Shout").call("a", context) == "a!"
    with pytest.raises(FunctionLoadError, match="Empty has no process"):
        user_file(text, "code.Empty")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("from pulsar.schema import *", "pulsar.schema"),
        ("from pulsar.schema import Record", "pulsar.schema.Record"),
        ("import pulsar.schema as s\ns.Record", "pulsar.schema.Record"),
        ("from pulsar import Client", "pulsar.Client"),
        ("import pulsar\npulsar.Client('x')", "pulsar.Client"),
    ],
)
def test_what_needs_pulsar_client_says_so(user_file: UserFile, text: str, wanted: str) -> None:
    stand_in.install(force=True)
    with pytest.raises(FunctionLoadError, match=f"line . ?.*{wanted} needs pulsar-client.*pip install pulsar-client"):
        user_file(text)


def test_pulsar_client_stays_where_it_is_installed() -> None:
    import pulsar

    assert stand_in.installed()
    assert not stand_in.install()
    assert sys.modules["pulsar"] is pulsar


def test_it_gives_back_what_it_replaced() -> None:
    import pulsar
    from pulsar.functions import serde

    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pulsar"}
    assert stand_in.install(force=True)
    assert not stand_in.install(force=True)
    assert sys.modules["pulsar"] is not pulsar
    stand_in.uninstall()
    stand_in.uninstall()
    assert {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pulsar"} == before
    assert sys.modules["pulsar.functions.serde"] is serde


def test_a_context_of_users_may_be_made_of_the_interface() -> None:
    stand_in.install(force=True)
    interface: Any = sys.modules["pulsar"].Context

    class Fake(interface):  # type: ignore[misc]
        def get_message_key(self) -> str:
            return "k"

    assert Fake().get_message_key() == "k"
    assert Fake().publish("topic", "text") is None
