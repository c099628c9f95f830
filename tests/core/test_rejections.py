"""The one table of refusals: every reason has one row, and HTTP, WebSocket and event streams tell the same story."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.rejections import (
    CAUSES,
    LIMIT_REASONS,
    TERMINAL_RETRY_SECONDS,
    Answer,
    Layer,
    Reason,
    Reject,
    answer,
    rejected_event,
)
from sse_limits.core.slots import Scope

DECISION = "a" * 56
COUNTED = frozenset(LIMIT_REASONS.values())
COMMON = {"type", "title", "status", "detail", "error", "reason", "layer", "decision"}
ERRORS = {
    *("unauthorized", "forbidden", "too_many_streams", "store_unavailable", "rate_limited", "overloaded"),
    *("bad_request", "not_found"),
}

# What clients, dashboards and old decision ids rely on. A row is added, never changed.
PUBLISHED = {
    "missing_token": (1, "identity", "unauthorized", 401, 4501),
    "bad_token": (2, "identity", "unauthorized", 401, 4501),
    "expired_token": (3, "identity", "unauthorized", 401, 4501),
    "suspended": (4, "identity", "forbidden", 403, 4503),
    "blocked": (5, "identity", "forbidden", 403, 4503),
    "bad_origin": (6, "identity", "forbidden", 403, 4503),
    "tenant_ambiguous": (7, "identity", "forbidden", 403, 4503),
    "bad_topic": (8, "identity", "bad_request", 400, 4503),
    "unknown_topic": (9, "identity", "not_found", 404, 4503),
    "forbidden_topic": (10, "identity", "forbidden", 403, 4503),
    "user_limit": (11, "slots", "too_many_streams", 429, 4429),
    "class_limit": (12, "slots", "too_many_streams", 429, 4429),
    "tenant_limit": (13, "slots", "too_many_streams", 429, 4429),
    "address_limit": (14, "slots", "too_many_streams", 429, 4429),
    "fleet_limit": (15, "slots", "too_many_streams", 429, 4429),
    "store": (16, "slots", "store_unavailable", 503, 1013),
    "evicted": (17, "slots", "too_many_streams", 204, 4505),
    "lease_lost": (18, "slots", "too_many_streams", 429, 4429),
    "bad_method": (19, "identity", "bad_request", 405, 4503),
    "write_deadline": (20, "node", "overloaded", 503, 1013),
    "shutdown": (21, "node", "overloaded", 503, 1012),
    "draining": (22, "node", "overloaded", 503, 1012),
    "slow_consumer": (23, "node", "overloaded", 503, 1013),
    "revoked": (24, "identity", "unauthorized", 401, 4504),
}

every_reason = pytest.mark.parametrize("reason", Reason)


def typical(reason: Reason) -> Reject:
    """A rejection as the limiter makes it: at a limit with its numbers, otherwise bare."""
    for scope, limit_reason in LIMIT_REASONS.items():
        if reason is limit_reason:
            return Reject(reason, scope, 5, 7)
    return Reject(reason)


def told(reason: Reason, turn: int = 1) -> Answer:
    return answer(typical(reason), DECISION, turn)


def headers(found: Answer) -> dict[str, str]:
    names = [name for name, _ in found.headers]
    assert len(names) == len(set(names))
    return {name.decode(): value.decode() for name, value in found.headers}


def all_rejects() -> Iterator[Reject]:
    for reason in Reason:
        yield typical(reason)
        for scope in Scope:
            yield Reject(reason, scope, 5, 7)
            if reason not in COUNTED:
                yield Reject(reason, scope)
                yield Reject(reason, None, 0, 0)


rejects = st.builds(
    Reject,
    st.sampled_from(Reason),
    st.none() | st.sampled_from(Scope),
    st.integers(0, 10**12),
    st.integers(0, 10**12),
) | st.sampled_from([reason for reason in Reason if reason not in COUNTED]).map(Reject)


class TestTable:
    def test_every_reason_has_its_row_and_no_row_is_without_a_reason(self) -> None:
        assert set(CAUSES) == set(Reason)

    def test_codes_are_unique_and_fit_into_a_byte_of_a_decision_id(self) -> None:
        codes = [cause.code for cause in CAUSES.values()]
        assert len(codes) == len(set(codes))
        assert all(0 < code < 256 for code in codes)

    def test_what_was_published_is_never_renamed_renumbered_or_removed(self) -> None:
        rows = {
            str(reason): (cause.code, str(cause.layer), cause.error, int(cause.status), cause.close_code)
            for reason, cause in CAUSES.items()
        }
        assert rows == PUBLISHED

    @every_reason
    def test_a_close_code_below_4500_says_come_back_and_one_above_says_do_not(self, reason: Reason) -> None:
        cause = CAUSES[reason]
        if cause.close_code in (1012, 1013):
            assert cause.error in ("store_unavailable", "overloaded")
            assert cause.retry_seconds is not None
        elif cause.retry_seconds is not None:
            assert 4000 <= cause.close_code <= 4499
        else:
            assert 4500 <= cause.close_code <= 4999

    @every_reason
    def test_waiting_times_have_a_base_and_a_spread(self, reason: Reason) -> None:
        retry = CAUSES[reason].retry_seconds
        assert retry is None or (retry[0] > 0 and retry[1] > 1)

    @every_reason
    def test_layer_and_error_are_among_the_documented_ones(self, reason: Reason) -> None:
        assert CAUSES[reason].error in ERRORS
        assert CAUSES[reason].layer in Layer

    @every_reason
    def test_clients_that_should_come_back_get_a_status_that_says_so(self, reason: Reason) -> None:
        cause = CAUSES[reason]
        assert (cause.retry_seconds is not None) == (cause.status in (429, 503))

    def test_every_scope_of_the_store_has_its_own_limit_reason(self) -> None:
        assert set(LIMIT_REASONS) == set(Scope) - {Scope.NODE}
        assert len(COUNTED) == len(LIMIT_REASONS)
        assert all(reason == f"{scope}_limit" for scope, reason in LIMIT_REASONS.items())


class TestBody:
    @every_reason
    def test_it_is_a_problem_with_the_documented_fields(self, reason: Reason) -> None:
        cause = CAUSES[reason]
        expected = COMMON | ({"limit", "in_use", "scope"} if reason in COUNTED else set())
        expected |= {"retry_after"} if cause.retry_seconds is not None else set()
        problem = json.loads(told(reason).body)
        assert set(problem) == expected
        assert problem["type"] == "about:blank"
        assert problem["status"] == cause.status
        assert problem["title"] == HTTPStatus(cause.status).phrase
        assert (problem["error"], problem["reason"], problem["layer"]) == (cause.error, reason, cause.layer)
        assert problem["decision"] == DECISION

    @pytest.mark.parametrize("reason", sorted(COUNTED))
    def test_at_a_limit_it_names_the_scope_how_high_and_how_full(self, reason: Reason) -> None:
        reject = typical(reason)
        problem = json.loads(told(reason).body)
        assert (problem["scope"], problem["limit"], problem["in_use"]) == (reject.scope, 5, 7)
        assert "holds 7 of 5 streams" in problem["detail"]
        assert f"try again in {problem['retry_after']} s" in problem["detail"]

    def test_a_scope_without_a_limit_is_named_too(self) -> None:
        problem = json.loads(answer(Reject(Reason.SUSPENDED, Scope.USER), DECISION, 1).body)
        assert problem["scope"] == "user"
        assert "limit" not in problem

    @pytest.mark.parametrize("reject", list(all_rejects()), ids=str)
    def test_no_place_is_left_unfilled(self, reject: Reject) -> None:
        body = answer(reject, DECISION, 1).body
        assert b"%" not in body
        assert None not in json.loads(body).values()

    @given(rejects, st.integers(0, 10**9))
    def test_every_rejection_gives_valid_json_whose_numbers_are_the_rejection_s(
        self, reject: Reject, turn: int
    ) -> None:
        problem = json.loads(answer(reject, DECISION, turn).body)
        assert problem.get("limit") == reject.limit
        assert problem.get("in_use") == reject.in_use
        assert problem.get("scope") == reject.scope


class TestHeaders:
    @every_reason
    def test_no_answer_is_ever_kept_by_a_cache(self, reason: Reason) -> None:
        """Of all statuses caches keep only these without being asked (RFC 9110, 15.1)."""
        kept_unasked = {200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501}
        found = told(reason)
        assert headers(found).get("cache-control") == ("no-store" if found.status in kept_unasked else None)

    @given(rejects, st.integers(0, 10**9))
    def test_the_content_length_is_the_body_s(self, reject: Reject, turn: int) -> None:
        found = answer(reject, DECISION, turn)
        if found.status == 204:
            assert not any(name.startswith(b"content-") for name, _ in found.headers)
        else:
            assert headers(found)["content-length"] == str(len(found.body))
            assert headers(found)["content-type"] == "application/problem+json"

    def test_no_content_has_no_header_about_content(self) -> None:
        assert headers(told(Reason.EVICTED)) == {"cache-control": "no-store"}

    @every_reason
    def test_only_unauthorized_names_the_scheme(self, reason: Reason) -> None:
        found = told(reason)
        assert headers(found).get("www-authenticate") == ("Bearer" if found.status == 401 else None)

    @every_reason
    def test_only_method_not_allowed_names_the_methods(self, reason: Reason) -> None:
        found = told(reason)
        assert headers(found).get("allow") == ("GET, HEAD, OPTIONS" if found.status == 405 else None)

    @given(rejects, st.integers(0, 10**9))
    def test_retry_after_is_the_same_in_header_body_and_answer(self, reject: Reject, turn: int) -> None:
        found = answer(reject, DECISION, turn)
        wanted = found.retry_after
        assert headers(found).get("retry-after") == (None if wanted is None else str(wanted))
        assert json.loads(found.body).get("retry_after") == wanted

    @every_reason
    def test_names_are_lower_case_as_asgi_wants_them(self, reason: Reason) -> None:
        assert all(name == name.lower() for name, _ in told(reason).headers)

    @every_reason
    def test_a_caller_may_add_headers_without_touching_the_next_answer(self, reason: Reason) -> None:
        told(reason).headers.append((b"vary", b"origin"))
        assert "vary" not in headers(told(reason))


class TestRateLimitFields:
    """draft-ietf-httpapi-ratelimit-headers-10: lists of strings with parameters (structured fields, RFC 9651)."""

    ITEM = re.compile(
        r'"(?P<name>[\x20-\x21\x23-\x5b\x5d-\x7e]+)"(?P<params>(?:;[a-z*][a-z0-9_.*-]*=(?:-?\d{1,15}|"[^"\\]*"))*)'
    )

    def parsed(self, field: str) -> tuple[str, dict[str, int | str]]:
        found = self.ITEM.fullmatch(field)
        assert found is not None, field
        pairs = [param.split("=") for param in found["params"].split(";")[1:]]
        return found["name"], {key: value.strip('"') if '"' in value else int(value) for key, value in pairs}

    @pytest.mark.parametrize("reason", sorted(COUNTED))
    def test_they_name_the_policy_its_quota_unit_and_when_to_come_back(self, reason: Reason) -> None:
        found = told(reason)
        scope = str(typical(reason).scope)
        policy = self.parsed(headers(found)["ratelimit-policy"])
        assert policy == (scope, {"q": 5, "qu": "concurrent-requests"})
        assert self.parsed(headers(found)["ratelimit"]) == (scope, {"r": 0, "t": found.retry_after})

    @given(rejects, st.integers(0, 10**6))
    def test_they_parse_and_come_in_pairs_or_not_at_all(self, reject: Reject, turn: int) -> None:
        found = headers(answer(reject, DECISION, turn))
        fields = [found[name] for name in ("ratelimit-policy", "ratelimit") if name in found]
        assert len(fields) in (0, 2)
        assert len({self.parsed(field)[0] for field in fields}) <= 1

    @pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in COUNTED])
    def test_what_is_not_counted_has_none(self, reason: Reason) -> None:
        assert not any(name.startswith(b"ratelimit") for name, _ in told(reason).headers)


class TestWaiting:
    @every_reason
    def test_clients_that_leave_together_come_back_spread(self, reason: Reason) -> None:
        retry = CAUSES[reason].retry_seconds
        waits = [told(reason, turn).retry_after for turn in range(1000)]
        if retry is None:
            assert set(waits) == {None}
        else:
            base, spread = retry
            assert sorted(set(waits)) == list(range(base, base + spread))  # type: ignore[type-var]


class TestCloseReason:
    @every_reason
    def test_it_is_the_reason_and_fits_into_a_close_frame(self, reason: Reason) -> None:
        found = told(reason)
        assert found.close_code == CAUSES[reason].close_code
        assert found.close_reason == reason
        assert len(found.close_reason.encode()) <= 123


class TestRejectedEvent:
    @every_reason
    def test_it_is_one_event_that_carries_the_problem_and_the_waiting_time(self, reason: Reason) -> None:
        found = told(reason)
        retry, name, data, *rest = rejected_event(found).split(b"\n")
        wait = TERMINAL_RETRY_SECONDS if found.retry_after is None else found.retry_after
        assert retry == b"retry: %d" % (wait * 1000)
        assert name == b"event: rejected"
        assert data == b"data: " + found.body
        assert rest == [b"", b""]

    def test_who_should_not_come_back_waits_for_an_hour(self) -> None:
        """A native EventSource always comes back after its retry time: nothing else keeps it away."""
        assert rejected_event(told(Reason.BLOCKED)).startswith(b"retry: 3600000\n")
