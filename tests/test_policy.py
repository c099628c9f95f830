"""The POLICY dict: what it becomes, and what is said about mistakes, whatever stands there."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from project.demo_policy import POLICY as DEMO
from sse_limits.conf import Conf, InvalidConfiguration, Problem
from sse_limits.core.identity import Identity
from sse_limits.core.limits import (
    FIELDS,
    AtUserLimit,
    Limits,
    Membership,
    Outage,
    Overrides,
    Policy,
    Tenant,
    Tier,
    UserLimit,
)
from sse_limits.core.rejections import Reason, Reject
from sse_limits.policy import BUILT_IN, get_policy, problems, resolve_tenant

TIERS = {"anonymous": {}, "free": {"user_limit": 5}, "pro": {}}
NUMBERS = ("user_limit", "tenant_limit", "address_limit")


def by_first_letter(user: str, policy: Policy) -> str | None:
    """A tenant resolver as a project would write it."""
    return {"a": "acme", "x": "no-such-tenant"}.get(user[:1])


not_callable = "a string"


def conf(policy: Any, **others: Any) -> Conf:
    return Conf(policy=policy, **others)


def only(policy: Any, **others: Any) -> Problem:
    (found,) = problems(conf(policy, **others))
    return found


def built(policy: Any, **others: Any) -> Policy:
    with override_settings(SSE_LIMITS={"POLICY": policy, **others}):
        return get_policy()


class TestWhatItBecomes:
    def test_without_a_policy_there_are_two_tiers(self) -> None:
        policy = built({})
        assert set(policy.tiers) == {"anonymous", "free"} == set(BUILT_IN["tiers"])
        assert policy.tiers["anonymous"].overrides == Overrides(address_limit=20)
        assert policy.tiers["free"].overrides == Overrides(user_limit=5, tenant_limit=50)
        assert not policy.tenants
        assert not policy.memberships
        assert (policy.default_tier, policy.anonymous_tier, policy.fleet_limit) == ("free", "anonymous", None)

    def test_every_section_and_field_arrives(self) -> None:
        every = {"user_limit": 1, "tenant_limit": 0, "address_limit": 3, "at_user_limit": "evict", "outage": "open"}
        overrides = Overrides(1, 0, 3, AtUserLimit.EVICT, outage=Outage.OPEN)
        policy = built(
            {
                "tiers": {**TIERS, "pro": {"name": "Professional", **every}},
                "tenants": {"acme": {"name": "Acme", "tier": "pro", "suspended": True, **every}},
                "memberships": [{"user": "u1", "tenant": "acme", "is_default": True}],
                "users": [{"user": "u1", "tenant": "acme", "suspended": True, **every}, {"user": "u2"}],
            },
            DEFAULT_TIER="pro",
            ANONYMOUS_TIER="free",
            FLEET_LIMIT=9,
        )
        assert policy.tiers["pro"] == Tier("pro", "Professional", overrides)
        assert policy.tenants == {"acme": Tenant("acme", "Acme", "pro", suspended=True, overrides=overrides)}
        assert policy.memberships == {"u1": (Membership("acme", is_default=True),)}
        assert policy.users == {
            ("acme", "u1"): UserLimit(suspended=True, overrides=overrides),
            (None, "u2"): UserLimit(),
        }
        assert (policy.default_tier, policy.anonymous_tier, policy.fleet_limit) == ("pro", "free", 9)

    def test_a_name_is_the_slug_until_one_is_given(self) -> None:
        policy = built({"tiers": TIERS, "tenants": {"acme": {"tier": "free"}}})
        assert (policy.tiers["free"].name, policy.tenants["acme"].name) == ("free", "acme")

    def test_a_user_may_belong_to_several_tenants(self) -> None:
        policy = built(
            {
                "tiers": TIERS,
                "tenants": {"acme": {"tier": "free"}, "globex": {"tier": "pro"}},
                "memberships": [{"user": "u1", "tenant": "acme"}, {"user": "u1", "tenant": "globex"}],
            }
        )
        assert policy.memberships["u1"] == (Membership("acme"), Membership("globex"))
        assert policy.resolve(Identity(user="u1")) == Reject(Reason.TENANT_AMBIGUOUS, "tenant")  # type: ignore[arg-type]

    def test_it_is_read_once_and_again_after_a_change(self) -> None:
        with override_settings(SSE_LIMITS={"POLICY": {"tiers": TIERS}}):
            before = get_policy()
            assert get_policy() is before
        with override_settings(SSE_LIMITS={"POLICY": {"tiers": {**TIERS, "max": {}}}}):
            assert "max" in get_policy().tiers

    def test_a_mistake_is_refused_with_the_sentence_of_its_check(self) -> None:
        with pytest.raises(InvalidConfiguration, match=r"POLICY has no 'tier'\. Did you mean 'tiers'\?"):
            built({"tier": {}})

    def test_the_demo_s_policy_is_without_mistakes(self) -> None:
        assert problems(conf(DEMO)) == []
        limits = built(DEMO).resolve(Identity(user="marta"))
        assert isinstance(limits, Limits)
        assert (limits.tenant, limits.tier, limits.user, limits.evicts) == ("acme", "pro", 10, True)


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("policy", "where", "key", "meant"),
        [
            ({"tier": {}}, "POLICY", "tier", "tiers"),
            ({"tiers": {"free": {"user_limits": 5}}}, "POLICY['tiers']['free']", "user_limits", "user_limit"),
            ({"tenants": {"a": {"tiers": "free"}}}, "POLICY['tenants']['a']", "tiers", "tier"),
            ({"memberships": [{"default": 1}]}, "POLICY['memberships'][0]", "default", "is_default"),
            ({"users": [{}, {"suspend": 1}]}, "POLICY['users'][1]", "suspend", "suspended"),
        ],
    )
    def test_one_is_answered_with_the_nearest_known_one(self, policy: Any, where: str, key: str, meant: str) -> None:
        assert only(policy) == Problem("E005", f"SSE_LIMITS: {where} has no {key!r}.", f"Did you mean {meant!r}?")

    def test_one_like_none_of_them_is_answered_with_all_of_them(self) -> None:
        found = only({"tiers": {"free": {"xyzzy": 5}}})
        assert found.hint == f"Known: name, {', '.join(FIELDS)}."


class TestValues:
    @pytest.mark.parametrize("section", ["tiers", "tenants", "users"])
    @pytest.mark.parametrize("name", NUMBERS)
    @pytest.mark.parametrize("value", [-1, "5", 5.0, True, False, [], {}])
    def test_a_limit_is_a_whole_number(self, section: str, name: str, value: object) -> None:
        entry = {name: value}
        policy = {section: [entry] if section == "users" else {"free": entry}}
        found = only(policy)
        key = 0 if section == "users" else "free"
        assert found.message == f"SSE_LIMITS: POLICY[{section!r}][{key!r}][{name!r}] is {value!r}."
        assert (found.check, found.hint) == ("E005", "Write a whole number of streams, or None to inherit.")

    @pytest.mark.parametrize("name", NUMBERS)
    @pytest.mark.parametrize("value", [None, 0, 10**6])
    def test_none_inherits_and_zero_admits_nobody(self, name: str, value: int | None) -> None:
        assert problems(conf({"tiers": {**TIERS, "free": {name: value}}})) == []

    @pytest.mark.parametrize("value", ["", "Evict", "drop", True, 1, [], {}, ["evict"]])
    def test_at_user_limit_is_one_of_two(self, value: object) -> None:
        found = only({"tiers": {"free": {"at_user_limit": value}}})
        message = f"SSE_LIMITS: POLICY['tiers']['free']['at_user_limit'] is {value!r}."
        assert found == Problem("E005", message, "Write 'reject' or 'evict'.")

    @pytest.mark.parametrize("value", ["", "Local", "shut", True, 1, [], {}, ["open"]])
    def test_outage_is_one_of_three(self, value: object) -> None:
        found = only({"tiers": {"free": {"outage": value}}})
        message = f"SSE_LIMITS: POLICY['tiers']['free']['outage'] is {value!r}."
        assert found == Problem("E005", message, "Write 'local', 'open' or 'closed'.")

    @pytest.mark.parametrize(
        ("section", "name"), [("tenants", "suspended"), ("users", "suspended"), ("memberships", "is_default")]
    )
    @pytest.mark.parametrize("value", ["no", "False", 0, 1, None, []])
    def test_a_switch_is_true_or_false(self, section: str, name: str, value: object) -> None:
        """`"suspended": "no"` would suspend."""
        policy = {section: {"acme": {name: value}} if section == "tenants" else [{name: value}]}
        key = "acme" if section == "tenants" else 0
        found = only(policy)
        message = f"SSE_LIMITS: POLICY[{section!r}][{key!r}][{name!r}] is {value!r}."
        assert found == Problem("E005", message, "Write True or False.")

    @pytest.mark.parametrize("section", ["tiers", "tenants"])
    @pytest.mark.parametrize("value", [None, 1, b"Acme"])
    def test_a_name_is_text(self, section: str, value: object) -> None:
        found = only({section: {"acme": {"name": value}}})
        message = f"SSE_LIMITS: POLICY[{section!r}]['acme']['name'] is {value!r}."
        assert found == Problem("E005", message, "Write a text for people to read.")

    @pytest.mark.parametrize("slug", ["", "a b", "a/b", "a}b", "ä", "a.b", "a\n", 1, None, ("a",)])
    def test_a_tenant_s_slug_can_stand_in_keys_and_topics(self, slug: object) -> None:
        found = only({"tenants": {slug: {"tier": "free"}}})
        hint = "Use letters, digits, '-' and '_': tenants stand in keys and topics."
        assert found == Problem("E005", f"SSE_LIMITS: the tenant {slug!r} is not a slug.", hint)

    @pytest.mark.parametrize("slug", ["", 1, None, ("a",)])
    def test_a_tier_s_slug_is_text(self, slug: object) -> None:
        found = only({"tiers": {slug: {}}})
        assert found == Problem("E005", f"SSE_LIMITS: the tier {slug!r} is not a slug.", "Use a text such as 'free'.")

    @pytest.mark.parametrize("section", ["memberships", "users"])
    @pytest.mark.parametrize("entry", [{}, {"user": ""}, {"user": None}, {"user": 7}, {"user": ["u1"]}])
    def test_an_entry_about_nobody_is_named(self, section: str, entry: dict[str, Any]) -> None:
        policy = {"tiers": TIERS, "tenants": {"acme": {"tier": "free"}}, section: [entry | {"tenant": "acme"}]}
        found = only(policy)
        message = f"SSE_LIMITS: POLICY[{section!r}][0] names no user."
        assert found == Problem("E005", message, "Write 'user': the user name.")


class TestShapes:
    @pytest.mark.parametrize("section", ["tiers", "tenants"])
    @pytest.mark.parametrize("value", [None, [], ["free"], "free", 5, True, [{"name": "Free"}]])
    def test_tiers_and_tenants_are_dicts_by_slug(self, section: str, value: object) -> None:
        found = only({section: value})
        assert found.check == "E005"
        assert found.message == f"SSE_LIMITS: POLICY[{section!r}] is {value!r}, which is not a dict."
        assert found.hint == "Write {'slug': {...}, ...}."

    @pytest.mark.parametrize("section", ["memberships", "users"])
    @pytest.mark.parametrize("value", [None, {}, {"u1": {}}, "u1", 5, True])
    def test_memberships_and_users_are_lists(self, section: str, value: object) -> None:
        found = only({section: value})
        assert found.check == "E005"
        assert found.message == f"SSE_LIMITS: POLICY[{section!r}] is {value!r}, which is not a list."
        assert found.hint == "Write [{'user': 'name', ...}, ...]."

    @pytest.mark.parametrize("section", ["tiers", "tenants", "memberships", "users"])
    @pytest.mark.parametrize("value", [None, [], "free", 5, True, ["user_limit"]])
    def test_an_entry_is_a_dict(self, section: str, value: object) -> None:
        policy = {section: [value] if section in ("memberships", "users") else {"free": value}}
        found = only(policy)
        key = 0 if section in ("memberships", "users") else "free"
        assert found.check == "E005"
        assert found.message == f"SSE_LIMITS: POLICY[{section!r}][{key!r}] is {value!r}, which is not a dict."

    def test_a_tuple_is_as_good_as_a_list(self) -> None:
        policy = {"tiers": TIERS, "tenants": {"acme": {"tier": "free"}}}
        assert problems(conf(policy | {"memberships": ({"user": "u1", "tenant": "acme"},)})) == []

    def test_all_mistakes_are_told_at_once(self) -> None:
        found = problems(conf({"tier": {}, "tiers": [], "tenants": {"a b": {"tier": 1}}, "users": [None, {"x": 1}]}))
        assert len(found) == 5


class TestReferences:
    POLICY: ClassVar = {"tiers": TIERS, "tenants": {"acme": {"tier": "free"}}}

    @pytest.mark.parametrize("key", ["DEFAULT_TIER", "ANONYMOUS_TIER"])
    def test_the_settings_name_tiers_that_exist(self, key: str) -> None:
        message = f"SSE_LIMITS: {key} is 'fre', and there is no such tier."
        assert only(self.POLICY, **{key.lower(): "fre"}) == Problem("E006", message, "Did you mean 'free'?")

    @pytest.mark.parametrize("tier", ["prof", None, 5, ["free"], {}])
    def test_a_tenant_s_tier_exists(self, tier: object) -> None:
        found = only({"tiers": TIERS, "tenants": {"acme": {"tier": tier}}})
        assert found.check == "E006"
        message = f"SSE_LIMITS: POLICY['tenants']['acme']['tier'] is {tier!r}, and there is no such tier."
        assert found.message == message

    def test_a_tenant_has_a_tier(self) -> None:
        assert only({"tiers": TIERS, "tenants": {"acme": {}}}).check == "E006"

    @pytest.mark.parametrize("section", ["memberships", "users"])
    @pytest.mark.parametrize("tenant", ["acm", 5, ["acme"], {}])
    def test_the_tenant_of_an_entry_exists(self, section: str, tenant: object) -> None:
        found = only({**self.POLICY, section: [{"user": "u1", "tenant": tenant}]})
        message = f"SSE_LIMITS: POLICY[{section!r}][0]['tenant'] is {tenant!r}, and there is no such tenant."
        assert (found.check, found.message) == ("E006", message)

    def test_a_membership_names_a_tenant(self) -> None:
        assert only({**self.POLICY, "memberships": [{"user": "u1"}]}).check == "E006"

    def test_a_user_may_be_granted_something_without_a_tenant(self) -> None:
        assert problems(conf({**self.POLICY, "users": [{"user": "u1", "user_limit": 9}]})) == []

    def test_without_any_tier_the_hint_says_so(self) -> None:
        found = problems(conf({"tenants": {}}))
        assert [(problem.check, problem.hint) for problem in found] == [("E006", "Known: none.")] * 2


class TestTenantResolver:
    POLICY: ClassVar = {"tiers": TIERS, "tenants": {"acme": {"tier": "pro"}}}
    PATH = f"{__name__}.by_first_letter"

    def test_it_decides_in_place_of_memberships(self) -> None:
        policy = built(self.POLICY)
        assert resolve_tenant("alice", policy, conf(self.POLICY, tenant_resolver=self.PATH)) == "acme"
        assert resolve_tenant("bob", policy, conf(self.POLICY, tenant_resolver=self.PATH)) is None

    def test_without_one_nothing_is_decided_here(self) -> None:
        assert resolve_tenant("alice", built(self.POLICY), conf(self.POLICY)) is None

    def test_one_that_exists_is_without_problems(self) -> None:
        assert problems(conf(self.POLICY, tenant_resolver=self.PATH)) == []

    @pytest.mark.parametrize(
        "path", ["", "resolve", "no_such.module", f"{__name__}.no_such", ".x", "..x.y", "a..b", "\x00.x"]
    )
    def test_one_that_cannot_be_imported_is_found_before_the_first_stream(self, path: str) -> None:
        found = only(self.POLICY, tenant_resolver=path)
        assert found.check == "E006"
        assert found.message.startswith(f"SSE_LIMITS: TENANT_RESOLVER is {path!r}, which cannot be imported: ")
        assert found.hint == "Write the dotted path of a function (user name, policy) -> tenant slug or None."

    def test_one_that_is_no_function_is_named(self) -> None:
        found = only(self.POLICY, tenant_resolver=f"{__name__}.not_callable")
        assert found.check == "E006"
        assert found.message == f"SSE_LIMITS: TENANT_RESOLVER is '{__name__}.not_callable', which is not a function."


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3)
names = st.sampled_from([*FIELDS, "name", "tier", "tenant", "user", "suspended", "is_default", "free", "acme"])
junk = st.recursive(
    scalars | st.sampled_from(["free", "acme", "evict"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(names | scalars, children, max_size=4)
        | st.tuples(children)
        | st.frozensets(scalars, max_size=2)
    ),
    max_leaves=12,
)
near_misses = st.fixed_dictionaries(
    {"tiers": st.just(TIERS) | junk},
    optional={
        "tenants": st.dictionaries(st.just("acme") | scalars, st.dictionaries(names, junk) | junk) | junk,
        "memberships": st.lists(st.dictionaries(names, junk) | junk, max_size=2) | junk,
        "users": st.lists(st.dictionaries(names, junk) | junk, max_size=2) | junk,
        "more": junk,
    },
)


class TestAnyDict:
    @given(st.dictionaries(st.sampled_from(["tiers", "tenants", "memberships", "users"]) | scalars, junk))
    def test_no_junk_raises(self, policy: dict[Any, Any]) -> None:
        assert all(problem.check in ("E005", "E006") for problem in problems(conf(policy)))

    @given(near_misses)
    def test_what_has_no_problems_can_be_built_and_resolved(self, policy: dict[str, Any]) -> None:
        if not problems(conf(policy)):
            snapshot = built(policy)
            for tenant in (None, *snapshot.tenants):
                for user in (None, "u1", *snapshot.memberships):
                    assert isinstance(snapshot.resolve(Identity(user=user, tenant=tenant)), Limits | Reject)

    @given(near_misses)
    def test_every_problem_is_a_sentence_with_a_way_out(self, policy: dict[str, Any]) -> None:
        for problem in problems(conf(policy)):
            assert problem.message.startswith("SSE_LIMITS: ")
            assert problem.message.endswith(".")
            assert problem.hint.endswith((".", "?"))
