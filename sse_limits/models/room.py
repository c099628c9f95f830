"""The live room as Django knows it: a name, permissions, and no table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class LiveRoom(models.Model):
    """No table: the place of the live room in the admin, and what may be done there."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions: ClassVar = [
            ("view_live", _("Can see the live room")),
            ("revoke_stream", _("Can disconnect streams")),
        ]
        verbose_name = _("live room")
        verbose_name_plural = _("live room")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)
