"""The demo site's Django paths; streams that are consumers are routed in asgi.py."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView

from sse_limits.api.metrics import metrics, tenant_metrics

from . import views

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:sse_limits_live_overview")),
    path("admin/", admin.site.urls),
    path("api/", include("sse_limits.api.urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("metrics", metrics),
    path("metrics/tenants", tenant_metrics),
    path("healthz", views.healthz),
    path("views/clock/", views.clock),
    path("es/", include("django_eventstream.urls"), {"channels": ["news"]}),
]
