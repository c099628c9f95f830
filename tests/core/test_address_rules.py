"""Exceptions by client address: of several networks the smallest counts."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.address_rules import AddressAction, AddressRule, AddressRules

OFFICE = AddressRule(ipaddress.ip_network("203.0.113.0/24"), AddressAction.LIMIT, 500)
ROBOT = AddressRule(ipaddress.ip_network("203.0.113.7"), AddressAction.BLOCK)
PARTNER = AddressRule(ipaddress.ip_network("2001:db8::/48"), AddressAction.EXEMPT)
WORLD = AddressRule(ipaddress.ip_network("0.0.0.0/0"), AddressAction.LIMIT, 3)
ADDRESSES = st.ip_addresses(v=4).map(str)
NETWORKS = st.builds(
    lambda address, prefix: ipaddress.ip_network((int(address), prefix), strict=False),
    st.ip_addresses(v=4),
    st.integers(0, 32),
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("203.0.113.7", ROBOT),
        ("203.0.113.8", OFFICE),
        ("198.51.100.1", WORLD),
        ("2001:db8:0:1::/64", PARTNER),
        ("2001:db9::/64", None),
        (None, None),
    ],
)
def test_the_smallest_network_counts(address: str | None, expected: AddressRule | None) -> None:
    assert AddressRules([WORLD, OFFICE, PARTNER, ROBOT]).find(address) == expected


def test_without_rules_nobody_is_an_exception() -> None:
    assert AddressRules().find("203.0.113.7") is None


def test_a_rule_for_less_than_a_group_never_applies() -> None:
    single = AddressRule(ipaddress.ip_network("2001:db8::1"), AddressAction.BLOCK)
    assert AddressRules([single]).find("2001:db8::/64") is None


@given(st.lists(NETWORKS, max_size=20, unique=True), ADDRESSES)
def test_the_rule_contains_the_address_and_none_that_does_is_smaller(networks: list[object], address: str) -> None:
    rules = AddressRules([AddressRule(network, AddressAction.EXEMPT) for network in networks])  # type: ignore[arg-type]
    around = [rule for rule in rules.rules if ipaddress.ip_address(address) in rule.network]
    found = rules.find(address)
    assert found == max(around, key=lambda rule: rule.network.prefixlen, default=None)
