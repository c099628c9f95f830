"""Make the demo's users in the database of the environment, log each in, and print the session keys as JSON."""

from __future__ import annotations

import json

import django

NAMES = ("gina", "gus", "alice", "marta", "torn", "nobody", "off", "ops")


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    sessions = {}
    for name in NAMES:
        client = Client()
        client.force_login(User.objects.create_user(name))
        sessions[name] = client.session.session_key
    User.objects.filter(username="off").update(is_active=False)
    User.objects.filter(username="ops").update(is_staff=True, is_superuser=True)
    print(json.dumps(sessions))


if __name__ == "__main__":
    main()
