"""`manage.py demo_data`: the demo's users. May be run again."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from project.demo_policy import POLICY

PASSWORD = "demo"
ADMIN = "admin"


class Command(BaseCommand):
    """Create an administrator and the users of the demo policy, all with the same well-known password."""

    help = "Create the demo's users (password 'demo'); refuses outside DEBUG."

    def handle(self, *args: Any, **options: Any) -> None:
        """Create who is missing."""
        if not settings.DEBUG:
            raise CommandError("These users have a well-known password: only with DEBUG=1.")
        names = dict.fromkeys(membership["user"] for membership in POLICY["memberships"])
        missing = [name for name in (ADMIN, *names) if not User.objects.filter(username=name).exists()]
        password = make_password(PASSWORD)  # once: hashing is slow on purpose
        User.objects.bulk_create(
            User(username=name, password=password, is_staff=name == ADMIN, is_superuser=name == ADMIN)
            for name in missing
        )
        self.stdout.write(f"{len(missing)} demo users created, {1 + len(names) - len(missing)} were there.")
