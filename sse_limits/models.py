"""Limits as data: tiers, tenants, who belongs to them, exceptions by user and by address, and what was revoked.

Every change bumps `PolicyVersion` in its own transaction, also through `QuerySet.update()`, `bulk_create()` and
`delete()`; each process then reads the whole anew (`policy/`). A field that is null inherits from the step before:
default, tier, tenant, user. Fields arrive with the feature that gives them their effect.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models, router, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .conf import get_conf
from .core.address_rules import AddressAction
from .core.limits import FIELDS
from .core.revocations import RevocationKind
from .policy import wake


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


class Overridable(PolicyModel):
    """The limits that a tier, a tenant or a user may set; null inherits, and null at every step is no limit."""

    class AtUserLimit(models.TextChoices):
        REJECT = "reject", _("reject the newcomer")
        EVICT = "evict", _("evict the user's oldest stream")

    user_limit = models.PositiveIntegerField(
        _("streams of each user"), null=True, blank=True, help_text=_("How many streams one user may hold at once.")
    )
    tenant_limit = models.PositiveIntegerField(
        _("tenant streams"), null=True, blank=True, help_text=_("All streams of the tenant together.")
    )
    address_limit = models.PositiveIntegerField(
        _("streams of each address"),
        null=True,
        blank=True,
        help_text=_("How many streams may come from one client address (IPv6: one network)."),
    )
    at_user_limit = models.CharField(  # noqa: DJ001 - null inherits, as in every field here
        _("at a user's limit"), max_length=10, choices=AtUserLimit, null=True, blank=True
    )
    lane_events = models.PositiveIntegerField(
        _("queued events"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("How many events may wait for one client; the oldest give way."),
    )
    max_message_bytes = models.PositiveIntegerField(
        _("message size"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("The largest WebSocket message a client may send, in bytes; a larger one closes with 1009."),
    )

    class Meta:
        abstract = True
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.CheckConstraint(condition=~Q(lane_events=0), name="%(app_label)s_%(class)s_lane_events"),
            models.CheckConstraint(condition=~Q(max_message_bytes=0), name="%(app_label)s_%(class)s_message_bytes"),
        )

    def overrides(self) -> dict[str, Any]:
        """What this row sets, by the names of `core.limits.FIELDS`."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}


class Tier(Overridable):
    """A named set of limits that tenants share."""

    slug = models.SlugField(_("slug"), unique=True, help_text=_("Its name in tokens: letters, digits, - and _."))
    name = models.CharField(_("name"), max_length=200)

    class Meta(Overridable.Meta):
        verbose_name = _("tier")
        verbose_name_plural = _("tiers")
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug

    @property
    def is_named_by_settings(self) -> bool:
        """Whether users without a tenant, or anonymous streams, are of this tier."""
        return self.slug in (get_conf().default_tier, get_conf().anonymous_tier)


class Tenant(Overridable):
    """A customer: its tier, and what it was granted beyond it."""

    slug = models.SlugField(
        _("slug"), unique=True, help_text=_("Its name in tokens and topics: letters, digits, - and _.")
    )
    name = models.CharField(_("name"), max_length=200)
    tier = models.ForeignKey(Tier, models.PROTECT, verbose_name=_("tier"), related_name="tenants")
    suspended = models.BooleanField(
        _("suspended"), default=False, help_text=_("Ends the tenant's streams and refuses new ones with 403.")
    )

    class Meta(Overridable.Meta):
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug


