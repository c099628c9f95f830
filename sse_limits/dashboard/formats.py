"""How values look: numbers, shares, ages, addresses, bars. Every cell and figure of the live room is made here.

Everything returns HTML that is safe to show; what came from outside is escaped. No style attributes: a strict content
security policy forbids them, so bars are SVG with width attributes.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import UTC, datetime

from django.conf import settings
from django.utils.encoding import force_bytes
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from sse_limits.core.limits import Limits, Source
from sse_limits.core.rejections import CAUSES, Layer, Reason

NBSP = "\N{NO-BREAK SPACE}"
DASH = mark_safe('<span class="q">–</span>')
MASK = "•"
STRONG_PERCENT, WARN_PERCENT, CRITICAL_PERCENT = 70, 85, 98
TICKS = (STRONG_PERCENT, WARN_PERCENT, CRITICAL_PERCENT)
REF_CHARS = 12
# Reasons with a colour of their own; the identity layer has one for all of its reasons.
COLOURED = (Reason.USER_LIMIT, Reason.TENANT_LIMIT, Reason.ADDRESS_LIMIT, Reason.STORE)


def number(value: float, digits: int = 0) -> str:
    """8,412."""
    return f"{value:,.{digits}f}"


def unit(value: float, name: str, digits: int = 0) -> str:
    """38.2 /s, held together by a no-break space."""
    return f"{number(value, digits)}{NBSP}{name}"


def percent(part: float, whole: float, digits: int = 0) -> str:
    """70 %."""
    return unit(100 * part / whole if whole else 0, "%", digits)


def milliseconds(value: float) -> str:
    """0.21 ms below ten, else 11 ms."""
    return unit(value, "ms", 2 if value < 1 else 1 if value < 10 else 0)


def size(value: int) -> str:
    """86 MiB."""
    return unit(value / 2**20, "MiB") if value < 2**30 else unit(value / 2**30, "GiB", 1)


def age(seconds: float) -> str:
    """12 s, 4 min, 5 h 12 min, 9 d 4 h: for the age of something."""
    whole = max(0, int(seconds))
    if 60 <= whole < 3600:
        return f"{whole // 60}{NBSP}min"
    return duration(whole)


def duration(seconds: float) -> str:
    """1 min 42 s: as `age`, with the seconds of the first hour; two units at most."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        units = [(days, "d"), (hours, "h")]
    elif hours:
        units = [(hours, "h"), (minutes, "min")]
    else:
        units = [(minutes, "min"), (whole % 60, "s")]
    named = [f"{count}{NBSP}{name}" for count, name in units if count]
    return NBSP.join(named) or f"0{NBSP}s"


def since(at: int, now: int) -> SafeString:
    """The age of an instant, both in epoch ms, as a `<time>`."""
    return format_html('<time datetime="{}">{}</time>', moment(at).isoformat("T", "seconds"), age((now - at) / 1000))


def moment(at: int) -> datetime:
    """An instant in epoch ms as a local time."""
    return localtime(datetime.fromtimestamp(at / 1000, UTC))


def clock(at: int) -> str:
    """12:31:03."""
    return f"{moment(at):%H:%M:%S}"


def live(text: str) -> SafeString:
    """A value that flashes when it changes."""
    return format_html('<span class="sl-v">{}</span>', text)


def count(value: float, digits: int = 0) -> SafeString:
    """A number of a table; zero is quiet."""
    return format_html('<span class="sl-v{}">{}</span>', "" if value else " q", number(value, digits))


def quiet(text: object) -> SafeString:
    """Something that steps back."""
    return format_html('<span class="q">{}</span>', text)


def strong(text: object) -> SafeString:
    """What a sentence is about."""
    return format_html('<b class="b">{}</b>', text)


def mono(text: str) -> SafeString:
    """An id or a path."""
    return format_html('<span class="mono">{}</span>', text)


def link(url: str, text: object, classes: str = "") -> SafeString:
    """A link."""
    return format_html('<a href="{}"{}>{}</a>', url, format_html(' class="{}"', classes) if classes else "", text)


def tag(text: object, kind: str = "") -> SafeString:
    """A small word beside a name: draining, suspended."""
    return format_html(' <span class="sl-tag {}">{}</span>', kind, text)


def icon(name: str, kind: str = "") -> SafeString:
    """One of the drawn signs: warn, crit, ok, no, skip."""
    return format_html('<svg class="sl-ic {}" aria-hidden="true"><use href="#sl-i-{}"/></svg>', kind, name)


def facts(rows: Sequence[tuple[object, object]]) -> SafeString:
    """A list of names and values."""
    return format_html('<dl class="sl-dl">{}</dl>', format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows))


# -- used / limit ---------------------------------------------------------------------------------------------------


