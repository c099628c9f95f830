"""`POST /api/publish/`: publish an event."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers, status
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response

from sse_limits.publishing import publish
from sse_limits.slots.base import StoreUnavailable


class PublishRequest(serializers.Serializer[Any]):
    """An event to publish."""

    topic = serializers.CharField(max_length=200)
    data = serializers.JSONField(  # type: ignore[assignment] # DRF takes fields off the class
        help_text="Text goes out as it is, anything else as JSON."
    )
    event = serializers.CharField(max_length=200, required=False, help_text="The event's name.")
    tenant = serializers.SlugField(required=False, help_text="Publish to this tenant's topic.")
    id = serializers.CharField(read_only=True, help_text="The event's id in the topic's log.")


class PublishView(GenericAPIView[Any]):
    """Publish an event. For staff, with whatever authentication the project gives its API."""

    permission_classes = (IsAdminUser,)
    serializer_class = PublishRequest

    def post(self, request: Request) -> Response:
        """Return the event's `id`."""
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        wanted = asked.validated_data
        try:
            event_id = publish(wanted["topic"], wanted["data"], event=wanted.get("event"), tenant=wanted.get("tenant"))
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from exc
        except StoreUnavailable:
            return Response(
                {"detail": "The store does not answer.", "error": "store_unavailable"},
                status=status.HTTP_503_SERVICE_UNAVAILABLE,
            )
        return Response({"id": event_id}, status=status.HTTP_201_CREATED)
