"""Keys of slot sets can be read back: the display tells whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.slots import Scope
from sse_limits.slots import keys

slugs = st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True)
names = st.text(min_size=1, max_size=40)


@given(slugs | st.none(), names)
def test_a_user_is_told_from_every_other_whatever_its_name(tenant: str | None, name: str) -> None:
    subject = f"{tenant or ''}/{name}"
    assert keys.subject_of(keys.user(tenant, name)) == (Scope.USER, subject)
    assert keys.slot(Scope.USER, subject) == keys.user(tenant, name)


@pytest.mark.parametrize(
    ("scope", "subject", "key"),
    [
        (Scope.TENANT, "acme", keys.tenant("acme")),
        (Scope.CLASS, "acme/clock", keys.stream_class("acme", "clock")),
        (Scope.CLASS, "/clock", keys.stream_class(None, "clock")),
        (Scope.ADDRESS, "2001:db8::/64", keys.address("2001:db8::/64")),
        (Scope.FLEET, "", keys.fleet()),
    ],
)
def test_the_other_scopes_are_read_back_too(scope: Scope, subject: str, key: str) -> None:
    assert keys.slot(scope, subject) == key
    assert keys.subject_of(key) == (scope, subject)


def test_a_node_has_no_slot_set() -> None:
    with pytest.raises(ValueError, match="no slot set"):
        keys.slot(Scope.NODE, "web:1:aaaaaaaa")
