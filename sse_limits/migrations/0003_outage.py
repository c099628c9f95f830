"""What newcomers get while the slot store is away, per tier, tenant and user."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("sse_limits", "0002_built_in_tiers"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="outage",
            field=models.CharField(
                blank=True,
                choices=[
                    ("local", "local"),
                    ("open", "open"),
                    ("closed", "closed"),
                ],
                help_text="What newcomers get while the slot store does not answer. Local: each node enforces its share of the limit from its own table. Open: everybody is admitted. Closed: refused with 503. Open streams stay open.",
                max_length=10,
                null=True,
                verbose_name="while the store is away",
            ),
        ),
        migrations.AddField(
            model_name="tier",
            name="outage",
            field=models.CharField(
                blank=True,
                choices=[
                    ("local", "local"),
                    ("open", "open"),
                    ("closed", "closed"),
                ],
                help_text="What newcomers get while the slot store does not answer. Local: each node enforces its share of the limit from its own table. Open: everybody is admitted. Closed: refused with 503. Open streams stay open.",
                max_length=10,
                null=True,
                verbose_name="while the store is away",
            ),
        ),
        migrations.AddField(
            model_name="userlimit",
            name="outage",
            field=models.CharField(
                blank=True,
                choices=[
                    ("local", "local"),
                    ("open", "open"),
                    ("closed", "closed"),
                ],
                help_text="What newcomers get while the slot store does not answer. Local: each node enforces its share of the limit from its own table. Open: everybody is admitted. Closed: refused with 503. Open streams stay open.",
                max_length=10,
                null=True,
                verbose_name="while the store is away",
            ),
        ),
    ]
