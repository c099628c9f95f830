"""`/metrics` for Prometheus: any worker answers for the whole fleet, and for itself while the store is away."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from sse_limits.core.slots import Scope
from sse_limits.limiter import get_board
from sse_limits.live import exposition
from sse_limits.slots.base import StoreUnavailable
from sse_limits.streams import here


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Everything but what is counted by tenant."""
    try:
        text = exposition.fleet(get_board().snapshot().nodes)
    except StoreUnavailable as exc:
        own = here.rows()
        if not own:
            return _away(exc)
        text = exposition.part(own)
    return HttpResponse(text, content_type=exposition.CONTENT_TYPE)


@require_safe
def tenant_metrics(request: HttpRequest) -> HttpResponse:
    """The tenants that hold most."""
    try:
        text = exposition.tenants(get_board().snapshot().top(Scope.TENANT))
    except StoreUnavailable as exc:
        return _away(exc)
    return HttpResponse(text, content_type=exposition.CONTENT_TYPE)


def _away(exc: StoreUnavailable) -> HttpResponse:
    return HttpResponse(f"the store does not answer: {exc}\n", status=503, content_type="text/plain")
