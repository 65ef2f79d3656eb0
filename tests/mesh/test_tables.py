"""The topics that a SQL text names."""

from __future__ import annotations

import pytest

from kop.mesh.tables import tables_of


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from a", ["a"]),
        (
            "SELECT a.x, b.y FROM a JOIN b ON a.k = b.k LEFT JOIN `c-1.d` c USING (k) WHERE a.from_x > 1",
            ["a", "b", "c-1.d"],
        ),
        ("select * from a x, b as y, c where x.k = y.k", ["a", "b", "c"]),
        (
            "with big as (select * from a), more (n) as (select 1 from big) select * from big join more join d",
            ["a", "d"],
        ),
        ("select * from (select * from a union all select * from b) z join c", ["a", "b", "c"]),
        ("select extract(year from t), trim(both 'x' from s), count(*) from a -- from b\n /* from c */", ["a"]),
        ("select 'from x', \"from y\" from a where s = 'it''s from z'", ["a"]),
        ("select * from a where x is not distinct from y and k in (select k from b)", ["a", "b"]),
        ("select * from a lateral view explode(xs) t as x", ["a"]),
        ("select x, y from range(10) cross join a", ["a"]),
        ("select window.start, count(*) from a group by window(ts, '5 minutes'), k order by k", ["a"]),
        ("select * from A, a", ["A", "a"]),
        ("select 1", []),
        ("from", []),
        ("select * from (((", []),
    ],
)
def test_tables(sql: str, tables: list[str]) -> None:
    assert list(tables_of(sql)) == tables
