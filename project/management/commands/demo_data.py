"""`manage.py demo_data`: the demo's tiers, tenants and users. May be run again; what was edited since stays."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from project.demo_policy import POLICY
from sse_limits.models import Tenant, TenantMembership, Tier

PASSWORD = "demo"
ADMIN = "admin"
BUILT_IN = ("anonymous", "free")  # made by a migration, with other limits


class Command(BaseCommand):
    """Create an administrator, and the tiers, tenants and users of the demo policy."""

    help = "Create the demo's tiers, tenants and users (password 'demo'); refuses outside DEBUG."

    def handle(self, *args: Any, **options: Any) -> None:
        """Create what is missing."""
        if not settings.DEBUG:
            raise CommandError("These users have a well-known password: only with DEBUG=1.")
        with transaction.atomic():
            made = self._users()
            self._limits()
        names = dict.fromkeys(membership["user"] for membership in POLICY["memberships"])
        self.stdout.write(
            f"{made} users created. Password of all: {PASSWORD}. Administrator: {ADMIN}. Users: {', '.join(names)}"
        )

    def _users(self) -> int:
        names = dict.fromkeys((ADMIN, *(membership["user"] for membership in POLICY["memberships"])))
        missing = [name for name in names if not User.objects.filter(username=name).exists()]
        password = make_password(PASSWORD)  # once: hashing is slow on purpose
        User.objects.bulk_create(
            User(username=name, password=password, is_staff=name == ADMIN, is_superuser=name == ADMIN)
            for name in missing
        )
        return len(missing)

    def _limits(self) -> None:
        is_first = not Tenant.objects.exists()
        for slug, entry in POLICY["tiers"].items():
            if is_first and slug in BUILT_IN:
                Tier.objects.update_or_create(slug=slug, defaults=entry)
            else:
                Tier.objects.get_or_create(slug=slug, defaults=entry)
        for slug, entry in POLICY["tenants"].items():
            tier = Tier.objects.get(slug=entry["tier"])
            Tenant.objects.get_or_create(slug=slug, defaults={**entry, "tier": tier})
        for entry in POLICY["memberships"]:
            TenantMembership.objects.get_or_create(
                tenant=Tenant.objects.get(slug=entry["tenant"]),
                user=User.objects.get(username=entry["user"]),
                defaults={"is_default": entry.get("is_default", False)},
            )
