"""The models: so far only the place of the live room in the admin."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class LiveRoom(models.Model):
    """No table: it gives the live room its entry in the admin, its permissions and its history."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = (("view_live", "Can see the live room"), ("revoke_stream", "Can disconnect streams"))
        verbose_name = _("live room")
        verbose_name_plural = _("live room")

    def __str__(self) -> str:
        return str(_("Live room"))
