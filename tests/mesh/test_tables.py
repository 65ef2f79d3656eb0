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
        ("select * from (a join b on a.k = b.k)", ["a", "b"]),
        ("select * from a join (b join c using (k, j)) on a.k = c.k, (d) x", ["a", "b", "c", "d"]),
        ("select * from ((select * from a) x join b on x.k = b.k), c", ["a", "b", "c"]),
        ("select * from ((select j, k from a) union (select j, k from b)) x, c order by j, k", ["a", "b", "c"]),
        ("select * from (with w as (select * from a) select x, y from w), b", ["a", "b"]),
        ("select * from a join b on a.k = b.k and a.window in (1, 2), c", ["a", "b", "c"]),
        ("select x, y from a join b using (k, j), `c` where x in (select y from d)", ["a", "b", "c", "d"]),
        ("select * from a join b on a.k = b.k distribute by x, y", ["a", "b"]),
        ("select * from a join range(5) r on true, (range(5)) s, b", ["a", "b"]),
        ("select * from (values (1, x), (2, y)) t join a", ["a"]),
        ("select * from values (1, x), (2, y) t, a", ["a"]),
        ("select * from a lateral view explode(m) t as k, v", ["a"]),
        ("select * from a, lateral (select * from b) join lateral explode(xs), c", ["a", "b", "c"]),
        ("from", []),
        ("select * from (((", []),
    ],
)
def test_tables(sql: str, tables: list[str]) -> None:
    assert list(tables_of(sql)) == tables
