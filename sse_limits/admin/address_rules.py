"""Networks with a limit of their own, exempt ones and blocked ones. Searching for an address finds its networks."""

from __future__ import annotations

import ipaddress
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sse_limits.models import AddressRule

from .base import ModelForm, PolicyAdmin, end_seconds


class AddressRuleForm(ModelForm):
    """A number where it counts, and only there."""

    def clean(self) -> dict[str, Any]:
        """Say at the number what to do about it, before the table's constraint would."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        action = data.get("action")
        if "address_limit" in data and action:
            is_limit = action == AddressRule.Action.LIMIT
            if is_limit and data["address_limit"] is None:
                self.add_error("address_limit", _("Write how many streams each address may hold."))
            if not is_limit and data["address_limit"] is not None:
                self.add_error("address_limit", _("Empty this: only “limit each address” needs a number."))
        return data


@admin.register(AddressRule)
class AddressRuleAdmin(PolicyAdmin):
    """All rules."""

    form = AddressRuleForm
    fields = ("network", "action", "address_limit", "note")
    list_display = ("network", "action", "address_limit", "note")
    list_filter = ("action",)
    search_fields = ("network", "note")
    search_help_text = gettext_lazy("An address finds every network it is in; of those the smallest counts.")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find the rules that an address is in; anything else is searched as text."""
        try:
            address = ipaddress.ip_address(search_term.strip())
        except ValueError:
            return super().get_search_results(request, queryset, search_term)
        rules = queryset.values_list("pk", "network")
        return queryset.filter(pk__in=[pk for pk, network in rules if address in ipaddress.ip_network(network)]), False

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """A block ends streams; whoever is in no smaller network is concerned."""
        rule = form.instance
        if rule.action != AddressRule.Action.BLOCK:
            super().say_what_follows(request, form)
            return
        text = _("Blocked: %(network)s. New streams are refused with 403, open ones end within %(seconds)g s.")
        self.message_user(request, text % {"network": rule.network, "seconds": end_seconds()})
        if ipaddress.ip_network(rule.network).prefixlen == 0:
            text = _(
                "%(network)s is every address of its kind: only networks with a rule of their own can open streams."
            )
            self.message_user(request, text % {"network": rule.network}, messages.WARNING)
