"""A decision in one sentence: who, when, why, with the numbers in it and no blame."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.decisions import Decision
from sse_limits.core.rejections import ENDS, LIMIT_REASONS, Reason
from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.live.rows import DecisionRow


def story(said: Decision, row: DecisionRow | None, *, shows_addresses: bool) -> SafeString:
    """The sentence."""
    who = _who(row, shows_addresses=shows_addresses)
    at = formats.strong(formats.clock(said.at))
    cause = _cause(said, row, shows_addresses=shows_addresses)
    if said.reason in ENDS:
        return format_html(_("A stream of {who} was ended at {at} because {cause}."), who=who, at=at, cause=cause)
    return format_html(_("{who} was refused a stream at {at} because {cause}."), who=who, at=at, cause=cause)


def also(said: Decision, row: DecisionRow | None) -> str:
    """What else is true of it."""
    if said.reason in ENDS:
        return _("It had been admitted; its slots were given back at once.")
    if said.reason in LIMIT_REASONS.values():
        asked = [_("Whatever is checked before it had room."), _("With one free slot the stream would have gone on.")]
        if row is None:
            asked = asked[1:]
        return " ".join([*asked, _("Nothing was taken.")])
    return _("No slot was asked for, and nothing was taken.")


def _who(row: DecisionRow | None, *, shows_addresses: bool) -> SafeString:
    if row is None:
        return SafeString(_("A client"))
    if row.user is not None:
        return formats.strong(row.user)
    if row.address is not None:
        return formats.strong(formats.address(row.address, is_shown=shows_addresses))
    return SafeString(_("A client without a name"))


def _cause(said: Decision, row: DecisionRow | None, *, shows_addresses: bool) -> SafeString:
    if said.reason in LIMIT_REASONS.values():
        holder = _holder(said, row, shows_addresses=shows_addresses)
        text = _("{holder} already held {held} of {limit} slots")
        if said.in_use == said.limit:
            text = _("{holder} already held all {held} of {limit} slots")
        held = formats.strong(formats.number(said.in_use or 0))
        return format_html(text, holder=holder, held=held, limit=formats.number(said.limit or 0))
    return SafeString(_reasons().get(said.reason) or _("of %(reason)s") % {"reason": said.reason})


def _holder(said: Decision, row: DecisionRow | None, *, shows_addresses: bool) -> SafeString:
    if row is not None:
        match said.scope:
            case Scope.TENANT if row.tenant:
                return formats.strong(row.tenant)
            case Scope.USER if row.user:
                return formats.strong(row.user)
            case Scope.ADDRESS if row.address:
                return formats.strong(formats.address(row.address, is_shown=shows_addresses))
    unnamed = {
        Scope.USER: _("the user"),
        Scope.TENANT: _("the tenant"),
        Scope.ADDRESS: _("the address"),
        Scope.CLASS: _("this kind of stream"),
        Scope.FLEET: _("the fleet"),
    }
    return SafeString(unnamed[said.scope] if said.scope in unnamed else _("somebody"))


def _reasons() -> dict[Reason, str]:
    return {
        Reason.MISSING_TOKEN: _("it brought neither a stream token nor a session"),
        Reason.BAD_TOKEN: _("its stream token was not one of ours, or was changed"),
        Reason.EXPIRED_TOKEN: _("its stream token had expired"),
        Reason.SUSPENDED: _("the tenant or the user is suspended"),
        Reason.BLOCKED: _("its tenant or address is not served"),
        Reason.BAD_ORIGIN: _("a page of its origin may not open streams with this site’s cookies"),
        Reason.TENANT_AMBIGUOUS: _("the user belongs to several tenants, and none is the default"),
        Reason.BAD_TOPIC: _("it named no topic, or one that cannot be"),
        Reason.UNKNOWN_TOPIC: _("there is no such topic"),
        Reason.FORBIDDEN_TOPIC: _("it may not read this topic"),
        Reason.BAD_METHOD: _("an event stream is opened with GET"),
        Reason.STORE: _("the store did not answer, so nobody could count"),
        Reason.DRAINING: _("its node was about to restart"),
        Reason.SHUTDOWN: _("its node restarts"),
        Reason.EVICTED: _("a newer stream of the same user took its place"),
        Reason.LEASE_LOST: _("its slot was lost and the limit was full when it asked again"),
        Reason.WRITE_DEADLINE: _("the client took nothing for too long"),
        Reason.REVOKED: _("an operator ended it"),
    }
