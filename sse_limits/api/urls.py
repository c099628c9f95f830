"""The API's paths."""

from __future__ import annotations

from django.urls import path

from .publish import PublishView
from .tokens import TokenView

app_name = "sse_limits_api"
urlpatterns = [
    path("token/", TokenView.as_view(), name="token"),
    path("publish/", PublishView.as_view(), name="publish"),
]