class TenantMembership(PolicyModel):
    """A user's place in a tenant, for users who come by session or by a token without a tenant."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, verbose_name=_("tenant"), related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, verbose_name=_("user"), related_name="stream_memberships"
    )
    is_default = models.BooleanField(
        _("default"),
        default=False,
        help_text=_("Of several tenants the default one counts; without one the user's streams are refused."),
    )

    class Meta:
        verbose_name = _("tenant membership")
        verbose_name_plural = _("tenant memberships")
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "user"),
                name="sse_limits_membership_once",
                violation_error_message=_("This user belongs to this tenant already."),
            ),
            models.UniqueConstraint(
                fields=("user",),
                condition=Q(is_default=True),
                name="sse_limits_membership_one_default",
                violation_error_message=_("This user has a default tenant already. Clear that one first."),
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} – {self.tenant}"


class UserLimit(Overridable):
    """What one user was granted beyond tenant and tier, or that they are suspended. The user is a name: it need not
    be in this database."""

    tenant = models.ForeignKey(
        Tenant,
        models.CASCADE,
        verbose_name=_("tenant"),
        related_name="user_limits",
        null=True,
        blank=True,
        help_text=_("Empty: the user without a tenant. Users of the same name in two tenants are two users."),
    )
    user = models.CharField(
        _("user"), max_length=255, help_text=_("The user name as it stands in tokens (what get_username() returns).")
    )
    suspended = models.BooleanField(
        _("suspended"),
        default=False,
        help_text=_("Ends the user's streams and refuses new ones with 403."),
    )

    class Meta(Overridable.Meta):
        verbose_name = _("user limit")
        verbose_name_plural = _("user limits")
        ordering = ("tenant__slug", "user")
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            *Overridable.Meta.constraints,
            models.UniqueConstraint(
                fields=("tenant", "user"),
                name="sse_limits_user_limit_once",
                violation_error_message=_("This user has a row in this tenant already: change that one."),
            ),
            models.UniqueConstraint(
                fields=("user",),
                condition=Q(tenant=None),
                name="sse_limits_user_limit_once_without_tenant",
                violation_error_message=_("This user has a row without a tenant already: change that one."),
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant or ''}/{self.user}"


class AddressRule(PolicyModel):
    """What holds for the clients of a network, whoever they are; of several rules the smallest network's counts."""

    class Action(models.TextChoices):
        LIMIT = AddressAction.LIMIT.value, _("limit each address")
        EXEMPT = AddressAction.EXEMPT.value, _("no address limit")
        BLOCK = AddressAction.BLOCK.value, _("refuse with 403")

    network = models.CharField(
        _("network"), max_length=43, unique=True, help_text=_("Such as 203.0.113.0/24, 203.0.113.7 or 2001:db8::/48.")
    )
    action = models.CharField(_("action"), max_length=10, choices=Action)
    address_limit = models.PositiveIntegerField(
        _("streams of each address"), null=True, blank=True, help_text=_("Only with the action “limit each address”.")
    )
    note = models.CharField(_("note"), max_length=200, blank=True, help_text=_("Why this rule is here."))

    class Meta:
        verbose_name = _("address rule")
        verbose_name_plural = _("address rules")
        ordering = ("network",)
        constraints = (
            models.CheckConstraint(
                condition=Q(action="limit", address_limit__isnull=False)
                | (~Q(action="limit") & Q(address_limit__isnull=True)),
                name="sse_limits_address_rule_limit",
                violation_error_message=_("Give a number of streams with “limit each address”, and only with it."),
            ),
        )

    def __str__(self) -> str:
        return self.network

    def clean(self) -> None:
        """Write the network in its one spelling, and refuse one that no client could ever be in."""
        if not self.network:
            return  # the field itself asks for one
        try:
            network = ipaddress.ip_network(self.network.strip(), strict=True)
        except ValueError as exc:
            if "host bits" in str(exc):
                wide = ipaddress.ip_network(self.network.strip(), strict=False)
                message = _("This address lies inside a network. Write the network, %(network)s, or the address alone.")
                raise ValidationError({"network": ValidationError(message, params={"network": wide})}) from exc
            message = _("This is no network. Write an address with a prefix length, such as 203.0.113.0/24.")
            raise ValidationError({"network": message}) from exc
        prefix = get_conf().ipv6_prefix
        if network.version == 6 and network.prefixlen > prefix:
            message = _("IPv6 clients are counted by /%(prefix)d networks: write at most /%(prefix)d.")
            raise ValidationError({"network": ValidationError(message, params={"prefix": prefix})})
        self.network = str(network)


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
