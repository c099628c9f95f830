"""Exceptions by client address."""

from __future__ import annotations

import ipaddress

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sse_limits.conf import get_conf
from sse_limits.core.address_rules import AddressAction

from .versioned import PolicyModel


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