def usage(used: int, limit: int | None, *, is_shared: bool = True, size: str = "") -> SafeString:
    """Number, bar and percent. Only capacity that several people share turns amber and red."""
    if limit is None:
        return format_html('<span class="sl-use">{} {}</span>', live(number(used)), quiet(_("no limit")))
    share = percent_of(used, limit)
    return format_html(
        '<span class="sl-use"><span>{} <span class="q l">/ {}</span></span>{}<span class="p{}">{}</span></span>',
        live(number(used)),
        number(limit),
        bar(share, f"{level(share) if is_shared else ''} {size}".strip()),
        " hi" if share >= STRONG_PERCENT else "",
        unit(share, "%"),
    )


def percent_of(used: int, limit: int) -> float:
    """How full; a limit of 0 is full at once."""
    return 100 * used / limit if limit else 100


def level(share: float) -> str:
    """The class of a bar: `c` critical, `w` warning."""
    return "c" if share >= CRITICAL_PERCENT else "w" if share >= WARN_PERCENT else ""


def bar(share: float, classes: str = "") -> SafeString:
    """A bar with ticks at 70, 85 and 98 %."""
    return format_html(
        '<svg class="sl-u {}" aria-hidden="true"><use href="#sl-ruler"/>'
        '<rect class="fi" y="1" width="{}%" height="7" rx="1"/></svg>',
        classes,
        round(min(100, share), 1),
    )


def big_bar(share: float) -> SafeString:
    """The bar of the first figure, with its ticks named."""
    ticks = format_html_join(
        "",
        '<line x1="{0}%" x2="{0}%" y1="12" y2="16"/><text x="{0}%" y="27" text-anchor="middle">{1}</text>',
        [(tick, tick if tick != CRITICAL_PERCENT else unit(tick, "%")) for tick in TICKS],
    )
    return format_html(
        '<svg class="sl-u big {}" role="img" aria-label="{}"><rect class="tr" y="1" width="100%" height="10" rx="1"/>'
        '<rect class="fi" y="1" width="{}%" height="10" rx="1"/>{}</svg>',
        level(share),
        _("%(percent)d percent in use") % {"percent": share},
        round(min(100, share), 1),
        ticks,
    )


def spark(values: Sequence[float]) -> SafeString:
    """A line without axes: whether it rises or falls."""
    if len(values) < 2:
        return SafeString("")
    low, high = min(values), max(values)
    points = " ".join(
        f"{position * 64 / (len(values) - 1):.1f},{14.5 - (value - low) / ((high - low) or 1) * 13:.1f}"
        for position, value in enumerate(values)
    )
    return format_html(
        '<svg class="sl-sp" viewBox="0 0 64 16" aria-hidden="true"><polyline points="{}"/></svg>', points
    )


# -- the words of the house -----------------------------------------------------------------------------------------


def colour(reason: Reason) -> str:
    """The name of a reason's colour."""
    if CAUSES[reason].layer is Layer.IDENTITY:
        return "identity"
    return str(reason) if reason in COLOURED else "other"


def reason(found: Reason | None) -> SafeString:
    """A reason by its code, with its colour."""
    return DASH if found is None else swatch(colour(found), found)


def swatch(name: str, text: str) -> SafeString:
    """A spot of colour and what it stands for."""
    return format_html('<span class="sl-reason"><i class="sw {}"></i>{}</span>', name, text)


def provenance(source: Source | None) -> SafeString:
    """← tier pro."""
    if source is None:
        return SafeString("")
    return format_html('<span class="q"><span class="ar">←</span> {} {}</span>', source.step, source.slug)


def limit_of(limits: Limits, field: str, value: int | None) -> SafeString:
    """A limit and where it comes from."""
    shown = _("no limit") if value is None else number(value)
    return format_html("{} {}", shown, provenance(limits.provenance.get(field)))


def transport(name: str) -> str:
    """SSE or WebSocket."""
    return "WebSocket" if name == "websocket" else "SSE"


def node(id: str) -> str:
    """A node as people call it: host and process, without the random end of its id."""
    return id.rpartition(":")[0] or id


def short_id(id: str) -> str:
    """The end of a decision id, which tells it from its neighbours."""
    return f"…{id[-10:-2]}"


# -- addresses ------------------------------------------------------------------------------------------------------


def address(found: str | None, *, is_shown: bool) -> SafeString:
    """An address, masked unless it may be seen: 203.0.113.•."""
    if not found:
        return DASH
    return format_html("{}", found if is_shown else mask(found))


def mask(found: str) -> str:
    """Hide the part of an address that tells a household from its neighbours."""
    if ":" not in found:
        return f"{found.rpartition('.')[0]}.{MASK}"
    return f"{':'.join(found.partition('/')[0].split(':')[:3])}:{MASK}"


def address_ref(found: str) -> str:
    """What stands for an address in a page's paths: the masked pages must not tell it there."""
    key = force_bytes(settings.SECRET_KEY)
    return hmac.digest(key, b"sse_limits.address.v1" + found.encode(), "sha256").hex()[:REF_CHARS]
