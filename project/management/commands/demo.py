"""`manage.py demo`: the site, clients of every kind, and one line a second that shows what the limits do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from project.demo_clients import TICKER_TOPIC, Crowd, Tally
from project.management.commands.demo_data import ADMIN, PASSWORD
from project.management.commands.serve import SERVERS
from sse_limits.conf import get_conf
from sse_limits.core.token_keys import TokenKeys
from sse_limits.limiter import build_store
from sse_limits.publishing import apublish
from sse_limits.slots import keys
from sse_limits.slots.base import SlotStore, StoreUnavailable
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint

READY_SECONDS = 60
TICK_SECONDS = 0.05
TICKS_PER_NEWS = 10
TICKER_BYTES = 2000
HEADER_EVERY = 20
WATCHED = (keys.fleet(), keys.user("acme", "alice"), keys.user("globex", "gus"), keys.address("127.0.0.1"))
ROW = "{:>8}  {:>5}  {:>10}  {:>10}  {:>8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>10}"
TITLES = ("time", "slots", "acme/alice", "globex/gus", "visitors", "admitted", "rejected", "rejected", "evicted")
UNITS = ("", "fleet", "of 10", "of 5", "of 20", "a second", "429 a s", "401 a s", "in all")
HEADER = f"{ROW.format(*TITLES, 'first byte')}\n{ROW.format(*UNITS, 'p50 ms')}"


class Command(BaseCommand):
    """Migrate, load the demo data, serve, and let simulated clients loose. Ctrl-C ends everything."""

    help = "Run the demo site with simulated clients."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
        parser.add_argument("--server", choices=tuple(SERVERS), default="uvicorn")
        parser.add_argument("--workers", type=int, default=2, help="server processes; the limits hold over all of them")
        parser.add_argument("--seconds", type=float, help="end after this time (default: run until Ctrl-C)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo."""
        call_command("migrate", verbosity=0)
        call_command("demo_data", stdout=self.stdout)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._run(**options))

    async def _run(self, *, port: int, server: str, workers: int, seconds: float | None, **_: Any) -> None:
        url = f"http://127.0.0.1:{port}"
        store = build_store(get_conf())
        try:
            async with serving(url, port, server, workers):
                self._introduce(url, server, workers)
                crowd = Crowd(url, token)
                running = asyncio.gather(crowd.run(), publish_for_ever())
                try:
                    async with asyncio.timeout(seconds):
                        await self._report(crowd.tally, store)
                except TimeoutError:
                    self.stdout.write("the demo has ended")
                finally:
                    running.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await running
        finally:
            await store.aclose()

    def _introduce(self, url: str, server: str, workers: int) -> None:
        gina = token("globex", "gina", ttl_seconds=3600)
        self.stdout.write(
            f"\n{url}/ on {server}, {workers} processes: the live room ({ADMIN} / {PASSWORD}). Ctrl-C ends.\n"
            f"Try it beside the simulated clients, as gina of globex, who may hold 5 streams:\n\n"
            f"  TOKEN={gina}\n"
            f'  curl -N -H "Authorization: Bearer $TOKEN" {url}/events/?topic=news\n'
        )

    async def _report(self, tally: Tally, store: SlotStore) -> None:
        seen: Counter[int] = Counter()
        line = 0
        while True:
            await asyncio.sleep(1)
            if line % HEADER_EVERY == 0:
                self.stdout.write(HEADER)
            line += 1
            answers = tally.answers - seen
            seen = Counter(tally.answers)
            self.stdout.write(status(await usage(store), answers, tally))
            self.stdout.flush()


def token(tenant: str, user: str, ttl_seconds: float = 300) -> str:
    """A stream token for a simulated client."""
    secrets = TokenKeys.from_secrets(settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS)
    return mint(secrets, tenant=tenant, user=user, now=epoch_ms(), ttl_seconds=ttl_seconds)


async def usage(store: SlotStore) -> list[str]:
    """The slots of what the line shows, as the store counts them."""
    try:
        return [str(count) for count in await store.usage(WATCHED)]
    except StoreUnavailable:
        return ["?"] * len(WATCHED)


def status(slots: list[str], answers: Counter[int], tally: Tally) -> str:
    """One line of the table."""
    waited, tally.first_byte_ms = tally.first_byte_ms, []
    p50 = f"{statistics.median(waited):.1f}" if waited else "-"
    rates = (answers[200], answers[429], answers[401])
    return ROW.format(f"{datetime.now():%H:%M:%S}", *slots, *rates, tally.evicted, p50)


async def publish_for_ever() -> None:
    """Give the clients something to read: news twice a second, and a ticker that a stalled reader cannot take."""
    for number in itertools.count(1):
        with contextlib.suppress(StoreUnavailable):
            if number % TICKS_PER_NEWS == 0:
                await apublish("news", {"number": number, "at": epoch_ms()})
            await apublish(TICKER_TOPIC, "x" * TICKER_BYTES)
        await asyncio.sleep(TICK_SECONDS)


@contextlib.asynccontextmanager
async def serving(url: str, port: int, server: str, workers: int) -> AsyncIterator[None]:
    """Run `manage.py serve` beside us, from ready to ended."""
    command = [sys.executable, sys.argv[0], "serve", "--server", server, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, "--workers", str(workers), "--log-level", "warning")
    try:
        await wait_until_ready(url, process)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def wait_until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    """Wait for the server's first answer."""
    async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        while True:
            if process.returncode is not None:
                raise CommandError(
                    f"The server did not start; is {url} in use? PORT=8001 make demo takes another port."
                )
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get("/healthz")).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(0.1)
