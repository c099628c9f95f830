"""What no longer counts: by whom it was issued, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.identity import Identity
from sse_limits.core.revocations import RevocationKind, Revocations, Revoked

NOW = 1_000_000
TOKEN = Identity(user="u1", tenant="acme", issued_at=NOW - 10, session="sid", token="signature")
SESSION = Identity(user="u1", session="sid")


def of(kind: RevocationKind, subject: str, not_before: int = NOW, until: int = NOW + 1000) -> Revoked:
    return Revoked(kind, subject, not_before, until)


def known(*rows: Revoked) -> Revocations:
    found = Revocations()
    found.add(rows, NOW)
    return found


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        (RevocationKind.USER, "u1"),
        (RevocationKind.TENANT, "acme"),
        (RevocationKind.SESSION, "sid"),
        (RevocationKind.TOKEN, "signature"),
    ],
)
def test_a_token_is_covered_by_whatever_it_names(kind: RevocationKind, subject: str) -> None:
    assert known(of(kind, subject)).covers(TOKEN)
    assert not known(of(kind, "another")).covers(TOKEN)
    assert not Revocations().covers(TOKEN)


def test_what_was_issued_at_or_after_the_revocation_counts() -> None:
    revoked = known(of(RevocationKind.USER, "u1"))
    assert not revoked.covers(Identity(user="u1", tenant="acme", issued_at=NOW))
    assert revoked.covers(Identity(user="u1", tenant="acme", issued_at=NOW - 1))


def test_a_session_is_covered_by_its_own_end_and_asked_again_when_its_user_was_revoked() -> None:
    assert known(of(RevocationKind.SESSION, "sid")).covers(SESSION)
    by_user = known(of(RevocationKind.USER, "u1"))
    assert not by_user.covers(SESSION)
    assert by_user.of_user(SESSION, NOW) == NOW
    assert by_user.of_user(SESSION, NOW + 1) is None
    assert by_user.of_user(Identity(), 0) is None


def test_only_what_is_new_is_returned() -> None:
    revoked = Revocations()
    row = of(RevocationKind.USER, "u1")
    assert revoked.add([row], NOW) == [row]
    assert revoked.add([row], NOW) == []
    assert revoked.add([row._replace(not_before=NOW - 1)], NOW) == []
    assert revoked.add([row._replace(not_before=NOW + 1)], NOW) != []
    assert revoked.add([of(RevocationKind.USER, "u2", until=NOW)], NOW) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.integers(0, 100)), max_size=30))
def test_what_has_ended_is_forgotten_and_nothing_that_matters_is(rows: list[tuple[str, int, int]]) -> None:
    revoked = Revocations()
    for subject, not_before, until in rows:
        revoked.add([Revoked(RevocationKind.USER, subject, not_before, until)], now=50)
    for subject in "abc":
        newest = max((at for name, at, until in rows if name == subject and until > 50), default=-1)
        assert revoked.covers(Identity(user=subject, issued_at=newest - 1)) == (newest >= 0)
        assert not revoked.covers(Identity(user=subject, issued_at=newest))
    revoked.add([Revoked(RevocationKind.USER, "new", 101, 201)], now=200)
    assert len(revoked) == 1
