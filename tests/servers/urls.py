"""The demo's paths and the test views."""

from __future__ import annotations

from django.urls import include, path

from . import views

urlpatterns = [
    path("views/limited/", views.limited),
    path("views/limited-class/", views.limited_class),
    path("views/limited-event/", views.limited_event),
    path("views/limited-open/", views.limited_open),
    path("views/dropped/", views.dropped),
    path("views/ticks/", views.limited.__wrapped__),
    path("es/send/", views.send_to_eventstream),
    path("", include("project.urls")),
]
