"""The tables of `sql`: which options the topic of a name has."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest


class NotFoundError(Exception):
    """PySpark's AnalysisException for a table that there is not: these tests run without PySpark."""

    def __init__(self, name: str) -> None:
        self.name = name

    def getCondition(self) -> str:
        return "TABLE_OR_VIEW_NOT_FOUND"

    def getMessageParameters(self) -> dict[str, str]:
        return {"relationName": f"`{self.name}`"}


class Session:
    """A session that knows the views that were made, and a query whose text is the names of its tables."""

    def __init__(self) -> None:
        self.views: dict[str, dict[str, str]] = {}
        self.options_of_read: dict[str, str] = {}
        self.catalog = self.read = self

    def sql(self, text: str) -> str:
        for name in text.split():
            if f"`{name}`" not in self.views:
                raise NotFoundError(name)
        return text

    def format(self, name: str) -> Session:
        return self

    def options(self, **options: str) -> Session:
        self.options_of_read = options
        return self

    def load(self) -> Session:
        return self

    def createOrReplaceTempView(self, name: str) -> None:
        self.views[name] = self.options_of_read

    def dropTempView(self, name: str) -> None:
        del self.views[f"`{name}`"]


def test_a_topic_may_be_called_as_an_option_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kop.spark.tables", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyspark.errors", SimpleNamespace(AnalysisException=NotFoundError))
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace(functions=None))
    from kop.spark.tables import sql

    del sys.modules["kop.spark.tables"]  # made of what is no PySpark
    session: Any = Session()
    shared = {"mode": "permissive", "includeHeaders": True}
    for _ in range(2):
        assert sql(session, "orders mode", shared | {"orders": {"subscribe": "shop"}}) == "orders mode"
        given = {"mode": "permissive", "includeHeaders": "True"}
        assert session.views == {"`orders`": given | {"subscribe": "shop"}, "`mode`": given | {"subscribe": "mode"}}
