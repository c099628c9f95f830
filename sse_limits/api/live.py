"""The read API: what the live room shows, as JSON, and the one action. OpenAPI is made from these views.

Reading needs the permission `view_live`, ending streams `revoke_stream`; who asks is said by whatever authentication
the project gives its API. While the store is away the answer is 503.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rest_framework import exceptions, serializers, status
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from sse_limits.core.rejections import Reason
from sse_limits.core.slots import Scope
from sse_limits.limiter import explain_decision, get_board
from sse_limits.live.board import Board
from sse_limits.live.rows import Bucket, Cause
from sse_limits.models import LiveRoom
from sse_limits.policy import get_policy
from sse_limits.policy.holders import with_limit
from sse_limits.slots.base import StoreUnavailable

from . import serializers as shapes

ROWS_AT_MOST = 200
MINUTES_AT_MOST = 2880
HOLDER_SCOPES = (Scope.USER, Scope.TENANT, Scope.ADDRESS, Scope.NODE)
STREAM_SCOPES = (*HOLDER_SCOPES, Scope.FLEET)


class MayView(BasePermission):
    """Whoever may see the live room."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.user.has_perm("sse_limits.view_live")


class MayRevoke(BasePermission):
    """Whoever may disconnect streams."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.user.has_perm("sse_limits.revoke_stream")


class StoreAway(exceptions.APIException):
    """503: nobody knows."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "The store does not answer. Limits and open streams are not affected."
    default_code = "store_unavailable"


class LiveView(GenericAPIView[Any]):
    """A view of the board; a store that is away is 503 for all of them."""

    permission_classes: tuple[type[BasePermission], ...] = (MayView,)
    pagination_class = None

    def handle_exception(self, exc: Exception) -> Response:
        return super().handle_exception(StoreAway() if isinstance(exc, StoreUnavailable) else exc)

    @property
    def board(self) -> Board:
        """This process's board."""
        return get_board()

    def number(self, name: str, default: int, at_most: int) -> int:
        """A whole number from the query string."""
        text = self.request.query_params.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise serializers.ValidationError({name: f"Write a whole number of at most {at_most}."})
        return min(int(text), at_most)

    def scope(self, allowed: Iterable[Scope], default: Scope | None = None) -> Scope:
        """The scope from the query string."""
        text = self.request.query_params.get("scope", default or "")
        names = tuple(allowed)
        if text not in names:
            raise serializers.ValidationError({"scope": f"Write one of {', '.join(names)}."})
        return Scope(text)


class OverviewView(LiveView):
    """Are we fine? The fleet at this instant."""

    serializer_class = shapes.Overview

    def get(self, request: Request) -> Response:
        """The fleet's state."""
        found, policy = self.board.snapshot(), get_policy()
        return Response(
            {
                "at": found.at,
                "in_use": found.fleet_in_use,
                "limit": policy.fleet_limit,
                "nodes": len(found.nodes),
                "draining": sum(node.is_draining for node in found.nodes),
                "policy_version": policy.version,
                "rejected": [_count(cause, count) for cause, count in _sums(found.rejections).items()],
            }
        )


class NodesView(LiveView):
    """Who refuses, drains, lags?"""

    serializer_class = shapes.Nodes

    def get(self, request: Request) -> Response:
        """The living nodes."""
        return Response({"nodes": [asdict(node) for node in self.board.snapshot().nodes]})


class HoldersView(LiveView):
    """Who holds the capacity? `?scope=user|tenant|address|node`, most first, at most 200."""

    serializer_class = shapes.Holders

    def get(self, request: Request) -> Response:
        """The top holders of one kind."""
        found, policy = self.board.snapshot().top(self.scope(HOLDER_SCOPES, Scope.USER)), get_policy()
        return Response({"holders": [with_limit(holder, policy) for holder in found]})


class TenantsView(LiveView):
    """Every tenant with what it may hold and holds."""

    serializer_class = shapes.Tenants

    def get(self, request: Request) -> Response:
        """All tenants by their slugs."""
        policy = get_policy()
        tenants = [policy.tenants[slug] for slug in sorted(policy.tenants)]
        counts = self.board.in_use([(Scope.TENANT, tenant.slug) for tenant in tenants])
        rows = []
        for tenant, count in zip(tenants, counts, strict=True):
            limit, source = policy.of_holder(Scope.TENANT, tenant.slug)
            shown = {name: getattr(tenant, name) for name in ("slug", "name", "tier", "suspended")}
            rows.append({**shown, "in_use": count, "limit": limit, "limit_source": str(source)})
        return Response({"tenants": rows})


