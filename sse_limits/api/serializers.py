"""The shapes of what the API answers: the rows of `live/`, with limits and where they come from.

Instants are epoch ms. They are serializers only so that the schema is made from what is really sent.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class CauseCount(serializers.Serializer[Any]):
    """How often something was rejected or ended for one cause."""

    layer = serializers.CharField()
    reason = serializers.CharField()
    mode = serializers.CharField()
    count = serializers.IntegerField()


class TenantCauseCount(CauseCount):
    """The same, of one tenant."""

    tenant = serializers.CharField(allow_null=True)


class Overview(serializers.Serializer[Any]):
    """The fleet at one instant; `rejected` is of the last 15 minutes."""

    at = serializers.IntegerField()
    in_use = serializers.IntegerField()
    limit = serializers.IntegerField(allow_null=True)
    nodes = serializers.IntegerField()
    draining = serializers.IntegerField()
    policy_version = serializers.IntegerField()
    rejected = CauseCount(many=True)


class Node(serializers.Serializer[Any]):
    """One living node."""

    id = serializers.CharField()
    host = serializers.CharField()
    pid = serializers.IntegerField()
    server = serializers.CharField()
    started_at = serializers.IntegerField()
    seen_at = serializers.IntegerField()
    open = serializers.IntegerField()
    open_sse = serializers.IntegerField()
    budget = serializers.IntegerField(allow_null=True)
    is_draining = serializers.BooleanField()
    policy_version = serializers.IntegerField()
    loop_lag_ms = serializers.FloatField()
    memory_bytes = serializers.IntegerField()
    blocked = serializers.IntegerField()
    store = serializers.CharField()
    store_ms = serializers.FloatField()
    store_p99_ms = serializers.FloatField()
    store_away_since = serializers.IntegerField(allow_null=True)


class Nodes(serializers.Serializer[Any]):
    """The living nodes."""

    nodes = Node(many=True)


class Held(serializers.Serializer[Any]):
    """Who holds how much of which limit; `source` says where the limit comes from, such as "tier free"."""

    scope = serializers.CharField()
    subject = serializers.CharField()
    in_use = serializers.IntegerField()
    limit = serializers.IntegerField(allow_null=True)
    limit_source = serializers.CharField()


class Holders(serializers.Serializer[Any]):
    """The top holders of a kind, most first."""

    holders = Held(many=True)


class TenantRow(serializers.Serializer[Any]):
    """A tenant with what it may hold and holds."""

    slug = serializers.CharField()
    name = serializers.CharField()
    tier = serializers.CharField()
    suspended = serializers.BooleanField()
    in_use = serializers.IntegerField()
    limit = serializers.IntegerField(allow_null=True)
    limit_source = serializers.CharField()


class Tenants(serializers.Serializer[Any]):
    """All tenants by their slugs."""

    tenants = TenantRow(many=True)


class TierRow(serializers.Serializer[Any]):
    """A tier and what it sets; null inherits."""

    slug = serializers.CharField()
    name = serializers.CharField()
    user_limit = serializers.IntegerField(allow_null=True)
    tenant_limit = serializers.IntegerField(allow_null=True)
    address_limit = serializers.IntegerField(allow_null=True)
    at_user_limit = serializers.CharField(allow_null=True)
    lane_events = serializers.IntegerField(allow_null=True)
    max_message_bytes = serializers.IntegerField(allow_null=True)
    outage = serializers.CharField(allow_null=True)


class Tiers(serializers.Serializer[Any]):
    """All tiers by their slugs."""

    tiers = TierRow(many=True)


class Stream(serializers.Serializer[Any]):
    """One open stream."""

    id = serializers.CharField()
    node = serializers.CharField()
    path = serializers.CharField()
    transport = serializers.CharField()
    stream_class = serializers.CharField()
    since = serializers.IntegerField()
    tenant = serializers.CharField(allow_null=True)
    user = serializers.CharField(allow_null=True)
    address = serializers.CharField(allow_null=True)
    tier = serializers.CharField()
    queued = serializers.IntegerField()
    lane_events = serializers.IntegerField()
    dropped = serializers.IntegerField()


class Streams(serializers.Serializer[Any]):
    """A page of a holder's streams, oldest first."""

    count = serializers.IntegerField()
    offset = serializers.IntegerField()
    streams = Stream(many=True)


class Span(serializers.Serializer[Any]):
    """The rejections of one span of time."""

    at = serializers.IntegerField()
    seconds = serializers.IntegerField()
    counts = CauseCount(many=True)


class Rejections(serializers.Serializer[Any]):
    """Rejections over time, and by tenant."""

    spans = Span(many=True)
    tenants = TenantCauseCount(many=True)


class Decision(serializers.Serializer[Any]):
    """What a decision id says, and its details as far as they were kept (for 24 h, bounded)."""

    id = serializers.CharField()
    at = serializers.IntegerField()
    node = serializers.CharField()
    reason = serializers.CharField()
    scope = serializers.CharField(allow_null=True)
    limit = serializers.IntegerField(allow_null=True)
    in_use = serializers.IntegerField(allow_null=True)
    policy_version = serializers.IntegerField()
    details_kept = serializers.BooleanField()
    mode = serializers.CharField(required=False)
    tenant = serializers.CharField(required=False, allow_null=True)
    user = serializers.CharField(required=False, allow_null=True)
    address = serializers.CharField(required=False, allow_null=True)
    tier = serializers.CharField(required=False)
    path = serializers.CharField(required=False)
    transport = serializers.CharField(required=False)
    stream_class = serializers.CharField(required=False)
    status = serializers.IntegerField(required=False)
    retry_after = serializers.IntegerField(required=False, allow_null=True)
    holders = serializers.ListField(
        required=False, child=serializers.ListField(), help_text="Who held the scope then: [name, count], most first."
    )
    others = serializers.IntegerField(required=False)


class Decisions(serializers.Serializer[Any]):
    """The latest decisions whose details were kept, newest first; `before` pages on."""

    decisions = Decision(many=True)
    before = serializers.IntegerField(allow_null=True)


class RevokeRequest(serializers.Serializer[Any]):
    """Streams to disconnect."""

    streams = serializers.ListField(
        child=serializers.CharField(max_length=64), min_length=1, max_length=500, write_only=True
    )
    ordered = serializers.IntegerField(read_only=True, help_text="How many streams were ordered to end.")
    note = serializers.CharField(
        required=False, max_length=200, allow_blank=True, default="", write_only=True, help_text="Shown to the clients."
    )
