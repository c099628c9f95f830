"""What was signed and no longer counts. Rows are written by `sse_limits.revocations`."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sse_limits.core.revocations import RevocationKind


class Revocation(models.Model):
    """Something signed that no longer counts. Append-only; rows end by themselves at `until`. Times are epoch ms."""

    class Kind(models.TextChoices):
        USER = RevocationKind.USER.value, _("user")
        SESSION = RevocationKind.SESSION.value, _("session")
        TENANT = RevocationKind.TENANT.value, _("tenant")
        TOKEN = RevocationKind.TOKEN.value, _("token")

    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    subject = models.CharField(_("subject"), max_length=255)
    not_before = models.BigIntegerField(_("not before"))
    until = models.BigIntegerField(_("until"))
    created = models.BigIntegerField(_("created"), db_index=True)

    class Meta:
        verbose_name = _("revocation")
        verbose_name_plural = _("revocations")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"
