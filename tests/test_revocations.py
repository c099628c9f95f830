"""What a change of a user revokes, and when: against the real database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from sse_limits.models import Revocation

pytestmark = pytest.mark.django_db(transaction=True)


def set_password(user: Any) -> None:
    user.set_password("another")


def deactivate(user: Any) -> None:
    user.is_active = False


def rename(user: Any) -> None:
    user.username = "alison"


def move(user: Any) -> None:
    user.email = "alice@example.org"


def nothing(user: Any) -> None:
    pass


@pytest.fixture
def user() -> Any:
    return get_user_model().objects.create_user("alice", password="first")


class Statements:
    """The tables that were written to, in order."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE")):
            self.written.append(sql.split('"')[1])
        return execute(sql, params, many, context)


@pytest.mark.parametrize("change", [set_password, deactivate, rename])
def test_the_row_changes_before_a_node_can_read_the_revocation(user: Any, change: Callable[[Any], None]) -> None:
    change(user)
    statements = Statements()
    with connection.execute_wrapper(statements):
        user.save()
    written = [table for table in statements.written if table in (user._meta.db_table, Revocation._meta.db_table)]
    assert written == [user._meta.db_table, Revocation._meta.db_table]
    assert list(Revocation.objects.values_list("kind", "subject")) == [("user", "alice")]


@pytest.mark.parametrize("change", [move, nothing])
def test_other_changes_revoke_nothing(user: Any, change: Callable[[Any], None]) -> None:
    change(user)
    user.save()
    user.save(update_fields=["email"])
    assert not Revocation.objects.exists()


def test_a_change_is_revoked_once(user: Any) -> None:
    user.set_password("another")
    user.save()
    user.save()
    assert Revocation.objects.count() == 1
