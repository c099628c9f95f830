"""Who may read the guard's own answers across sites: as the project's CORS middleware would say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from corsheaders.middleware import CorsMiddleware
from django.http import HttpResponse
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.conf import Conf
from sse_limits.streams.cors import EXPOSED, Readers, readers

APP = b"https://app.example"
OTHER = b"https://other.example"


def names(found: list[tuple[bytes, bytes]]) -> dict[str, str]:
    assert len(found) == len(dict(found))
    return {name.decode(): value.decode() for name, value in found}


class TestOwnSetting:
    FOUND = readers(Conf(cors_origins=("https://app.example",)))

    def test_a_listed_origin_may_read_with_cookies_and_sees_when_to_come_back(self) -> None:
        assert names(self.FOUND.headers(APP)) == {
            "vary": "origin",
            "access-control-allow-origin": "https://app.example",
            "access-control-expose-headers": "retry-after, ratelimit, ratelimit-policy",
            "access-control-allow-credentials": "true",
        }

    @pytest.mark.parametrize(
        "origin",
        [
            None,
            OTHER,
            b"",
            b"null",
            b"http://app.example",
            b"https://app.example:8443",
            b"https://app.example.evil.example",
        ],
    )
    def test_another_may_not_and_caches_are_told_that_it_depends(self, origin: bytes | None) -> None:
        assert names(self.FOUND.headers(origin)) == {"vary": "origin"}

    def test_without_any_nothing_is_said(self) -> None:
        assert readers(Conf()).headers(APP) == []

    def test_names_are_lower_case_as_asgi_wants_them(self) -> None:
        assert all(name == name.lower() for name, _ in self.FOUND.headers(APP))

    def test_all_headers_that_a_rejection_adds_are_exposed(self) -> None:
        assert set(EXPOSED.split(b", ")) == {b"retry-after", b"ratelimit", b"ratelimit-policy"}

    @given(st.binary(max_size=60))
    def test_no_origin_raises(self, origin: bytes) -> None:
        found = Readers(frozenset({APP}), patterns=(re.compile(r"https://\w+\.example$"),))
        assert (b"access-control-allow-origin", origin) not in found.headers(origin) or found.names(origin)


SETTINGS: list[dict[str, Any]] = [
    {"CORS_ALLOWED_ORIGINS": ["https://app.example"]},
    {"CORS_ALLOWED_ORIGINS": ["https://app.example"], "CORS_ALLOW_CREDENTIALS": True},
    {"CORS_ALLOWED_ORIGINS": ["null"]},
    {"CORS_ALLOWED_ORIGIN_REGEXES": [r"^https://\w+\.example$"]},
    {"CORS_ALLOWED_ORIGIN_REGEXES": [re.compile(r"^https://app\.")], "CORS_ALLOW_CREDENTIALS": True},
    {"CORS_ALLOW_ALL_ORIGINS": True},
    {"CORS_ALLOW_ALL_ORIGINS": True, "CORS_ALLOW_CREDENTIALS": True},
    {"CORS_ORIGIN_WHITELIST": ["https://app.example"]},
    {"CORS_ORIGIN_REGEX_WHITELIST": [r"^https://app\."]},
    {"CORS_ORIGIN_ALLOW_ALL": True},
    {},
]


@pytest.mark.parametrize("app", ["corsheaders", "corsheaders.apps.CorsHeadersAppConfig"])
class TestDjangoCorsHeaders:
    @pytest.fixture(autouse=True)
    def installed(self, settings: Any, app: str) -> None:
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app]

    @pytest.mark.parametrize("cors", SETTINGS, ids=str)
    @pytest.mark.parametrize("origin", [APP, OTHER, b"null", b"https://evil.test"])
    def test_an_origin_may_read_what_the_middleware_would_let_it_read(
        self, settings: Any, cors: dict[str, Any], origin: bytes
    ) -> None:
        for name, value in cors.items():
            setattr(settings, name, value)
        request = RequestFactory().get("/", headers={"origin": origin.decode()})
        response = CorsMiddleware(lambda _: HttpResponse())(request)
        ours = names(readers(Conf()).headers(origin))
        allowed = ours.get("access-control-allow-origin")
        assert (allowed is not None) == ("access-control-allow-origin" in response)
        assert allowed in (None, origin.decode())
        assert ours.get("access-control-allow-credentials") == response.get("access-control-allow-credentials")

    def test_our_own_setting_is_not_read_then(self) -> None:
        assert readers(Conf(cors_origins=("https://app.example",))).headers(APP) == []

    def test_being_open_to_everyone_lists_nobody_so_cookies_from_elsewhere_stay_refused(self, settings: Any) -> None:
        settings.CORS_ALLOW_ALL_ORIGINS = settings.CORS_ALLOW_CREDENTIALS = True
        assert not readers(Conf()).names(APP)
