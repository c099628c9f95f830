"""Rows whose every change is counted, in the transaction that makes it.

Each process asks for the version once a second and reads everything anew when it has changed (`policy/`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models, router, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from sse_limits.policy import wake


class PolicyVersion(models.Model):
    """The version of everything below: one row, whose lock also keeps two writers in order."""

    version = models.BigIntegerField(_("version"), default=0)
    changed_at = models.DateTimeField(_("changed at"), default=timezone.now)

    class Meta:
        verbose_name = _("policy version")
        verbose_name_plural = _("policy version")

    def __str__(self) -> str:
        return str(self.version)

    @classmethod
    def bump(cls) -> None:
        """Count a change, in the transaction that makes it; other processes see both at the same instant."""
        alias = router.db_for_write(cls)
        rows = cls.objects.using(alias)
        with transaction.atomic(using=alias):
            rows.get_or_create(pk=1)
            rows.filter(pk=1).update(version=F("version") + 1, changed_at=timezone.now())
            transaction.on_commit(wake, using=alias)


class PolicyQuerySet(models.QuerySet[Any]):
    """A QuerySet whose changes are policy changes: those that send no signals are counted here."""

    def update(self, **kwargs: Any) -> int:
        with transaction.atomic(using=self._write_alias()):
            changed = super().update(**kwargs)
            PolicyVersion.bump()
        return changed

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        with transaction.atomic(using=self._write_alias()):
            made = super().bulk_create(objs, *args, **kwargs)
            PolicyVersion.bump()
        return made

    def bulk_update(self, objs: Iterable[Any], fields: Iterable[str], batch_size: int | None = None) -> int:
        with transaction.atomic(using=self._write_alias()):
            changed = super().bulk_update(objs, fields, batch_size)
            PolicyVersion.bump()
        return changed

    def delete(self) -> tuple[int, dict[str, int]]:
        with transaction.atomic(using=self._write_alias()):
            gone = super().delete()
            PolicyVersion.bump()
        return gone

    def _write_alias(self) -> str:
        return str(self._db or router.db_for_write(self.model))  # type: ignore[attr-defined] # what `using()` has set


class PolicyModel(models.Model):
    """A row of the policy. Saving and deleting count the change by signals (`signals.py`), which fixtures send too."""

    objects = PolicyQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):  # the signal's bump belongs to the same transaction
            super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        with transaction.atomic(using=kwargs.get("using") or router.db_for_write(type(self), instance=self)):
            return super().delete(*args, **kwargs)
