"""The two tiers that the settings name by default, and the row that carries the version of the policy."""

from __future__ import annotations

from typing import Any

from django.db import migrations


def make(apps: Any, schema_editor: Any) -> None:
    """Make what is missing; tiers that somebody has made before stay as they are."""
    tiers = apps.get_model("sse_limits", "Tier").objects
    tiers.get_or_create(slug="anonymous", defaults={"name": "Anonymous", "address_limit": 20})
    tiers.get_or_create(slug="free", defaults={"name": "Free", "user_limit": 5, "tenant_limit": 50})
    apps.get_model("sse_limits", "PolicyVersion").objects.get_or_create(pk=1, defaults={"version": 1})


class Migration(migrations.Migration):
    dependencies = [("sse_limits", "0001_limits")]

    operations = [migrations.RunPython(make, migrations.RunPython.noop)]
