"""Writes revocations: what they name ends on every node within RECHECK_SECONDS + 1 s.

A row is written in the transaction of what caused it. Rows that can no longer concern anything are swept on the way.
"""

from __future__ import annotations

from django.db import router, transaction

from .core.revocations import RevocationKind
from .models import Revocation
from .policy import wake
from .slots.memory import epoch_ms

LASTS_SECONDS = 30 * 24 * 3600
"""How long a revocation matters unless it says otherwise: tokens that live longer come back to life after it."""


def revoke(kind: RevocationKind, *subjects: str, lasts_seconds: float = LASTS_SECONDS) -> None:
    """Revoke all that was issued to each subject until now."""
    now = epoch_ms()
    until = now + round(lasts_seconds * 1000)
    alias = router.db_for_write(Revocation)
    rows = Revocation.objects.using(alias)
    rows.filter(until__lt=now).delete()
    rows.bulk_create(
        Revocation(kind=kind, subject=subject, not_before=now, until=until, created=now) for subject in subjects
    )
    transaction.on_commit(wake, using=alias)
