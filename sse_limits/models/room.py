"""The live room as Django knows it: a name, permissions, and no table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.apps import apps
from django.db import models
from django.utils.translation import gettext_lazy as _

OBJECT_CHARS = 200


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

    @classmethod
    def log(cls, user_id: Any, who: str, message: str) -> None:
        """Keep an action in the admin's history; a project without the admin has none."""
        if not apps.is_installed("django.contrib.admin"):
            return
        from django.contrib.admin.models import CHANGE, LogEntry
        from django.contrib.contenttypes.models import ContentType

        LogEntry.objects.create(
            user_id=user_id,
            content_type_id=ContentType.objects.get_for_model(cls).pk,
            object_id=who[:OBJECT_CHARS],
            object_repr=who[:OBJECT_CHARS],
            action_flag=CHANGE,
            change_message=message,
        )
