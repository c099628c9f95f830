"""Who is behind a session: real session rows and real users, one look-up per session and cache time."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import Client

from sse_limits import sessions
from sse_limits.core.token_keys import TokenKeys
from sse_limits.sessions import SessionsUnavailable, SessionUsers, read_user
from sse_limits.slots.base import SseLimitsError

pytestmark = pytest.mark.django_db(transaction=True)  # the look-up has a thread, and so a connection, of its own

loads: Counter[str] = Counter()


class SessionStore(db.SessionStore):
    """Django's session engine, counting: this module is a SESSION_ENGINE."""

    def load(self) -> dict[str, Any]:
        loads[self.session_key or ""] += 1
        if self.session_key == "broken" * 6:
            raise RuntimeError("the session store is on fire")
        found: dict[str, Any] = super().load()
        return found


class NumberedBackend(ModelBackend):
    """Users of a project whose USERNAME_FIELD is a number, as in Django's own IntegerUsernameUser."""

    def get_user(self, user_id: int) -> Any:
        user = super().get_user(user_id)
        if user is not None:
            user.get_username = lambda: user.pk + 40
        return user


class NamelessBackend(ModelBackend):
    def get_user(self, user_id: int) -> Any:
        user = super().get_user(user_id)
        if user is not None:
            user.username = ""
        return user


@pytest.fixture(autouse=True)
def counting(settings: Any) -> None:
    settings.SESSION_ENGINE = __name__
    loads.clear()


@pytest.fixture
async def make_users() -> AsyncIterator[Callable[[float], SessionUsers]]:
    made: list[SessionUsers] = []

    def make(cache_seconds: float) -> SessionUsers:
        made.append(SessionUsers(cache_seconds))
        return made[-1]

    yield make
    for users in made:
        await asyncio.get_running_loop().run_in_executor(users._thread, close_connection)
        users.close()


