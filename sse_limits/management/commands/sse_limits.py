"""`manage.py sse_limits top | streams | holders | explain`: the live room at a terminal; --json for scripts."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sse_limits.core.rejections import CAUSES, ENDS
from sse_limits.core.slots import Scope
from sse_limits.limiter import explain_decision, get_board
from sse_limits.live.board import Snapshot
from sse_limits.live.rows import Holder, StreamRow
from sse_limits.policy import PolicyUnavailable, get_policy
from sse_limits.policy.holders import with_limit
from sse_limits.slots.base import StoreUnavailable

SCOPES = (Scope.USER, Scope.TENANT, Scope.ADDRESS, Scope.NODE)
CLEAR = "\x1b[H\x1b[J"
TOP_HOLDERS = 8


class Command(BaseCommand):
    """Read the board. Nothing here changes anything."""

    help = "Show who holds streams, and why others were rejected."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands and their options."""
        commands = parser.add_subparsers(dest="what", required=True, metavar="top|streams|holders|explain")
        top = commands.add_parser("top", help="the fleet on one screen, renewed each second (Ctrl-C ends)")
        top.add_argument("--seconds", type=float, help="end after this time")
        streams = commands.add_parser("streams", help="open streams, oldest first")
        whose = streams.add_mutually_exclusive_group()
        for scope in SCOPES:
            example = {"user": "acme/alice", "tenant": "acme", "address": "203.0.113.7", "node": "the node's id"}[scope]
            whose.add_argument(f"--{scope}", help=f"only those of this {scope}, such as {example}")
        holders = commands.add_parser("holders", help="who holds most")
        holders.add_argument("--scope", choices=[str(scope) for scope in SCOPES], default=str(Scope.USER))
        explain = commands.add_parser("explain", help="why a stream was rejected or ended")
        explain.add_argument("decision", help="the id that stands in the client's answer as `decision`")
        for command in (streams, holders):
            command.add_argument("--count", type=int, default=50, help="at most so many rows (default: 50)")
        for command in (top, streams, holders, explain):
            _with_json(command)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a subcommand."""
        show = {"top": self._top, "streams": self._streams, "holders": self._holders, "explain": self._explain}
        try:
            show[options["what"]](options)
        except (StoreUnavailable, PolicyUnavailable) as exc:
            raise CommandError(f"The store or the database does not answer: {exc}") from exc

    def _top(self, options: dict[str, Any]) -> None:
        ends_at = None if options["seconds"] is None else time.monotonic() + options["seconds"]
        try:
            while True:
                self._screen(get_board().snapshot(), as_json=options["json"])
                if ends_at is not None and time.monotonic() >= ends_at:
                    return
                time.sleep(1)
        except KeyboardInterrupt:
            self.stdout.write("")

    def _screen(self, found: Snapshot, *, as_json: bool) -> None:
        if as_json:
            self._print({"at": found.at, "in_use": found.fleet_in_use, "nodes": [asdict(node) for node in found.nodes]})
        elif self.stdout.isatty():
            self.stdout.write(CLEAR + "\n".join(screen(found)))
        else:
            self.stdout.write("\n".join(screen(found)) + "\n")
        self.stdout.flush()

    def _streams(self, options: dict[str, Any]) -> None:
        asked = [(scope, options[scope]) for scope in SCOPES if options[scope] is not None]
        scope, subject = asked[0] if asked else (Scope.FLEET, "")
        total, rows = get_board().streams(scope, subject, count=max(1, options["count"]))
        if options["json"]:
            self._print({"count": total, "streams": [asdict(row) for row in rows]})
            return
        now = get_board().snapshot().at
        self._table(("stream", "user", "address", "path", "transport", "age", "queued", "dropped"), streams(rows, now))
        self.stdout.write(f"{len(rows)} of {total} streams")

    def _holders(self, options: dict[str, Any]) -> None:
        found = get_board().snapshot().top(Scope(options["scope"]))[: max(1, options["count"])]
        if options["json"]:
            self._print({"holders": [with_limit(holder, get_policy()) for holder in found]})
            return
        self._table((options["scope"], "in use", "limit", "limit from"), holders(found))

    def _explain(self, options: dict[str, Any]) -> None:
        found = explain_decision(options["decision"])
        if found is None:
            raise CommandError("This is not a decision id of this site (or SECRET_KEY has changed since).")
        facts = {"decision": options["decision"].lower(), **found.facts()}
        if options["json"]:
            self._print(facts)
            return
        self.stdout.write(f"{CAUSES[found.decision.reason].detail % _counts(facts)}\n")
        for name, value in facts.items():
            shown = clock(value) if name == "at" else value
            if shown not in (None, "", ()):
                self.stdout.write(f"{name.replace('_', ' '):16} {shown}")

    def _table(self, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self.stdout.write("\n".join(table(titles, rows)))

    def _print(self, value: object) -> None:
        self.stdout.write(json.dumps(value, default=str))


def screen(found: Snapshot) -> list[str]:
    """The lines of `top`."""
    limit = get_policy().fleet_limit
    counts = (pair for span in found.rejections[-6:] for pair in span.counts.items())
    rejected = sum(count for cause, count in counts if cause.reason not in ENDS)
    held = f"{found.fleet_in_use}{f' of {limit}' if limit is not None else ''}"
    nodes = [
        (node.id, node.open, node.server, node.policy_version, f"{node.loop_lag_ms:.0f}", node.blocked)
        for node in found.nodes
    ]
    reasons = [(each.tenant or "(none)", each.cause.reason, each.count) for each in found.tenant_causes[:TOP_HOLDERS]]
    users = found.top(Scope.USER)[:TOP_HOLDERS]
    return [
        f"{clock(found.at)}   {held} streams on {len(found.nodes)} nodes, {rejected} rejected in a minute",
        "",
        *table(("node", "streams", "server", "policy", "lag ms", "blocked"), nodes),
        "",
        *table(("user", "in use", "limit", "limit from"), holders(users)),
        "",
        *table(("tenant", "rejected for", "in 15 min"), reasons),
    ]


def holders(found: Iterable[Holder]) -> list[tuple[object, ...]]:
    """Rows of holders with their limits."""
    policy = get_policy()
    rows = (with_limit(holder, policy) for holder in found)
    return [
        (row["subject"], row["in_use"], "none" if row["limit"] is None else row["limit"], row["limit_source"])
        for row in rows
    ]


def streams(rows: Iterable[StreamRow], now: int) -> list[tuple[object, ...]]:
    """Rows of streams, with their age at `now` (epoch ms)."""
    return [
        (
            row.id,
            f"{row.tenant or ''}/{row.user}" if row.user else "-",
            row.address or "-",
            row.path or "-",
            row.transport or "-",
            f"{max(0, now - row.since) // 1000} s" if row.since else "-",
            row.queued,
            row.dropped,
        )
        for row in rows
    ]


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as they need to be: names to the left, numbers to the right."""
    found = [tuple(row) for row in rows]
    texts = [tuple(titles), *(tuple(str(cell) for cell in row) for row in found)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(titles))]
    is_number = [bool(found) and all(isinstance(row[at], int) for row in found) for at in range(len(titles))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in texts
    ]


def clock(at: int) -> str:
    """An instant for people, in UTC."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _counts(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: facts.get(name) or 0 for name in ("limit", "in_use", "retry_after")}


def _with_json(command: ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="JSON for scripts")
