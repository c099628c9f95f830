"""Filters of the lists."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sse_limits.core.limits import FIELDS


class OwnLimitsFilter(admin.SimpleListFilter):
    """Rows that set a limit themselves."""

    title = gettext_lazy("own limits")
    parameter_name = "own"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Two answers."""
        return [("yes", _("Sets a limit")), ("no", _("Inherits all"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows with a value, or without any."""
        inherits_all = Q(**{f"{name}__isnull": True for name in FIELDS})
        match self.value():
            case "yes":
                return queryset.exclude(inherits_all)
            case "no":
                return queryset.filter(inherits_all)
        return queryset


class AtUserLimitFilter(admin.ChoicesFieldListFilter):
    """The field's own filter, under a title that can be read after "By"."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = _("what happens at a user's limit")


class OutageFilter(admin.ChoicesFieldListFilter):
    """As above."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = _("what happens while the store is away")


AT_USER_LIMIT = ("at_user_limit", AtUserLimitFilter)
OUTAGE = ("outage", OutageFilter)