def close_connection() -> None:
    """End this thread's connection for good: Django keeps one to an in-memory database open, and so unclosed."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            connection.connection.close()
            connection.connection = None


@pytest.fixture
def alice() -> Any:
    return get_user_model().objects.create_user("alice")


def log_in(user: Any) -> str:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    key = client.session.session_key
    assert key is not None
    loads.clear()
    return key


class TestReadUser:
    def test_a_session_of_an_active_user_says_their_name(self, alice: Any) -> None:
        assert read_user(log_in(alice)) == "alice"

    def test_a_user_who_was_deactivated_is_nobody(self, alice: Any) -> None:
        key = log_in(alice)
        alice.is_active = False
        alice.save()
        assert read_user(key) is None

    def test_a_user_who_was_deleted_is_nobody(self, alice: Any) -> None:
        key = log_in(alice)
        alice.delete()
        assert read_user(key) is None

    def test_a_changed_password_ends_the_session(self, alice: Any) -> None:
        key = log_in(alice)
        alice.set_password("another")
        alice.save()
        assert read_user(key) is None

    def test_a_session_that_nobody_logged_in_to_is_nobody(self) -> None:
        store = import_module(django_settings.SESSION_ENGINE).SessionStore()
        store["basket"] = [1]
        store.save()
        assert read_user(store.session_key) is None

    @pytest.mark.parametrize("key", ["x" * 32, "", "short", "\x00" * 32, "ä" * 32, "x" * 10_000])
    def test_a_key_that_does_not_exist_is_nobody(self, key: str) -> None:
        assert read_user(key) is None

    @pytest.mark.parametrize("key", ["x" * 32, "", "short"])
    @pytest.mark.parametrize("engine", ["db", "file", "signed_cookies", "cached_db", "cache"])
    def test_every_session_engine_of_django_is_read(self, engine: str, key: str, settings: Any, alice: Any) -> None:
        settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
        assert read_user(log_in(alice)) == "alice"
        assert read_user(key) is None

    def test_an_expired_session_is_nobody(self, alice: Any) -> None:
        key = log_in(alice)
        Session.objects.filter(session_key=key).update(expire_date="2000-01-01T00:00:00Z")
        assert read_user(key) is None

    def test_a_name_that_is_a_number_is_text_like_every_subject(self, alice: Any, settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [f"{__name__}.NumberedBackend"]
        client = Client()
        client.force_login(alice)
        assert read_user(client.session.session_key) == str(alice.pk + 40)  # type: ignore[arg-type]

    def test_an_empty_name_is_nobody_so_it_cannot_become_one_shared_user(self, alice: Any, settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [f"{__name__}.NamelessBackend"]
        client = Client()
        client.force_login(alice)
        assert read_user(client.session.session_key) is None  # type: ignore[arg-type]

    def test_a_session_from_before_a_change_of_the_secret_key_is_read_and_survives(
        self, alice: Any, settings: Any
    ) -> None:
        """Django gives such a session a new key and tells the browser. Here nobody would: alice were logged out."""
        key = log_in(alice)
        settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
        settings.SECRET_KEY = "the next secret key, just as long as the one before it was"
        assert read_user(key) == "alice"
        assert Session.objects.filter(session_key=key).exists()
        assert read_user(key) == "alice"

    def test_reading_writes_nothing(self, alice: Any) -> None:
        key = log_in(alice)
        forged = SessionStore()
        forged[SESSION_KEY] = str(alice.pk)
        forged[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        forged[HASH_SESSION_KEY] = "of an older password"
        forged.save()
        before = sorted(Session.objects.values_list())
        assert read_user(key) == "alice"
        assert read_user(forged.session_key) is None
        assert sorted(Session.objects.values_list()) == before

    def test_a_broken_engine_is_a_fault_of_ours_with_its_cause(self) -> None:
        with pytest.raises(SessionsUnavailable, match="on fire") as caught:
            read_user("broken" * 6)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert isinstance(caught.value, SseLimitsError)

    def test_an_engine_that_does_not_exist_is_one_too(self, settings: Any) -> None:
        settings.SESSION_ENGINE = "no.such.engine"
        with pytest.raises(SessionsUnavailable):
            read_user("x" * 32)


MakeUsers = Callable[[float], SessionUsers]


class TestCache:
    @pytest.fixture
    def key(self, alice: Any) -> str:
        return log_in(alice)

    async def test_a_session_is_looked_up_once_per_cache_time(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(60)
        assert [await users.find(key) for _ in range(5)] == ["alice"] * 5
        assert loads[key] == 1

    async def test_askers_at_the_same_time_share_the_look_up(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(60)
        assert await asyncio.gather(*[users.find(key) for _ in range(50)]) == ["alice"] * 50
        assert loads[key] == 1

    async def test_nobody_is_remembered_too(self, make_users: MakeUsers) -> None:
        users = make_users(60)
        assert [await users.find("x" * 32) for _ in range(3)] == [None] * 3
        assert loads["x" * 32] == 1

    async def test_after_the_cache_time_the_database_is_asked_again(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(0.05)
        await users.find(key)
        await asyncio.sleep(0.06)
        await users.find(key)
        assert loads[key] == 2

    async def test_a_cache_time_of_zero_remembers_nothing(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(0)
        assert [await users.find(key) for _ in range(3)] == ["alice"] * 3
        assert loads[key] == 3

    async def test_two_sessions_are_two_look_ups(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(60)
        assert await asyncio.gather(users.find(key), users.find("x" * 32)) == ["alice", None]
        assert set(loads.values()) == {1}

    async def test_memory_is_bounded_and_the_newest_are_kept(
        self, key: str, make_users: MakeUsers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "CACHE_SIZE", 2)
        users = make_users(60)
        for each in (key, "x" * 32, "y" * 32, "y" * 32, "x" * 32, key):
            await users.find(each)
        assert loads == {key: 2, "x" * 32: 1, "y" * 32: 1}

    async def test_a_fault_reaches_every_asker_and_is_not_remembered(self, make_users: MakeUsers) -> None:
        users = make_users(60)
        found = await asyncio.gather(*[users.find("broken" * 6) for _ in range(3)], return_exceptions=True)
        assert [type(each) for each in found] == [SessionsUnavailable] * 3
        assert loads["broken" * 6] == 1
        with pytest.raises(SessionsUnavailable):
            await users.find("broken" * 6)
        assert loads["broken" * 6] == 2

    async def test_an_asker_who_leaves_does_not_take_the_answer_with_it(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(60)
        first = asyncio.ensure_future(users.find(key))
        second = asyncio.ensure_future(users.find(key))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "alice"
        assert first.cancelled()
        assert loads[key] == 1

    async def test_a_fault_that_nobody_waits_for_any_more_is_not_shouted(
        self, make_users: MakeUsers, caplog: pytest.LogCaptureFixture
    ) -> None:
        users = make_users(60)
        asker = asyncio.ensure_future(users.find("broken" * 6))
        await asyncio.sleep(0)
        asker.cancel()
        await asyncio.wait([asker])
        await asyncio.get_running_loop().run_in_executor(users._thread, lambda: None)
        await asyncio.sleep(0.01)
        gc.collect()
        assert "never retrieved" not in caplog.text

    async def test_the_event_loop_goes_on_during_a_look_up(self, key: str, make_users: MakeUsers) -> None:
        users = make_users(60)
        asked = asyncio.ensure_future(users.find(key))
        turns = 0
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 1


class TestForgetting:
    @pytest.fixture
    def key(self, alice: Any) -> str:
        return log_in(alice)

    async def test_a_forgotten_user_or_session_is_looked_up_again(
        self, key: str, make_users: Callable[[float], SessionUsers]
    ) -> None:
        users = make_users(60)
        sid = TokenKeys.from_secrets(django_settings.SECRET_KEY).session_id(key)
        for names, sids, looks in (({"bob"}, set(), 1), ({"alice"}, set(), 2), (set(), {sid}, 3)):
            assert await users.find(key) == "alice"
            users.forget(users=names, sids=sids)
            assert await users.find(key) == "alice"
            assert loads[key] == looks

    async def test_what_is_being_looked_up_while_it_is_forgotten_is_not_remembered(
        self, key: str, make_users: Callable[[float], SessionUsers]
    ) -> None:
        users = make_users(60)
        looking = asyncio.ensure_future(users.find(key))
        for _ in range(2):  # the asker, then the look-up that it has started
            await asyncio.sleep(0)
        users.forget(users={"alice"}, sids=set())
        assert await looking == "alice"
        assert await users.find(key) == "alice"
        assert loads[key] == 2

    async def test_inactive_users_are_found_and_others_are_not(
        self, alice: Any, make_users: Callable[[float], SessionUsers]
    ) -> None:
        strangers = [f"u{number}" for number in range(1200)]
        assert await make_users(60).inactive(["alice", *strangers]) == set()
        await asyncio.to_thread(deactivate)
        assert await make_users(60).inactive([*strangers, "alice"]) == {"alice"}


def deactivate() -> None:
    get_user_model().objects.update(is_active=False)
    close_connection()
