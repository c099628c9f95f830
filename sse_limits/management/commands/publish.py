"""`manage.py publish`: publish one event, or a load of them."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sse_limits.publishing import Event, publish_many
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.memory import epoch_ms

BATCHES_PER_SECOND = 20


class Command(BaseCommand):
    """Publish to a topic."""

    help = "Publish an event, or with --count a load of numbered ones."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--topic", required=True)
        parser.add_argument("--tenant", help="publish to this tenant's topic")
        parser.add_argument("--event", help="the event's name")
        parser.add_argument("--data", help="the event's data, as text")
        parser.add_argument("--count", type=int, help="publish this many events, numbered and with the time")
        parser.add_argument("--rate", type=float, default=100, help="events a second, with --count (default 100)")
        parser.add_argument("--size", type=int, default=100, help="bytes of data of each, with --count (default 100)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Publish, and print the id of the last event."""
        if (options["data"] is None) == (options["count"] is None):
            raise CommandError("Give either --data TEXT, or --count N with --rate and --size.")
        try:
            if options["data"] is not None:
                self.stdout.write(publish_many([self._event(options, options["data"])])[0])
            else:
                self._load(options)
        except (ValueError, StoreUnavailable) as exc:
            raise CommandError(f"Not published: {exc}") from exc

    def _event(self, options: dict[str, Any], data: str) -> Event:
        return Event(options["topic"], data, options["event"], options["tenant"])

    def _load(self, options: dict[str, Any]) -> None:
        count, rate, size = options["count"], options["rate"], options["size"]
        if count < 1 or rate <= 0 or size < 1:
            raise CommandError("--count, --rate and --size are greater than 0.")
        started, sent, last = time.monotonic(), 0, ""
        while sent < count:
            due = min(count, int((time.monotonic() - started) * rate) + 1)
            if due > sent:
                last = publish_many(self._event(options, numbered(at, size)) for at in range(sent + 1, due + 1))[-1]
                sent = due
            else:
                time.sleep(1 / max(rate, BATCHES_PER_SECOND))
        seconds = time.monotonic() - started
        self.stdout.write(f"{count} events in {seconds:.2f} s, the last is {last}")


def numbered(number: int, size: int) -> str:
    """A load event: its number, when it was published (epoch ms), and filling up to a size."""
    return f"{number} {epoch_ms()} ".ljust(size, ".")
