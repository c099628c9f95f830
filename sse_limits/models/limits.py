"""Tiers, tenants, who belongs to them, and exceptions by user.

A field that is null inherits from the step before: default, tier, tenant, user. Fields arrive with the feature that
gives them their effect.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sse_limits.core.limits import FIELDS

from .versioned import PolicyModel


class Overridable(PolicyModel):
    """The limits that a tier, a tenant or a user may set; null inherits, and null at every step is no limit."""

    class AtUserLimit(models.TextChoices):
        REJECT = "reject", _("reject the newcomer")
        EVICT = "evict", _("evict the user's oldest stream")

    class Outage(models.TextChoices):
        LOCAL = "local", _("local")
        OPEN = "open", _("open")
        CLOSED = "closed", _("closed")

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
    outage = models.CharField(  # noqa: DJ001 - null inherits, as in every field here
        _("while the store is away"),
        max_length=10,
        choices=Outage,
        null=True,
        blank=True,
        help_text=_(
            "What newcomers get while the slot store does not answer. Local: each node enforces its share of the limit"
            " from its own table. Open: everybody is admitted. Closed: refused with 503. Open streams stay open."
        ),
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
