"""`/metrics` for Prometheus: any worker answers for the whole fleet."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from sse_limits.core.slots import Scope
from sse_limits.limiter import get_board
from sse_limits.live import exposition
from sse_limits.live.board import Snapshot
from sse_limits.slots.base import StoreUnavailable


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Everything but what is counted by tenant."""
    return _answer(lambda snapshot: exposition.fleet(snapshot.nodes))


@require_safe
def tenant_metrics(request: HttpRequest) -> HttpResponse:
    """The tenants that hold most."""
    return _answer(lambda snapshot: exposition.tenants(snapshot.tops.get(Scope.TENANT, ())))


def _answer(write: Callable[[Snapshot], str]) -> HttpResponse:
    try:
        text = write(get_board().snapshot())
    except StoreUnavailable as exc:
        return HttpResponse(f"the store does not answer: {exc}\n", status=503, content_type="text/plain")
    return HttpResponse(text, content_type=exposition.CONTENT_TYPE)
