"""Migrate the database of the environment, log an operator in, and print the session's key."""

from __future__ import annotations

import django


def main() -> None:
    """Make the operator."""
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    print(client.session.session_key)


if __name__ == "__main__":
    main()
