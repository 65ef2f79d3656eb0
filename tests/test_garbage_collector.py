"""How often Python looks for cycles in processes through which many records go."""

from __future__ import annotations

import gc

from kop.garbage_collector import collect_seldom, collected_seldom


def test_a_block_leaves_the_collector_of_the_process_as_it_was() -> None:
    before = gc.get_threshold()
    with collected_seldom():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_a_process_keeps_it() -> None:
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.set_threshold(*before)
