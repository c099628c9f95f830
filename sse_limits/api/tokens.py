"""`POST /api/token/`: a stream token for the user who is logged in."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework import serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from sse_limits.conf import get_conf
from sse_limits.core.identity import Identity
from sse_limits.core.rejections import CAUSES, Reason, Reject
from sse_limits.core.token_keys import TokenKeys
from sse_limits.policy import get_policy, resolve_tenant
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint


class TokenRequest(serializers.Serializer[Any]):
    """What the client may ask for: one of the user's tenants, and fewer topics."""

    tenant = serializers.SlugField(required=False, help_text="One of your tenants; without it your default one.")
    topics = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, max_length=32, help_text="Allow only these topics."
    )
    token = serializers.CharField(read_only=True)
    expires_at = serializers.IntegerField(read_only=True, help_text="Epoch ms.")
    user = serializers.CharField(read_only=True)


class TokenView(GenericAPIView[Any]):
    """Mint a stream token. The session (with CSRF) says who asks; the policy says for which tenant."""

    authentication_classes = (SessionAuthentication,)
    permission_classes = (IsAuthenticated,)
    serializer_class = TokenRequest

    def post(self, request: Request) -> Response:
        """Return `token`, `expires_at` (epoch ms), `user` and `tenant`."""
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        user = request.user.get_username()
        tenant = self._tenant(user, asked.validated_data.get("tenant"))
        if isinstance(tenant, Reject):
            cause = CAUSES[tenant.reason]
            return Response(
                {"detail": cause.detail, "error": cause.error, "reason": tenant.reason}, status=cause.status
            )
        conf = get_conf()
        now = epoch_ms()
        keys = TokenKeys.from_secrets(settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS)
        session = request.session.session_key
        try:
            token = mint(
                keys,
                tenant=tenant,
                user=user,
                now=now,
                ttl_seconds=conf.token_ttl_seconds,
                topics=asked.validated_data.get("topics"),
                sid=keys.session_id(session) if session else None,
            )
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from exc
        expires_at = now + round(conf.token_ttl_seconds * 1000)
        return Response({"token": token, "expires_at": expires_at, "user": user, "tenant": tenant})

    def _tenant(self, user: str, wanted: str | None) -> str | Reject | None:
        policy = get_policy()
        given = resolve_tenant(user, policy, get_conf())
        mine = {given} if given is not None else {membership.tenant for membership in policy.memberships.get(user, ())}
        if wanted is not None and wanted not in mine:
            return Reject(Reason.BLOCKED)
        limits = policy.resolve(Identity(user=user, tenant=wanted if wanted is not None else given))
        return limits if isinstance(limits, Reject) else limits.tenant
