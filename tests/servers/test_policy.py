"""Limits that are edited while streams are open: in force on two nodes, ended where they must end, counts untouched.

The nodes read the database; the editor is a third process, which tells them nothing but by its commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sse_limits.slots import keys

from .client import Clients, Stream, until
from .harness import ROOT, ServerProcess
from .slots import Store, token

SETTINGS = "tests.servers.database_settings"
IN_FORCE_SECONDS = 2.0
RECHECK_SECONDS = 1.0
AUDIT_SECONDS = 12 * RECHECK_SECONDS
ENDED_SECONDS = RECHECK_SECONDS + 1.0 + 1.0  # the recheck, the poll of the database, and a second as the issue grants
Pair = tuple[ServerProcess, ServerProcess]


class Editor:
    """Runs lines of Python in a process of the project."""

    def __init__(self, database: str) -> None:
        environ = {**os.environ, "DATABASE_PATH": database, "DJANGO_SETTINGS_MODULE": SETTINGS, "DEBUG": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.editor"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def run(self, code: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy") / "db.sqlite3"


@pytest.fixture(scope="module")
def editor(database: Path) -> Iterator[Editor]:
    found = Editor(str(database))
    yield found
    found.end()


@pytest.fixture(scope="module")
def nodes(database: Path, editor: Editor, valkey: Store) -> Iterator[Pair]:
    env = {
        "SSE_LIMITS_REDIS_URL": valkey.url,
        "SSE_LIMITS_RECHECK_SECONDS": str(RECHECK_SECONDS),
        "DATABASE_PATH": str(database),
        "DJANGO_SETTINGS_MODULE": SETTINGS,
    }
    with contextlib.ExitStack() as stack:
        pair = (ServerProcess("uvicorn", env), ServerProcess("uvicorn", env))
        for server in pair:
            stack.callback(server.stop)
        for server in pair:
            server.wait_until_ready()
        yield pair


@pytest.fixture
def both(nodes: Pair, slots: Store) -> Iterator[Pair]:
    yield nodes
    for server in nodes:
        server.check_log()


@pytest.fixture
def edit(editor: Editor, both: Pair) -> Iterator[Callable[[str], Any]]:
    """Change rows; afterwards the demo's tenants are as they were."""
    yield editor.run
    editor.run(
        "Tenant.objects.update(suspended=False, user_limit=None, tenant_limit=None, address_limit=None)\n"
        "UserLimit.objects.all().delete(); AddressRule.objects.all().delete(); Revocation.objects.all().delete()\n"
        "Tier.objects.filter(slug='free').update(user_limit=5)\n"
        "User.objects.update(is_active=True)"
    )


async def ask(server: ServerProcess, clients: Clients, who: str, **options: Any) -> int:
    return await clients.status(server, "/raw/", who, method="HEAD", **options)


def answers(server: ServerProcess, clients: Clients, who: str, status: int) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return await ask(server, clients, who) == status

    return is_so


async def streams(both: Pair, clients: Clients, who: str, number: int = 2) -> list[Stream]:
    """Open streams, as soon as what an earlier test has set is undone everywhere."""
    for server in both:
        await until(answers(server, clients, who, 200), IN_FORCE_SECONDS)
    found = [await clients.get(both[at % 2], "/raw/", who) for at in range(number)]
    assert [stream.status for stream in found] == [200] * number
    return found


async def ended(stream: Stream) -> bytes:
    """All that the client still gets."""
    return await stream.rest(ENDED_SECONDS)


class TestInForce:
    @pytest.mark.parametrize(
        "change",
        [
            "found = Tier.objects.get(slug='free'); found.user_limit = 2; found.save()",
            "Tier.objects.filter(slug='free').update(user_limit=2)",
            "Tenant.objects.filter(slug='globex').update(user_limit=2)",
            "UserLimit.objects.create(tenant=Tenant.objects.get(slug='globex'), user='gina', user_limit=2)",
            "rows = list(Tenant.objects.all())\n"
            "for row in rows: row.user_limit = 2\n"
            "Tenant.objects.bulk_update(rows, ['user_limit'])",
        ],
    )
    async def test_a_saved_limit_is_in_force_on_both_nodes_within_two_seconds_and_counts_stay(
        self, both: Pair, clients: Clients, slots: Store, edit: Callable[[str], Any], change: str
    ) -> None:
        who = token()
        await streams(both, clients, who)
        for server in both:  # what an earlier test set is undone
            await until(answers(server, clients, who, 200), IN_FORCE_SECONDS)
        before = slots.in_use()
        edit(change)
        committed = time.monotonic()
        for server in both:
            await until(answers(server, clients, who, 429), IN_FORCE_SECONDS)
        assert time.monotonic() - committed <= IN_FORCE_SECONDS
        assert slots.in_use() == before

    async def test_a_change_that_is_rolled_back_is_never_in_force(
        self, both: Pair, clients: Clients, edit: Callable[[str], Any]
    ) -> None:
        who = token()
        await streams(both, clients, who)
        for server in both:
            await until(answers(server, clients, who, 200), IN_FORCE_SECONDS)
        edit(
            "with transaction.atomic():\n"
            "    Tier.objects.filter(slug='free').update(user_limit=1)\n"
            "    transaction.set_rollback(True)\n"
        )
        ends = time.monotonic() + IN_FORCE_SECONDS
        while time.monotonic() < ends:
            assert [await ask(server, clients, who) for server in both] == [200, 200]
            await asyncio.sleep(0.05)

    async def test_a_new_tenant_is_known_and_a_blocked_address_refused(
        self, both: Pair, clients: Clients, edit: Callable[[str], Any]
    ) -> None:
        who = token("h1", "hooli")
        assert await ask(both[0], clients, who) == 403
        edit("Tenant.objects.get_or_create(slug='hooli', name='Hooli', tier=Tier.objects.get(slug='pro'))")
        await until(answers(both[0], clients, who, 200), IN_FORCE_SECONDS)
        edit("AddressRule.objects.create(network='127.0.0.0/8', action='block')")
        await until(answers(both[0], clients, who, 403), IN_FORCE_SECONDS)


