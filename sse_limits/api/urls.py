"""The API's paths."""

from __future__ import annotations

from django.urls import path

from . import live
from .publish import PublishView
from .tokens import TokenView

app_name = "sse_limits_api"
urlpatterns = [
    path("token/", TokenView.as_view(), name="token"),
    path("publish/", PublishView.as_view(), name="publish"),
    path("overview/", live.OverviewView.as_view(), name="overview"),
    path("nodes/", live.NodesView.as_view(), name="nodes"),
    path("holders/", live.HoldersView.as_view(), name="holders"),
    path("tenants/", live.TenantsView.as_view(), name="tenants"),
    path("tiers/", live.TiersView.as_view(), name="tiers"),
    path("streams/", live.StreamsView.as_view(), name="streams"),
    path("streams/revoke/", live.RevokeView.as_view(), name="revoke"),
    path("streams/<str:stream>/", live.StreamView.as_view(), name="stream"),
    path("rejections/", live.RejectionsView.as_view(), name="rejections"),
    path("decisions/", live.DecisionsView.as_view(), name="decisions"),
    path("decisions/<str:decision>/", live.DecisionView.as_view(), name="decision"),
]
