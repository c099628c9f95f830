"""The pages of the room, in the order of their tabs. Each answers one question with its first line."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from sse_limits.dashboard.view import RoomPage

from . import decision, holders, nodes, overview, rejections, streams, tenants

PAGES = {
    page.slug: page
    for page in (
        RoomPage(slug="overview", title=_("Overview"), template="overview", build=overview.build),
        RoomPage(slug="tenants", title=_("Tenants"), template="tenants", build=tenants.build, records=tenants.records),
        RoomPage(
            slug="holders", title=_("Top holders"), template="holders", build=holders.build, records=holders.records
        ),
        RoomPage(slug="streams", title=_("Streams"), template="streams", build=streams.build, records=streams.records),
        RoomPage(
            slug="rejections",
            title=_("Rejections"),
            template="rejections",
            build=rejections.build,
            records=rejections.records,
        ),
        RoomPage(slug="decision", title=_("Decision"), template="decision", build=decision.build),
        RoomPage(slug="nodes", title=_("Nodes"), template="nodes", build=nodes.build, records=nodes.records),
    )
}
