"""What follows from changes of rows: a new policy version, or the end of what a user signed in with.

Connected by the app's `ready`. `User.objects.update()` sends no signal; the nodes' audit finds such users within a
minute.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_out
from django.db.models import Model
from django.db.models.signals import post_delete, post_save, pre_save
from django.http import HttpRequest

from .conf import get_conf
from .core.revocations import RevocationKind
from .core.token_keys import TokenKeys
from .models import AddressRule, PolicyVersion, Tenant, TenantMembership, Tier, UserLimit
from .revocations import revoke

POLICY_MODELS = (Tier, Tenant, TenantMembership, UserLimit, AddressRule)


def connect() -> None:
    """Connect every receiver; doing it again changes nothing."""
    for model in POLICY_MODELS:
        for signal in (post_save, post_delete):
            signal.connect(_count_change, sender=model, dispatch_uid=f"sse_limits.{model.__name__}")
    user_model = get_user_model()
    pre_save.connect(_compare_user, sender=user_model, dispatch_uid="sse_limits.user")
    post_save.connect(_end_changed, sender=user_model, dispatch_uid="sse_limits.user")
    post_delete.connect(_end_user, sender=user_model, dispatch_uid="sse_limits.user")
    user_logged_out.connect(_end_session, dispatch_uid="sse_limits.session")


def _count_change(**_: Any) -> None:
    PolicyVersion.bump()


def _compare_user(sender: type[Model], instance: Any, *, raw: bool, update_fields: Any = None, **_: Any) -> None:
    """Note what a save changes of a user, by one query before the row changes; `_end_changed` acts on it."""
    name = sender.USERNAME_FIELD  # type: ignore[attr-defined] # the project's user model
    watched = ("password", "is_active", name)
    instance._sse_limits_before = None
    if not raw and instance.pk is not None and (update_fields is None or set(watched) & set(update_fields)):
        before = sender._default_manager.filter(pk=instance.pk).values(*watched).first()
        if before is not None:
            instance._sse_limits_before = (before[name], before["password"], before["is_active"])


def _end_changed(instance: Any, **_: Any) -> None:
    """A new password, a deactivation or a new name ends what the user holds.

    Only after the row has changed: outside a transaction both are commits of their own, and a node that read the
    revocation before the change would ask the session again, find it valid, and remember that.
    """
    before, instance._sse_limits_before = instance._sse_limits_before, None
    if before is None:
        return
    name, password, was_active = before
    if name != instance.get_username():
        PolicyVersion.bump()  # memberships go by name
    elif password == instance.password and (instance.is_active or not was_active):
        return
    revoke(RevocationKind.USER, name)


def _end_user(instance: Any, **_: Any) -> None:
    revoke(RevocationKind.USER, instance.get_username())


def _end_session(request: HttpRequest, user: Any, **_: Any) -> None:
    """The session, and the tokens that were minted in it, whatever key has signed them."""
    key = getattr(getattr(request, "session", None), "session_key", None)
    if key and user is not None:
        keys = TokenKeys.from_secrets(settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS)
        lasts = 2 * get_conf().token_ttl_seconds + get_conf().session_cache_seconds
        revoke(RevocationKind.SESSION, *keys.session_ids(key), lasts_seconds=lasts)
