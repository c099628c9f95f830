"""SSE_LIMITS: every key's type and default, what is said about mistakes, and the demo's variables."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.conf import FIELDS, Conf, InvalidConfiguration, Problem, get_conf, problems
from sse_limits.slots.base import SseLimitsError

ROOT = Path(__file__).resolve().parents[1]

DEFAULTS: dict[str, Any] = {
    "REDIS_URL": None,
    "STORE": "redis",
    "STORE_TIMEOUT_SECONDS": 0.25,
    "LEASE_SECONDS": 90,
    "HEARTBEAT_SECONDS": 15,
    "KEEPALIVE_SECONDS": 15,
    "RECHECK_SECONDS": 5,
    "WRITE_DEADLINE_SECONDS": 20,
    "LANE_EVENTS": 64,
    "LANE_BYTES": 1048576,
    "CLEANUP_SECONDS": 2,
    "NODE_NAME": None,
    "NODE_EXCLUSIVE": False,
    "TRUSTED_PROXIES": (),
    "IPV6_PREFIX": 64,
    "ALLOWED_ORIGINS": None,
    "CORS_ORIGINS": (),
    "SESSION_CACHE_SECONDS": 30,
    "QUERY_TOKEN": False,
    "TOKEN_TTL_SECONDS": 300,
    "JWT": None,
    "TENANT_RESOLVER": None,
    "DEFAULT_TIER": "free",
    "ANONYMOUS_TIER": "anonymous",
    "FLEET_LIMIT": None,
    "POLICY": None,
}
DURATIONS = [key for key in DEFAULTS if key.endswith("_SECONDS")]
POSITIVE = [key for key in DURATIONS if key not in ("CLEANUP_SECONDS", "SESSION_CACHE_SECONDS")]

RIGHT: dict[str, list[Any]] = {
    **{key: [0.5, 1] for key in DURATIONS},
    "HEARTBEAT_SECONDS": [0.5, 30],
    "LEASE_SECONDS": [45, 1e6],
    "LANE_EVENTS": [1, 1000],
    "LANE_BYTES": [1, 10**9],
    "REDIS_URL": [
        None,
        "redis://localhost:6379/0",
        "rediss://u:p@example.com",
        "unix:///run/redis.sock",
        "redis+cluster://a,b",
    ],
    "STORE": ["redis", "memory"],
    "NODE_NAME": [None, "web-1"],
    "NODE_EXCLUSIVE": [False],
    "TRUSTED_PROXIES": [[], ("10.0.0.0/8",), ["10.0.0.1", "unix"]],
    "IPV6_PREFIX": [1, 48, 128],
    "ALLOWED_ORIGINS": [None, [], ["https://a.example"]],
    "CORS_ORIGINS": [[], ["https://a.example", "http://localhost:3000", "null"]],
    "QUERY_TOKEN": [True, False],
    "JWT": [None, {}, {"key": "k"}],
    "TENANT_RESOLVER": [None, "project.tenants.resolve"],
    "DEFAULT_TIER": ["pro"],
    "ANONYMOUS_TIER": ["free"],
    "FLEET_LIMIT": [None, 0, 1000],
    "POLICY": [None, {}, {"tiers": {}}],
}
WRONG: dict[str, list[Any]] = {
    **{key: [None, "15", True, [], {}] for key in DURATIONS},
    "LANE_EVENTS": [None, "64", 64.0, True],
    "LANE_BYTES": [None, "64", 64.0, True],
    "REDIS_URL": [1, True, b"redis://", ["redis://"]],
    "STORE": [None, 1, ["redis"]],
    "NODE_NAME": [1, True, b"web"],
    "NODE_EXCLUSIVE": [None, 1, "true"],
    "TRUSTED_PROXIES": [None, "10.0.0.0/8", [1], {"10.0.0.0/8"}],
    "IPV6_PREFIX": [None, "64", 64.0, True],
    "ALLOWED_ORIGINS": ["*", [None], 1],
    "CORS_ORIGINS": [None, "https://a.example", [b"https://a.example"]],
    "QUERY_TOKEN": [None, 1, 0, "true"],
    "JWT": ["key", [], True],
    "TENANT_RESOLVER": [1, print],
    "DEFAULT_TIER": [None, 1],
    "ANONYMOUS_TIER": [None, b"x"],
    "FLEET_LIMIT": ["5", 5.0, True, math.inf],
    "POLICY": [[], "free", ()],
}


def pairs(table: dict[str, list[Any]]) -> Any:
    return [pytest.param(key, value, id=f"{key}-{value!r}") for key, values in table.items() for value in values]


def shortened(value: float) -> str:
    return repr(value)[:8]


def only(raw: object) -> Problem:
    (found,) = problems(raw)
    return found


class TestKeys:
    def test_every_key_has_its_default(self) -> None:
        assert {key: getattr(Conf(), key.lower()) for key in FIELDS} == DEFAULTS

    def test_without_the_setting_the_defaults_hold(self) -> None:
        assert problems({}) == []

    @pytest.mark.parametrize(("key", "value"), pairs(RIGHT))
    def test_what_a_key_takes(self, key: str, value: Any) -> None:
        assert problems({key: value}) == []

    @pytest.mark.parametrize(("key", "value"), pairs(WRONG))
    def test_another_type_is_named_with_what_it_is_not(self, key: str, value: Any) -> None:
        found = only({key: value})
        assert found.check == "E003"
        assert found.message.startswith(f"SSE_LIMITS[{key!r}] is {value!r}, which is not ")
        assert found.hint == f"The default is {FIELDS[key].default!r}."

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("QUERY_TOKEN", 1, "True or False"),
            ("IPV6_PREFIX", True, "a whole number"),
            ("LEASE_SECONDS", False, "a number"),
            ("FLEET_LIMIT", "5", "a whole number or None"),
            ("NODE_NAME", 1, "a string or None"),
            ("TRUSTED_PROXIES", "10.0.0.1", "a list of strings"),
            ("ALLOWED_ORIGINS", 1, "a list of strings or None"),
            ("JWT", 1, "a dict or None"),
            ("POLICY", 1, "a dict or None"),
        ],
    )
    def test_the_type_is_said_in_words(self, key: str, value: Any, words: str) -> None:
        assert only({key: value}).message.endswith(f"which is not {words}.")

    @pytest.mark.parametrize("raw", [None, [], "", 1, (("STORE", "memory"),)])
    def test_the_setting_is_a_dict(self, raw: object) -> None:
        assert only(raw) == Problem("E001", "SSE_LIMITS is not a dict.", "Write SSE_LIMITS = {...}.")

    @pytest.mark.parametrize(
        ("key", "meant"),
        [
            ("REDIS_URI", "REDIS_URL"),
            ("redis_url", "REDIS_URL"),
            ("LEASE_SECOND", "LEASE_SECONDS"),
            ("TRUSTED_PROXY", "TRUSTED_PROXIES"),
            ("HEARTBEATSECONDS", "HEARTBEAT_SECONDS"),
        ],
    )
    def test_an_unknown_key_is_answered_with_the_nearest_known_one(self, key: str, meant: str) -> None:
        message = f"SSE_LIMITS[{key!r}] is not a setting."
        assert only({key: 1}) == Problem("E002", message, f"Did you mean {meant!r}?")

    @pytest.mark.parametrize("key", ["XYZZY", "", 1, None, ("a",)])
    def test_a_key_like_none_of_them_is_answered_with_all_of_them(self, key: object) -> None:
        found = only({key: 1})
        assert (found.check, found.hint) == ("E002", f"Known keys: {', '.join(FIELDS)}.")

    def test_all_mistakes_are_told_at_once_the_unknown_keys_first(self) -> None:
        found = problems({"STORE": 1, "NO_SUCH": 1, "QUERY_TOKEN": "yes"})
        assert [problem.check for problem in found] == ["E002", "E003", "E003"]


class TestRanges:
    @pytest.mark.parametrize("key", POSITIVE)
    @pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, -math.inf, 1e12, 10**400], ids=shortened)
    def test_durations_are_positive_and_finite(self, key: str, value: float) -> None:
        found = problems({key: value})
        assert [problem.check for problem in found] == ["E004"]
        assert found[0].message == f"SSE_LIMITS[{key!r}] is {value!r}."
        assert found[0].hint == "It must be greater than 0 and at most 1000000000."

    @pytest.mark.parametrize("key", ["CLEANUP_SECONDS", "SESSION_CACHE_SECONDS"])
    def test_no_time_at_all_is_a_choice_for_cleaning_up_and_for_remembering_sessions(self, key: str) -> None:
        assert problems({key: 0}) == []

    @pytest.mark.parametrize("key", ["CLEANUP_SECONDS", "SESSION_CACHE_SECONDS"])
    @pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, 10**400], ids=shortened)
    def test_less_than_no_time_is_not(self, key: str, value: float) -> None:
        hint = "It must be from 0 to 1000000000."
        assert only({key: value}) == Problem("E004", f"SSE_LIMITS[{key!r}] is {value!r}.", hint)

    @pytest.mark.parametrize("store", ["", "Redis", "valkey", "memcached"])
    def test_the_store_is_one_of_two(self, store: str) -> None:
        assert only({"STORE": store}) == Problem(
            "E004", f"SSE_LIMITS['STORE'] is {store!r}.", "It is 'redis' or 'memory'."
        )

    @pytest.mark.parametrize(("lease", "heartbeat"), [(90, 30), (3, 1), (1, 1 / 3)])
    def test_three_heartbeats_fit_into_a_lease(self, lease: float, heartbeat: float) -> None:
        assert problems({"LEASE_SECONDS": lease, "HEARTBEAT_SECONDS": heartbeat}) == []

    @pytest.mark.parametrize(("lease", "heartbeat"), [(90, 30.1), (3, 1.5), (44, 15)])
    def test_a_heartbeat_of_more_than_a_third_would_lose_leases(self, lease: float, heartbeat: float) -> None:
        found = only({"LEASE_SECONDS": lease, "HEARTBEAT_SECONDS": heartbeat})
        assert found.check == "E004"
        assert found.message == f"SSE_LIMITS['HEARTBEAT_SECONDS'] is {heartbeat:g}: one late renewal would lose leases."
        assert found.hint == f"Write at most a third of LEASE_SECONDS: {lease / 3:g}."

    @pytest.mark.parametrize("prefix", [0, -1, 129])
    def test_an_ipv6_prefix_is_one(self, prefix: int) -> None:
        """0 would make all of IPv6 one client."""
        message = f"SSE_LIMITS['IPV6_PREFIX'] is {prefix}."
        assert only({"IPV6_PREFIX": prefix}) == Problem("E004", message, "It is from 1 to 128.")

    @pytest.mark.parametrize("limit", [-1, -100])
    def test_a_negative_fleet_limit_is_neither_none_nor_everything(self, limit: int) -> None:
        hint = "Write a whole number of streams, or None for no limit."
        assert only({"FLEET_LIMIT": limit}) == Problem("E004", f"SSE_LIMITS['FLEET_LIMIT'] is {limit}.", hint)

    @pytest.mark.parametrize("name", [None, ""])
    def test_a_promise_about_a_name_needs_the_name(self, name: str | None) -> None:
        assert problems({"NODE_EXCLUSIVE": True, "NODE_NAME": "web-1"}) == []
        found = only({"NODE_EXCLUSIVE": True, "NODE_NAME": name})
        message = "SSE_LIMITS['NODE_EXCLUSIVE'] promises something of NODE_NAME, which is not set."
        assert (found.check, found.message) == ("E004", message)

    @pytest.mark.parametrize("entry", ["10.0.0.0/33", "localhost", "10.0.0.1/8", "", "*"])
    def test_a_trusted_proxy_that_is_no_network_is_named(self, entry: str) -> None:
        found = only({"TRUSTED_PROXIES": ["127.0.0.1", entry]})
        assert found.check == "E004"
        assert found.message.startswith("SSE_LIMITS['TRUSTED_PROXIES']: ")
        assert repr(entry) in found.message
        assert found.hint == "Write networks such as '10.0.0.0/8'."

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("localhost:6379", "it begins with none of the known schemes"),
            ("redis://h:port", "a host, a port or an option cannot be read"),
            ("redis+sentinel://h", "behind the sentinels comes /<name of the master>"),
        ],
    )
    def test_a_redis_url_that_no_client_understands_is_found_before_the_first_stream(self, url: str, why: str) -> None:
        found = only({"REDIS_URL": url})
        message = f"SSE_LIMITS['REDIS_URL'] is not the URL of a Redis server: {why}."
        assert (found.check, found.message) == ("E004", message)
        assert found.hint is not None
        assert "redis+cluster://host,host" in found.hint

    def test_a_password_in_the_url_is_not_shown(self) -> None:
        assert "hunter2" not in str(problems({"REDIS_URL": "http://user:hunter2@localhost"}))

    @pytest.mark.parametrize(
        "origin", ["*", "a.example", "https://a.example/", "https://", "https://a.example/x", "ä", "http://["]
    )
    def test_an_origin_that_no_browser_sends_is_named(self, origin: str) -> None:
        found = only({"CORS_ORIGINS": ["https://b.example", origin]})
        assert found == Problem(
            "E004", f"SSE_LIMITS['CORS_ORIGINS'] holds {origin!r}.", "Write origins such as 'https://app.example.com'."
        )


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.sampled_from([10**400]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.tuples(children)
        | st.dictionaries(st.text(max_size=3) | st.integers(), children, max_size=3)
    ),
    max_leaves=6,
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        key: junk
        | st.sampled_from(RIGHT[key])
        | st.floats()
        | st.integers()
        | st.text()
        | st.lists(st.text(), max_size=3)
        for key in DEFAULTS
    },
)


class TestAnyDict:
    @given(st.dictionaries(st.sampled_from(list(DEFAULTS)) | st.text() | st.integers(), junk))
    def test_no_dict_raises(self, raw: dict[Any, Any]) -> None:
        problems(raw)

    @given(plausible)
    def test_a_dict_without_problems_can_be_worked_with(self, raw: dict[str, Any]) -> None:
        found = problems(raw)
        assert all(problem.message.endswith((".", "!")) or ":" in problem.message for problem in found)
        if not found:
            conf = Conf(**{key.lower(): value for key, value in raw.items()})
            assert 0 < conf.heartbeat_seconds <= conf.lease_seconds / 3
            assert round(conf.lease_seconds * 1000) >= 0

    @given(junk)
    def test_nothing_else_raises_either(self, raw: object) -> None:
        problems(raw)


class TestInForce:
    def test_overridden_settings_take_effect_and_go_away_again(self) -> None:
        before = get_conf()
        with override_settings(SSE_LIMITS={"LEASE_SECONDS": 45}):
            assert get_conf().lease_seconds == 45
            with override_settings(SSE_LIMITS={"LEASE_SECONDS": 60}):
                assert get_conf().lease_seconds == 60
            assert get_conf().lease_seconds == 45
        assert get_conf() == before

    def test_another_setting_s_change_keeps_what_was_read(self) -> None:
        before = get_conf()
        with override_settings(DEBUG=False):
            assert get_conf() is before

    def test_lists_are_frozen(self) -> None:
        with override_settings(SSE_LIMITS={"TRUSTED_PROXIES": ["10.0.0.1"], "CORS_ORIGINS": []}):
            assert (get_conf().trusted_proxies, get_conf().cors_origins) == (("10.0.0.1",), ())

    def test_a_mistake_is_refused_with_the_sentence_of_its_check(self) -> None:
        with (
            override_settings(SSE_LIMITS={"REDIS_URI": "redis://"}),
            pytest.raises(InvalidConfiguration, match=r"'REDIS_URI'\] is not a setting\. Did you mean 'REDIS_URL'\?"),
        ):
            get_conf()

    def test_a_mistake_is_one_of_the_package_s_faults(self) -> None:
        assert issubclass(InvalidConfiguration, SseLimitsError)

    def test_a_mistake_that_was_mended_is_forgotten(self) -> None:
        with override_settings(SSE_LIMITS={"STORE": "nothing"}), pytest.raises(InvalidConfiguration):
            get_conf()
        assert get_conf().store in ("redis", "memory")


class TestDemoVariables:
    """`project.settings` reads SSE_LIMITS_<KEY> in the process that starts: so each case starts one."""

    def settings(self, **variables: str) -> dict[str, Any]:
        program = (
            "import json, project.settings as s\n"
            "print(json.dumps({k: v for k, v in s.SSE_LIMITS.items() if k != 'POLICY'}))"
        )
        keep = {name: value for name, value in os.environ.items() if not name.startswith("SSE_LIMITS_")}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=keep | variables, capture_output=True, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def test_each_kind_of_value_becomes_what_its_key_takes(self) -> None:
        variables = {
            "REDIS_URL": "redis://127.0.0.1:6379/1",
            "STORE": "memory",
            "LEASE_SECONDS": "4.5",
            "HEARTBEAT_SECONDS": "1",
            "QUERY_TOKEN": "True",
            "FLEET_LIMIT": "1000",
            "TRUSTED_PROXIES": "10.0.0.0/8, unix,",
            "CORS_ORIGINS": "https://a.example",
            "DEFAULT_TIER": "pro",
        }
        found = self.settings(**{f"SSE_LIMITS_{key}": value for key, value in variables.items()})
        assert found == {
            "REDIS_URL": "redis://127.0.0.1:6379/1",
            "STORE": "memory",
            "LEASE_SECONDS": 4.5,
            "HEARTBEAT_SECONDS": 1,
            "QUERY_TOKEN": True,
            "FLEET_LIMIT": 1000,
            "TRUSTED_PROXIES": ["10.0.0.0/8", "unix"],
            "CORS_ORIGINS": ["https://a.example"],
            "DEFAULT_TIER": "pro",
        }
        assert problems(found) == []

    @pytest.mark.parametrize("name", ["7", "1.5", "true", "nan", "infinity", "1e3", "007"])
    def test_a_name_that_looks_like_a_number_stays_a_name(self, name: str) -> None:
        found = self.settings(SSE_LIMITS_NODE_NAME=name, SSE_LIMITS_DEFAULT_TIER=name)
        assert found == {"NODE_NAME": name, "DEFAULT_TIER": name}

    def test_an_empty_variable_is_as_good_as_none(self) -> None:
        assert self.settings(SSE_LIMITS_REDIS_URL="", SSE_LIMITS_QUERY_TOKEN="") == {}

    def test_a_misspelt_variable_reaches_the_check(self) -> None:
        found = self.settings(SSE_LIMITS_REDIS_URI="redis://h")
        assert only(found).hint == "Did you mean 'REDIS_URL'?"