class TiersView(LiveView):
    """Every tier and what it sets."""

    serializer_class = shapes.Tiers

    def get(self, request: Request) -> Response:
        """All tiers by their slugs."""
        tiers = get_policy().tiers
        rows = [{"slug": slug, "name": tiers[slug].name, **asdict(tiers[slug].overrides)} for slug in sorted(tiers)]
        return Response({"tiers": rows})


class StreamsView(LiveView):
    """What does this one hold? `?scope=user&subject=acme/alice&offset=0&count=50`; without a subject, the fleet."""

    serializer_class = shapes.Streams

    def get(self, request: Request) -> Response:
        """A page of streams, oldest first."""
        subject = request.query_params.get("subject", "")
        scope = self.scope(STREAM_SCOPES, Scope.FLEET)
        if bool(subject) == (scope is Scope.FLEET):
            raise serializers.ValidationError({"subject": "Every scope but fleet needs a subject, such as acme/alice."})
        offset, count = self.number("offset", 0, 10**9), self.number("count", 50, ROWS_AT_MOST)
        total, rows = self.board.streams(scope, subject, offset=offset, count=count)
        return Response({"count": total, "offset": offset, "streams": [asdict(row) for row in rows]})


class StreamView(LiveView):
    """One stream."""

    serializer_class = shapes.Stream

    def get(self, request: Request, stream: str) -> Response:
        """The stream's row; 404 when nobody holds a slot under this id any more."""
        row = self.board.stream(stream)
        if row is None:
            raise exceptions.NotFound("No stream of this id is open.")
        return Response(asdict(row))


class RejectionsView(LiveView):
    """Why, how much, since when? `?minutes=15`: to 60 in spans of ten seconds, to 2,880 in minutes."""

    serializer_class = shapes.Rejections

    def get(self, request: Request) -> Response:
        """Rejections over time and by tenant."""
        minutes = max(1, self.number("minutes", 15, MINUTES_AT_MOST))
        spans = [
            {"at": each.at, "seconds": each.seconds, "counts": [_count(*pair) for pair in each.counts.items()]}
            for each in self.board.rejections(minutes=minutes)
        ]
        tenants = [
            {"tenant": each.tenant, **_count(each.cause, each.count)}
            for each in self.board.tenant_causes(minutes=minutes)
        ]
        return Response({"spans": spans, "tenants": tenants})


class DecisionsView(LiveView):
    """The latest decisions whose details were kept; `?before=<epoch ms>` pages on."""

    serializer_class = shapes.Decisions

    def get(self, request: Request) -> Response:
        """A page of decisions, newest first."""
        before = self.number("before", 0, 10**18) or None
        count = self.number("count", 50, ROWS_AT_MOST)
        found = self.board.decisions(before=before, count=count)
        more = found[-1].at if len(found) == count else None
        return Response({"decisions": [{**asdict(row), "details_kept": True} for row in found], "before": more})


class DecisionView(LiveView):
    """Why exactly this one?"""

    serializer_class = shapes.Decision

    def get(self, request: Request, decision: str) -> Response:
        """What the id says by itself, and the details as far as they were kept."""
        found = explain_decision(decision)
        if found is None:
            raise exceptions.NotFound("This is not a decision id of this site.")
        return Response({"id": decision.lower(), **found.facts()})


class RevokeView(LiveView):
    """Disconnect streams."""

    permission_classes = (MayRevoke,)
    serializer_class = shapes.RevokeRequest

    def post(self, request: Request) -> Response:
        """Order the streams' nodes to end them. A stream is gone when its row is."""
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        streams, note = asked.validated_data["streams"], asked.validated_data["note"]
        ordered = self.board.revoke(streams, Reason.REVOKED, note)
        LiveRoom.log(request.user.pk, f"{len(streams)} streams: {', '.join(streams)}", note)
        return Response({"ordered": ordered}, status=status.HTTP_202_ACCEPTED)


def _sums(spans: Iterable[Bucket]) -> Mapping[Cause, int]:
    sums: Counter[Cause] = Counter()
    for span in spans:
        sums.update(span.counts)
    return sums


def _count(cause: Cause, count: int) -> dict[str, Any]:
    return {**cause._asdict(), "count": count}
