"""Spaces of names: from a client's name to the stored one and back."""

from __future__ import annotations

import pytest

from kop.security.tenants import HOME, Space, prefix_of, space_of


def test_a_space_puts_its_namespace_before_names_and_takes_it_away_again() -> None:
    space = space_of("acme/sales")

    assert space == Space("acme/sales/")
    assert (space.name, space.is_home) == ("acme/sales", False)
    assert space.inward("orders") == "acme/sales/orders"
    assert space.outward("acme/sales/orders") == "orders"


@pytest.mark.parametrize("stored", ["orders", "acme/salesmen/orders", "acme/sales", "public/default/acme/sales/orders"])
def test_names_of_other_spaces_have_no_name_in_a_space(stored: str) -> None:
    assert space_of("acme/sales").outward(stored) is None


@pytest.mark.parametrize(
    ("stored", "prefix"),
    [
        ("acme/sales/orders", "acme/sales/"),
        ("acme/sales/a/b", "acme/sales/"),
        ("acme/sales/", "acme/sales/"),
        ("acme/sales", ""),
        ("orders", ""),
        ("kop.functions/acme/sales/shout/0", ""),
    ],
)
def test_the_space_that_a_stored_name_is_of(stored: str, prefix: str) -> None:
    assert prefix_of(stored) == prefix


def test_in_the_home_space_names_are_the_stored_ones() -> None:
    assert HOME.is_home
    assert HOME.name == ""
    assert HOME.inward("orders") == "orders"
    assert HOME.outward("acme/sales/orders") == "acme/sales/orders"


@pytest.mark.parametrize(
    "namespace",
    [
        "",
        "acme",
        "acme/",
        "/sales",
        "a/b/c",
        "acme/sa les",
        "acme/..",
        "./sales",
        "kop.functions/sales",
        "acme/s\n",
        "a" * 121 + "/b",
    ],
)
def test_what_is_no_namespace_makes_no_space(namespace: str) -> None:
    with pytest.raises(ValueError, match="TENANT/NAMESPACE"):
        space_of(namespace)