class TestEnded:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("Tenant.objects.filter(slug='globex').update(suspended=True)", b"suspended"),
            (
                "UserLimit.objects.create(tenant=Tenant.objects.get(slug='globex'), user='gina', suspended=True)",
                b"suspended",
            ),
            ("AddressRule.objects.create(network='127.0.0.1', action='block')", b"blocked"),
            ("found = User.objects.get(username='gina'); found.is_active = False; found.save()", b"revoked"),
            ("found = User.objects.get(username='gina'); found.set_password('x'); found.save()", b"revoked"),
        ],
    )
    async def test_open_streams_end_on_both_nodes_with_the_reason(
        self, both: Pair, clients: Clients, slots: Store, edit: Callable[[str], Any], change: str, reason: bytes
    ) -> None:
        who = token()
        for server in both:
            await until(answers(server, clients, who, 200), IN_FORCE_SECONDS)
        found = [await clients.get(server, "/events/?topic=news", who) for server in both]
        for stream in found:
            await stream.until(b"hello")
        edit(change)
        for stream in found:
            assert b"event: " + reason in await ended(stream)
        await until(lambda: slots.in_use() == {}, 1)

    async def test_a_websocket_is_closed_with_the_code_of_its_reason(
        self, both: Pair, clients: Clients, edit: Callable[[str], Any]
    ) -> None:
        await until(answers(both[0], clients, token(), 200), IN_FORCE_SECONDS)
        socket = await clients.websocket(both[0], "/echo/", token())
        edit("Tenant.objects.filter(slug='globex').update(suspended=True)")
        async with asyncio.timeout(ENDED_SECONDS):
            await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (4503, "suspended")

    async def test_a_token_ends_with_its_time(self, both: Pair, clients: Clients) -> None:
        await streams(both, clients, token(), 1)
        stream = await clients.get(both[0], "/raw/", token(ttl_seconds=0.5))
        assert stream.status == 200
        await ended(stream)
        assert await ask(both[0], clients, token(ttl_seconds=0.001, now=1)) == 401

    async def test_who_logs_out_loses_the_streams_of_the_session_and_of_its_tokens_and_nobody_else(
        self, both: Pair, clients: Clients, slots: Store, edit: Callable[[str], Any]
    ) -> None:
        sessions = edit(
            "clients = [Client() for _ in range(2)]\n"
            "for each in clients: each.force_login(User.objects.get(username='gina'))\n"
            "result = [each.session.session_key for each in clients]"
        )
        sid = edit(
            "from django.conf import settings\nfrom sse_limits.core.token_keys import TokenKeys\n"
            "result = TokenKeys.from_secrets(settings.SECRET_KEY).session_id(clients[0].session.session_key)"
        )
        await streams(both, clients, token("gus"), 1)
        mine, other = [
            await clients.get(both[0], "/raw/", headers=[("Cookie", f"sessionid={key}")]) for key in sessions
        ]
        by_token = await clients.get(both[1], "/raw/", token(sid=sid))
        assert [mine.status, other.status, by_token.status] == [200, 200, 200]
        edit("clients[0].logout()")
        await asyncio.gather(ended(mine), ended(by_token))
        assert slots.in_use().items() >= {keys.user("globex", "gina"): 1}.items(), "the other session's"
        assert await clients.status(both[0], "/raw/", headers=[("Cookie", f"sessionid={sessions[0]}")]) == 401
        assert await clients.status(both[1], "/raw/", token(sid=sid)) == 401

    async def test_a_new_password_ends_other_sessions_and_old_tokens_but_not_new_ones(
        self, both: Pair, clients: Clients, edit: Callable[[str], Any]
    ) -> None:
        key = edit(
            "old = Client(); old.force_login(User.objects.get(username='gina')); result = old.session.session_key"
        )
        stream = await clients.get(both[0], "/raw/", headers=[("Cookie", f"sessionid={key}")])
        assert stream.status == 200
        edit("found = User.objects.get(username='gina'); found.set_password('another'); found.save()")
        await ended(stream)
        assert await ask(both[0], clients, token()) == 200, "issued afterwards"

    async def test_update_sends_no_signal_and_the_audit_finds_who_was_deactivated(
        self, both: Pair, clients: Clients, edit: Callable[[str], Any]
    ) -> None:
        (stream,) = await streams(both, clients, token(), 1)
        edit("User.objects.filter(username='gina').update(is_active=False)")
        await stream.rest(AUDIT_SECONDS + ENDED_SECONDS)
        edit("User.objects.update(is_active=True)")
