"""A fleet for the module, and readers of the room with and without each permission."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings

from project.demo_policy import POLICY
from sse_limits.limiter import get_board
from sse_limits.live.board import Board

from .fleet import Fleet, signed_in

ROOM = "/admin/sse_limits/liveroom/"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def board(fleet: Fleet) -> Iterator[Board]:
    """The fleet's board, read from this process."""
    conf = {"POLICY": POLICY, "REDIS_URL": fleet.store.url, "LEASE_SECONDS": 3, "HEARTBEAT_SECONDS": 1}
    with override_settings(SSE_LIMITS=conf):
        yield get_board()


@pytest.fixture
def browser(fleet: Fleet) -> Iterator[httpx.Client]:
    """Somebody who is signed in at the fleet's own site."""
    with signed_in(fleet.server) as found:
        yield found


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """A client of a staff member with some permissions of the room."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def admin(db: None) -> Client:
    """A client of somebody who may do everything; without a password, whose hashing is slow on purpose."""
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    return client
