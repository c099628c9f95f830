"""Stream tokens: what is minted verifies, everything else is refused as a value and never raises."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.streams.tokens import (
    MAX_TEXT_CHARS,
    MAX_TOKEN_BYTES,
    Claims,
    TokenFault,
    TokenKeys,
    _hmac_sha256,
    mint,
    verify,
)

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_800_000_000_000
NOW_SECONDS = NOW // 1000
KEYS = TokenKeys.from_secrets("a secret")
KID, KEY = KEYS.by_kid[0]
GOOD = mint(KEYS, tenant="acme", user="alice", now=NOW)
FIELDS: dict[str, Any] = {"t": "acme", "u": "alice", "exp": NOW + 1000, "iat": NOW, "aud": "stream"}

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)
tenants = texts.filter(lambda text: not set(text) & set("/{}"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)


def signed(payload: bytes, kid: bytes = KID, key: bytes = KEY) -> str:
    """Sign any payload as the contract says, independently of the code under test."""
    head = b"sl1." + kid + b"." + base64.urlsafe_b64encode(payload).rstrip(b"=")
    mac = base64.urlsafe_b64encode(hmac.new(key, head, hashlib.sha256).digest())[:22]
    return (head + b"." + mac).decode()


def signed_json(fields: object) -> str:
    return signed(json.dumps(fields).encode())


def each(field: str, *values: object) -> list[dict[str, object]]:
    return [{field: value} for value in values]


class TestFormat:
    def test_a_token_is_what_the_contract_says(self) -> None:
        derived = hmac.new(b"a secret", b"sse_limits.token.v1", hashlib.sha256).digest()
        kid = hashlib.sha256(derived).hexdigest()[:4].encode()
        payload = {"t": "acme", "u": "alice", "exp": NOW + 300_000, "iat": NOW, "aud": "stream"}
        assert signed(json.dumps(payload, separators=(",", ":")).encode(), kid, derived) == GOOD

    def test_a_claim_that_is_not_given_takes_no_room(self) -> None:
        payload = base64.urlsafe_b64decode(GOOD.split(".")[2] + "==")
        assert set(json.loads(payload)) == {"t", "u", "exp", "iat", "aud"}

    def test_text_that_is_not_ascii_is_not_escaped_for_it_must_fit_2_kib(self) -> None:
        payload = base64.urlsafe_b64decode(mint(KEYS, tenant=None, user="ü", now=NOW).split(".")[2] + "==")
        assert '"u":"ü"'.encode() in payload

    def test_a_session_id_is_eight_bytes_of_an_hmac_of_the_session_key(self) -> None:
        digest = hmac.new(KEY, b"the-session", hashlib.sha256).digest()
        assert KEYS.session_id("the-session") == base64.urlsafe_b64encode(digest[:8]).rstrip(b"=").decode()

    def test_after_a_rotation_a_session_is_known_by_its_old_id_too(self) -> None:
        rotated = TokenKeys.from_secrets("a new secret", ["a secret"])
        assert rotated.session_ids("s") == (rotated.session_id("s"), KEYS.session_id("s"))
        assert rotated.session_id("s") != KEYS.session_id("s")

    def test_keys_do_not_show_in_their_repr(self) -> None:
        assert repr(KEYS) == "TokenKeys()"


class TestRoundTrip:
    @given(
        tenant=st.none() | tenants,
        user=texts,
        tier=st.none() | texts,
        topics=st.none() | st.lists(texts, max_size=3),
        sid=st.none() | texts,
        audience=st.sampled_from(["stream", "ticket", "control"]),
        ttl_seconds=st.floats(0.001, 1e6),
        as_bytes=st.booleans(),
    )
    def test_what_is_minted_verifies_with_the_same_claims(
        self,
        tenant: str | None,
        user: str,
        tier: str | None,
        topics: list[str] | None,
        sid: str | None,
        audience: str,
        ttl_seconds: float,
        as_bytes: bool,
    ) -> None:
        optional: dict[str, Any] = {"tier": tier, "topics": topics, "sid": sid}
        token = mint(KEYS, tenant=tenant, user=user, now=NOW, ttl_seconds=ttl_seconds, audience=audience, **optional)
        claims = verify(KEYS, token.encode() if as_bytes else token, now=NOW, audience=audience)
        assert isinstance(claims, Claims)
        assert (claims.tenant, claims.user, claims.tier, claims.sid) == (tenant, user, tier, sid)
        assert claims.topics == (None if topics is None else tuple(topics))
        assert claims.issued_at == NOW
        assert 0 <= claims.expires_at - NOW - ttl_seconds * 1000 <= 1.001

    def test_an_empty_list_of_topics_stays_apart_from_no_list(self) -> None:
        none = verify(KEYS, mint(KEYS, tenant=None, user="u", now=NOW, topics=[]), now=NOW)
        assert isinstance(none, Claims)
        assert none.topics == ()

    @pytest.mark.parametrize(
        ("now", "expected"),
        [(NOW - 1, Claims), (NOW, Claims), (NOW + 299_999, Claims), (NOW + 300_000, TokenFault)],
    )
    def test_a_token_is_good_up_to_the_last_ms_before_its_expiry(self, now: int, expected: type) -> None:
        assert isinstance(verify(KEYS, GOOD, now=now), expected)

    def test_a_token_past_its_end_is_expired_and_not_just_bad(self) -> None:
        assert verify(KEYS, GOOD, now=NOW + 300_000) is TokenFault.EXPIRED

    def test_even_the_shortest_lifetime_is_good_at_the_instant_of_minting(self) -> None:
        token = mint(KEYS, tenant=None, user="u", now=NOW, ttl_seconds=1e-9)
        assert isinstance(verify(KEYS, token, now=NOW), Claims)
        assert verify(KEYS, token, now=NOW + 1) is TokenFault.EXPIRED

    @pytest.mark.parametrize("minted", ["stream", "ticket", "control"])
    @pytest.mark.parametrize("wanted", ["stream", "ticket", "control", "other", ""])
    def test_a_token_is_good_for_its_own_audience_only(self, minted: str, wanted: str) -> None:
        token = mint(KEYS, tenant=None, user="u", now=NOW, audience=minted)
        assert (verify(KEYS, token, now=NOW, audience=wanted) is TokenFault.BAD) == (minted != wanted)

    def test_an_expired_token_for_another_audience_is_bad(self) -> None:
        assert verify(KEYS, GOOD, now=NOW + 300_000, audience="control") is TokenFault.BAD


class TestRotation:
    def test_a_token_under_a_fallback_secret_stays_good(self) -> None:
        rotated = TokenKeys.from_secrets("new", ["newer than a secret", "a secret"])
        assert isinstance(verify(rotated, GOOD, now=NOW), Claims)

    def test_new_tokens_are_minted_under_the_new_secret(self) -> None:
        rotated = TokenKeys.from_secrets("new", ["a secret"])
        token = mint(rotated, tenant=None, user="u", now=NOW)
        assert isinstance(verify(TokenKeys.from_secrets("new"), token, now=NOW), Claims)
        assert verify(KEYS, token, now=NOW) is TokenFault.BAD

    def test_once_a_fallback_is_dropped_its_tokens_are_bad(self) -> None:
        assert verify(TokenKeys.from_secrets("new"), GOOD, now=NOW) is TokenFault.BAD

    def test_two_secrets_with_the_same_kid_both_verify(self) -> None:
        colliding = TokenKeys(((KID, b"x" * 32), (KID, KEY)))
        assert isinstance(verify(colliding, GOOD, now=NOW), Claims)

    def test_a_known_kid_does_not_lend_another_key_its_trust(self) -> None:
        other = TokenKeys.from_secrets("other").by_kid[0][1]
        assert verify(KEYS, signed(json.dumps(FIELDS).encode(), KID, other), now=NOW) is TokenFault.BAD

    @pytest.mark.parametrize(("secret", "fallbacks"), [("", []), (b"", []), ("s", [""]), ("s", ["old", b""])])
    def test_an_empty_secret_is_refused(self, secret: str, fallbacks: list[str]) -> None:
        with pytest.raises(ValueError, match="must not be empty"):
            TokenKeys.from_secrets(secret, fallbacks)

    def test_one_string_of_fallbacks_is_not_read_as_its_letters(self) -> None:
        with pytest.raises(ValueError, match="must be a list"):
            TokenKeys.from_secrets("s", "old")

    def test_a_secret_may_be_bytes_or_hold_what_the_environment_could_not_decode(self) -> None:
        assert TokenKeys.from_secrets(b"a secret") == KEYS
        assert TokenKeys.from_secrets("\udcff") != KEYS


class TestMintRefusals:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"user": ""}, "A token's user must be text of 1 to"),
            ({"user": None}, "A token's user must be text"),
            ({"user": "x" * (MAX_TEXT_CHARS + 1)}, "A token's user must be text of 1 to"),
            ({"user": "a\x00b"}, "A token's user must not hold control characters"),
            ({"user": "a\nb"}, "A token's user must not hold control characters"),
            ({"user": "a\ud800"}, "lone surrogates"),
            ({"tenant": ""}, "A token's tenant must be text of 1 to"),
            ({"tenant": "a\x9fb"}, "A token's tenant must not hold control characters"),
            ({"tenant": "a/b"}, "A token's tenant must not hold any of '/'"),
            ({"tenant": "a}"}, "A token's tenant must not hold any of '/'"),
            ({"tier": ""}, "A token's tier must be text"),
            ({"topics": "clock"}, "A token's topics must be a list"),
            ({"topics": ["clock", 1]}, "A token's topic must be text"),
            ({"topics": ["clock", "\udfff"]}, "A token's topic must not hold"),
            ({"sid": "\x7f"}, "A token's session id must not hold"),
            ({"audience": "admin"}, "audience is one of control, stream, ticket"),
            ({"now": -1}, "time of issue must be a whole number of ms"),
            ({"now": 1.5}, "expiry must be a whole number of ms"),
            ({"now": 2**53}, "expiry must be a whole number of ms"),
            ({"topics": [f"topic-{number}" for number in range(200)]}, "may have 2048 bytes and this one has"),
            ({"user": "ü" * 900}, "may have 2048 bytes"),
            *(
                ({"ttl_seconds": ttl}, "lifetime must be a positive number")
                for ttl in (0, -1, float("nan"), float("inf"), 1e300, 1e307)
            ),
        ],
    )
    def test_what_cannot_stand_in_a_token_is_refused_in_a_sentence(
        self, changes: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(ValueError, match=sentence):
            mint(KEYS, **{"tenant": "acme", "user": "alice", "now": NOW, **changes})

    def test_a_token_may_fill_its_2_kib_and_no_more(self) -> None:
        lengths = []
        for extra in range(300, 500):
            try:
                token = mint(KEYS, tenant=None, user="x" * 1024, now=NOW, tier="y" * extra)
            except ValueError:
                break
            assert isinstance(verify(KEYS, token, now=NOW), Claims)
            lengths.append(len(token))
        assert max(lengths) == MAX_TOKEN_BYTES


class TestForgery:
    @given(st.integers(0, len(GOOD) - 1), st.characters())
    def test_a_token_with_any_one_character_changed_is_bad(self, position: int, character: str) -> None:
        changed = GOOD[:position] + character + GOOD[position + 1 :]
        assert changed == GOOD or verify(KEYS, changed, now=NOW) is TokenFault.BAD

    def test_every_truncation_and_extension_is_bad(self) -> None:
        cut = [GOOD[:length] for length in range(len(GOOD))]
        grown = [GOOD + "=", GOOD + "A", GOOD + ".", GOOD + " ", GOOD + "\n", " " + GOOD, "sl1." + GOOD]
        assert {verify(KEYS, token, now=NOW) for token in cut + grown} == {TokenFault.BAD}

    def test_what_is_not_signed_is_never_parsed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def parse(*_: object) -> object:
            raise AssertionError("parsed before the MAC was checked")

        monkeypatch.setattr("sse_limits.streams.tokens._decode_json", parse)
        assert verify(KEYS, GOOD[:-1] + ("A" if GOOD[-1] != "A" else "B"), now=NOW) is TokenFault.BAD

    @given(st.text() | st.binary())
    def test_no_text_and_no_bytes_raise(self, token: str | bytes) -> None:
        assert verify(KEYS, token, now=NOW) is TokenFault.BAD

    @given(st.lists(st.sampled_from(["sl1", KID.decode(), ".", "", "A", "=", "é", "\ud800", *GOOD.split(".")])))
    def test_no_arrangement_of_token_parts_raises(self, parts: list[str]) -> None:
        assert verify(KEYS, ".".join(parts), now=NOW) in {TokenFault.BAD, verify(KEYS, GOOD, now=NOW)}

    @pytest.mark.parametrize(
        "token", [None, 1, 1.5, [], {}, object(), bytearray(b"sl1."), memoryview(b"sl1."), GOOD * 50]
    )
    def test_no_object_of_another_kind_and_no_size_raises(self, token: Any) -> None:
        assert verify(KEYS, token, now=NOW) is TokenFault.BAD


class TestSignedNonsense:
    """A signature says who wrote the payload, not that it is sane: an older or a buggy minter holds the key too."""

    def test_the_fields_these_tests_change_are_good(self) -> None:
        assert isinstance(verify(KEYS, signed_json(FIELDS), now=NOW), Claims)

    @pytest.mark.parametrize("field", ["u", "exp", "iat", "aud"])
    def test_a_missing_field_is_bad(self, field: str) -> None:
        fields = {name: value for name, value in FIELDS.items() if name != field}
        assert verify(KEYS, signed_json(fields), now=NOW) is TokenFault.BAD

    @pytest.mark.parametrize(
        "changes",
        [
            *each("u", None, "", 1, True, [], ["a"], {}, "a\x00", "a\r\n", "\ud800", "\x85"),
            *each("t", "", 1, False, [], {}, "a\x00", "\udfff", "a/b", "a{b", "a}b"),
            *each("tier", "", 0, [], "\x1f"),
            *each("sid", "", 0, [], "\ud83d"),
            *each("top", None, "clock", {}, 1, [1], [None], [""], ["a", ["b"]], ["\ud800"], ["\n"]),
            *each("exp", None, True, "1", NOW + 1.0, 1e400, float("nan"), 10**30, -1, [], 2**53),
            *each("iat", None, False, "1", NOW + 0.5, float("-inf"), -(10**30), {}),
            *each("aud", None, "", "STREAM", ["stream"], {"stream": 1}, True),
        ],
    )
    def test_a_field_of_the_wrong_kind_is_bad(self, changes: dict[str, Any]) -> None:
        assert verify(KEYS, signed_json({**FIELDS, **changes}), now=NOW) is TokenFault.BAD

    @pytest.mark.parametrize(
        "payload",
        [
            *(b"", b" ", b"null", b"1", b'"a"', b"[]", b"{}", b"{", b"\xff\xfe", b"\xed\xa0\x80", b"\x00"),
            *(json.dumps(FIELDS).encode() + b" x", json.dumps([FIELDS]).encode(), json.dumps(FIELDS).encode("utf-16")),
            *(b"[" * 1400, b'{"u":' * 280, b"[" * 700 + b"]" * 700, b'{"u":' + b"[" * 700 + b"]" * 690 + b"}"),
            b'{"exp":' + b"9" * 1400 + b"}",
        ],
    )
    def test_a_payload_that_is_no_json_object_is_bad(self, payload: bytes) -> None:
        assert verify(KEYS, signed(payload), now=NOW) is TokenFault.BAD

    @pytest.mark.parametrize(
        "head", ["sl1.{kid}.!!!!", "sl1.{kid}.A", "sl1.{kid}.é", "sl1.{kid}", "sl1.{kid}x", "sl1.{kid}.a.b"]
    )
    def test_a_signed_head_that_is_no_base64_is_bad(self, head: str) -> None:
        message = head.format(kid=KID.decode()).encode()
        mac = base64.urlsafe_b64encode(hmac.new(KEY, message, hashlib.sha256).digest())[:22]
        assert verify(KEYS, message + b"." + mac, now=NOW) is TokenFault.BAD

    @given(st.dictionaries(st.sampled_from([*FIELDS, "tier", "top", "sid", "x"]), json_values) | json_values)
    def test_no_signed_json_raises(self, value: object) -> None:
        changed = {**FIELDS, **value} if isinstance(value, dict) else value
        token = signed_json(changed)
        assert isinstance(verify(KEYS, token, now=NOW), Claims | TokenFault)

    def test_a_field_of_a_later_version_does_not_matter(self) -> None:
        assert isinstance(verify(KEYS, signed_json({**FIELDS, "new": [1]}), now=NOW), Claims)


@given(key=st.binary(min_size=32, max_size=32), message=st.binary(max_size=300))
def test_the_prepared_hmac_is_the_standard_one(key: bytes, message: bytes) -> None:
    assert _hmac_sha256(key, message) == hmac.digest(key, message, "sha256")
