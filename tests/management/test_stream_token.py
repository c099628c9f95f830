"""`manage.py stream_token`: what it prints verifies, and mistakes are told with what is known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.management.base import CommandError

from sse_limits.core.token_keys import TokenKeys
from sse_limits.streams.tokens import Claims, TokenFault, verify

ROOT = Path(__file__).resolve().parents[2]
POLICY = {"tiers": {"anonymous": {}, "free": {}, "pro": {}}, "tenants": {"acme": {"tier": "pro"}}}


@pytest.fixture(autouse=True)
def policy(settings: Any) -> None:
    settings.SSE_LIMITS = {"POLICY": POLICY, "TOKEN_TTL_SECONDS": 60}


def run(*options: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("stream_token", *options, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def now() -> int:
    return time.time_ns() // 1_000_000


def claims(*options: str) -> Claims:
    token, said = run(*options)
    assert said == ""
    found = verify(TokenKeys.from_secrets(django_settings.SECRET_KEY), token.removesuffix("\n"), now=now())
    assert isinstance(found, Claims)
    return found


def test_the_token_verifies_and_is_all_that_is_printed() -> None:
    found = claims("--user", "alice", "--tenant", "acme")
    assert (found.user, found.tenant, found.tier, found.topics, found.sid) == ("alice", "acme", None, None, None)


def test_it_lasts_as_long_as_the_settings_say() -> None:
    found = claims("--user", "alice")
    assert found.expires_at - found.issued_at == 60_000
    assert abs(found.issued_at - now()) < 5000


def test_a_ttl_replaces_the_settings_one() -> None:
    found = claims("--user", "alice", "--ttl", "0.5")
    assert found.expires_at - found.issued_at == 500
    keys = TokenKeys.from_secrets(django_settings.SECRET_KEY)
    assert verify(keys, run("--user", "a", "--ttl", "0.001")[0].strip(), now=now() + 2) is TokenFault.EXPIRED


def test_without_a_tenant_the_user_s_membership_decides_when_they_connect() -> None:
    assert claims("--user", "alice").tenant is None


def test_a_tier_that_exists_stands_in_the_token() -> None:
    assert claims("--user", "alice", "--tier", "pro").tier == "pro"


def test_topics_may_be_named_one_by_one() -> None:
    assert claims("--user", "alice", "--topic", "news", "--topic", "clock").topics == ("news", "clock")


def test_an_unknown_tier_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(CommandError, match=r"^There is no tier 'gold'\. Known: anonymous, free, pro\.$"):
        run("--user", "alice", "--tier", "gold")


def test_an_unknown_tenant_is_warned_about_and_the_token_minted_all_the_same() -> None:
    """It may exist on the node that is asked, or in a minute."""
    token, said = run("--user", "alice", "--tenant", "acmee")
    assert said == "The policy has no tenant 'acmee' (known: acme): its streams are answered 403.\n"
    found = verify(TokenKeys.from_secrets(django_settings.SECRET_KEY), token.strip(), now=now())
    assert isinstance(found, Claims)
    assert found.tenant == "acmee"


def test_without_any_tenant_the_warning_says_so(settings: Any) -> None:
    settings.SSE_LIMITS = {"POLICY": {}}
    assert "(known: none)" in run("--user", "alice", "--tenant", "acme")[1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--user", ""), "user must be text"),
        (("--user", "a\nb"), "user must not hold control characters"),
        (("--user", "\udcff"), "lone surrogates"),
        (("--user", "alice", "--ttl", "0"), "lifetime must be a positive number"),
        (("--user", "alice", "--ttl", "-1"), "lifetime must be a positive number"),
        (("--user", "alice", "--ttl", "nan"), "lifetime must be a positive number"),
        (("--user", "alice", "--ttl", "inf"), "lifetime must be a positive number"),
        (("--user", "alice", "--ttl", "soon"), "invalid float value: 'soon'"),
        (("--user", "alice", "--topic", ""), "topic must be text"),
        (("--user", "alice", "--tenant", "a/b"), "must not hold any of '/'"),
        (("--user", "x" * 1000, "--topic", "y" * 1000), "2048 bytes"),
        (("--tenant", "acme"), "--user"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_cannot_stand_in_a_token_is_told_without_a_traceback(options: tuple[str, ...], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        run(*options)


def manage(database: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SSE_LIMITS_")}
    return subprocess.run(
        [sys.executable, "manage.py", *options],
        cwd=ROOT,
        env={**env, "DATABASE_PATH": str(database)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_from_the_shell_the_token_alone_is_on_stdout(tmp_path: Path) -> None:
    command = ("stream_token", "--user", "alice", "--tenant", "nowhere")
    early = manage(tmp_path / "db", *command)
    assert (early.returncode, early.stdout) == (1, "")
    assert "has 'migrate' been run?" in early.stderr
    assert "Traceback" not in early.stderr
    assert manage(tmp_path / "db", "migrate").returncode == 0
    done = manage(tmp_path / "db", *command)
    assert done.stdout.startswith("sl1.")
    assert done.stdout.count("\n") == 1
    assert "no tenant 'nowhere'" in done.stderr
