"""The strictest content security policy under which the admin works: the live room asks for no exception."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

POLICY = "default-src 'self'"


class ContentSecurityPolicy(MiddlewareMixin):
    """Send the policy with every response."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Add the header."""
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response
