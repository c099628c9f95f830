"""`manage.py stream_token`: print a stream token."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from sse_limits.conf import get_conf
from sse_limits.core.token_keys import TokenKeys
from sse_limits.policy import PolicyUnavailable, get_policy
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint


class Command(BaseCommand):
    """Mint a token for a user of a tenant, for `Authorization: Bearer ...`."""

    help = "Print a stream token for Authorization: Bearer."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--user", required=True, help="the user's name (what get_username() returns)")
        parser.add_argument("--tenant", help="the tenant's slug; without it the user's membership decides")
        parser.add_argument("--tier", help="use this tier instead of the tenant's")
        parser.add_argument("--topic", action="append", help="allow only this topic; may be repeated")
        parser.add_argument("--ttl", type=float, help="seconds that the token lasts (default: TOKEN_TTL_SECONDS)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the token."""
        try:
            policy = get_policy()
        except PolicyUnavailable as exc:
            raise CommandError(str(exc)) from exc
        tier, tenant = options["tier"], options["tenant"]
        if tier is not None and tier not in policy.tiers:
            raise CommandError(f"There is no tier {tier!r}. Known: {', '.join(policy.tiers)}.")
        if tenant is not None and tenant not in policy.tenants:
            known = ", ".join(policy.tenants) or "none"
            self.stderr.write(f"The policy has no tenant {tenant!r} (known: {known}): its streams are answered 403.")
        try:
            token = mint(
                TokenKeys.from_secrets(settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS),
                tenant=tenant,
                user=options["user"],
                now=epoch_ms(),
                ttl_seconds=get_conf().token_ttl_seconds if options["ttl"] is None else options["ttl"],
                tier=tier,
                topics=options["topic"],
            )
        except ValueError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(token)
