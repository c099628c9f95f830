"""Stream tokens and JWTs: what is minted verifies, everything else is refused as a value and never raises."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.streams.tokens import (
    MAX_JWT_BYTES,
    MAX_TEXT_CHARS,
    MAX_TOKEN_BYTES,
    Claims,
    JwtVerifier,
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


SECRET = "0123456789abcdef" * 4


def pem_pair(private_key: Any) -> tuple[str, str]:
    private = private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


RSA_PRIVATE, RSA_PUBLIC = pem_pair(rsa.generate_private_key(65537, 2048))
EC_PRIVATE, EC_PUBLIC = pem_pair(ec.generate_private_key(ec.SECP256R1()))
JWT_PAYLOAD: dict[str, Any] = {"sub": "alice", "aud": "sse", "exp": NOW_SECONDS + 60, "tenant": "acme"}
HMAC_VERIFIER = JwtVerifier(SECRET, ["HS256"], "sse")


def encoded(
    changes: dict[str, Any] | None = None, *, without: str = "", key: str = SECRET, algorithm: str = "HS256"
) -> str:
    payload = {name: value for name, value in {**JWT_PAYLOAD, **(changes or {})}.items() if name != without}
    return jwt.encode(payload, key, algorithm)


def hmac_jwt(header: bytes, payload: bytes, key: str = SECRET) -> bytes:
    """Build a signed JWT that PyJWT itself would refuse to encode."""
    head = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload))
    mac = hmac.new(key.encode(), head, hashlib.sha256).digest()
    return head + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


class TestJwtConfiguration:
    @pytest.mark.parametrize(
        ("algorithms", "sentence"),
        [
            ([], "needs a list of the algorithms"),
            ("HS256", "needs a list of the algorithms"),
            (["none"], "must be among"),
            (["None"], "must be among"),
            (["HS256", "none"], "must be among"),
            (["hs256"], "must be among"),
            ([""], "must be among"),
            (["HS256", "RS256"], "don't mix"),
            (["ES256", "HS512"], "don't mix"),
        ],
    )
    def test_unsafe_algorithms_are_refused(self, algorithms: Any, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            JwtVerifier(SECRET, algorithms, "sse")

    @pytest.mark.parametrize("audience", ["", [], None, ["sse", ""]])
    def test_a_missing_audience_is_refused(self, audience: Any) -> None:
        with pytest.raises(ValueError, match="needs an audience"):
            JwtVerifier(SECRET, ["HS256"], audience)

    @pytest.mark.parametrize(
        ("key", "algorithm"),
        [
            *((RSA_PUBLIC, "HS256"), (EC_PUBLIC, "HS256"), ("", "HS256"), (RSA_PUBLIC, "ES256"), (EC_PUBLIC, "RS256")),
            *((SECRET, "RS256"), (None, "HS256"), (1, "RS256"), (EC_PUBLIC, "ES384")),
        ],
    )
    def test_a_key_that_does_not_fit_the_algorithm_is_refused(self, key: Any, algorithm: str) -> None:
        with pytest.raises(ValueError, match=f"does not fit {algorithm}"):
            JwtVerifier(key, [algorithm], "sse")

    @pytest.mark.parametrize(("key", "algorithm"), [("x" * 31, "HS256"), ("x" * 63, "HS512")])
    def test_a_short_secret_is_refused(self, key: str, algorithm: str) -> None:
        with pytest.raises(ValueError, match="too weak"):
            JwtVerifier(key, [algorithm], "sse")

    @pytest.mark.parametrize("leeway", [-1, float("nan"), float("inf")])
    def test_a_leeway_that_is_no_time_is_refused(self, leeway: float) -> None:
        with pytest.raises(ValueError, match="leeway"):
            JwtVerifier(SECRET, ["HS256"], "sse", leeway_seconds=leeway)

    def test_an_unknown_name_in_the_claims_mapping_is_named(self) -> None:
        with pytest.raises(ValueError, match="not for usr"):
            JwtVerifier(SECRET, ["HS256"], "sse", claims={"usr": "sub"})

    def test_without_pyjwt_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jwt", None)
        with pytest.raises(ImportError, match=r"pip install sse-limits\[jwt\]"):
            JwtVerifier(SECRET, ["HS256"], "sse")

    def test_without_cryptography_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise NotImplementedError(name)

        monkeypatch.setattr(jwt, "get_algorithm_by_name", missing)
        with pytest.raises(ImportError, match=r"pip install sse-limits\[jwt\]"):
            JwtVerifier(RSA_PUBLIC, ["RS256"], "sse")

    def test_importing_the_module_does_not_load_pyjwt(self) -> None:
        program = "import sys, sse_limits.streams.tokens; print('jwt' in sys.modules)"
        run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT)
        assert run.stdout == b"False\n"


class TestJwt:
    @pytest.mark.parametrize(
        ("private", "public", "algorithm"),
        [
            (SECRET, SECRET, "HS256"),
            (SECRET, SECRET, "HS512"),
            (RSA_PRIVATE, RSA_PUBLIC, "RS256"),
            (RSA_PRIVATE, RSA_PUBLIC, "PS256"),
            (EC_PRIVATE, EC_PUBLIC, "ES256"),
        ],
        ids=["HS256", "HS512", "RS256", "PS256", "ES256"],
    )
    def test_a_good_token_yields_its_claims(self, private: str, public: str, algorithm: str) -> None:
        token = encoded({"tier": "gold", "topics": ["clock"], "iat": NOW_SECONDS}, key=private, algorithm=algorithm)
        expected = Claims("acme", "alice", "gold", ("clock",), NOW + 60_000, NOW, None)
        verifier = JwtVerifier(public, [algorithm], "sse")
        assert verifier.verify(token, NOW) == verifier.verify(token.encode(), NOW) == expected

    def test_claims_that_are_absent_are_none_and_an_unknown_issue_time_is_the_oldest(self) -> None:
        claims = HMAC_VERIFIER.verify(encoded(without="tenant"), NOW)
        assert claims == Claims(None, "alice", None, None, NOW + 60_000, 0, None)

    def test_claims_are_read_under_the_names_configured(self) -> None:
        names = {"user": "email", "tenant": "org", "tier": "plan", "topics": "scope"}
        verifier = JwtVerifier(SECRET, ["HS256"], "sse", claims=names)
        token = encoded({"email": "a@b.c", "org": "zeta", "plan": "free", "scope": ["x"]})
        assert verifier.verify(token, NOW) == Claims("zeta", "a@b.c", "free", ("x",), NOW + 60_000, 0, None)
        assert verifier.verify(encoded(), NOW) is TokenFault.BAD

    def test_time_is_the_argument_and_not_the_clock_of_the_machine(self) -> None:
        past = int(time.time()) - 1000
        assert isinstance(HMAC_VERIFIER.verify(encoded({"exp": past, "iat": past}), (past - 1) * 1000), Claims)
        future = int(time.time()) + 100_000
        token = encoded({"exp": future, "iat": future - 1, "nbf": future - 1})
        assert HMAC_VERIFIER.verify(token, future * 1000) is TokenFault.EXPIRED

    @pytest.mark.parametrize(
        ("exp", "leeway"), [(NOW_SECONDS + 60, 0), (NOW_SECONDS + 59.5, 0.5), (NOW_SECONDS + 30, 30)]
    )
    def test_a_token_is_good_up_to_the_last_ms_before_expiry_and_leeway(self, exp: float, leeway: float) -> None:
        verifier = JwtVerifier(SECRET, ["HS256"], "sse", leeway_seconds=leeway)
        claims = verifier.verify(encoded({"exp": exp}), NOW + 59_999)
        assert isinstance(claims, Claims)
        assert claims.expires_at == NOW + 60_000
        assert verifier.verify(encoded({"exp": exp}), NOW + 60_000) is TokenFault.EXPIRED

    def test_a_token_is_bad_before_its_nbf_less_the_leeway(self) -> None:
        verifier = JwtVerifier(SECRET, ["HS256"], "sse", leeway_seconds=2)
        token = encoded({"nbf": NOW_SECONDS})
        assert verifier.verify(token, NOW - 2001) is TokenFault.BAD
        assert isinstance(verifier.verify(token, NOW - 2000), Claims)

    @pytest.mark.parametrize("claim", ["exp", "aud", "sub"])
    def test_a_token_without_expiry_audience_or_user_is_bad(self, claim: str) -> None:
        assert HMAC_VERIFIER.verify(encoded(without=claim), NOW) is TokenFault.BAD

    @pytest.mark.parametrize("audience", ["other", "", [], ["other"]])
    def test_a_token_for_another_audience_is_bad(self, audience: Any) -> None:
        assert HMAC_VERIFIER.verify(encoded({"aud": audience}), NOW) is TokenFault.BAD

    def test_one_of_several_audiences_is_enough(self) -> None:
        verifier = JwtVerifier(SECRET, ["HS256"], ["sse", "ws"])
        assert isinstance(verifier.verify(encoded({"aud": ["other", "ws"]}), NOW), Claims)

    def test_a_pinned_issuer_must_be_the_token_s(self) -> None:
        verifier = JwtVerifier(SECRET, ["HS256"], "sse", issuer="https://id.example")
        assert isinstance(verifier.verify(encoded({"iss": "https://id.example"}), NOW), Claims)
        assert verifier.verify(encoded({"iss": "https://evil.example"}), NOW) is TokenFault.BAD
        assert verifier.verify(encoded(), NOW) is TokenFault.BAD

    def test_a_token_signed_with_another_key_is_bad(self) -> None:
        assert HMAC_VERIFIER.verify(encoded(key="x" * 64), NOW) is TokenFault.BAD


class TestJwtAttacks:
    @pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", ""])
    def test_an_unsigned_token_is_bad(self, algorithm: str) -> None:
        head, payload, _ = hmac_jwt(json.dumps({"alg": algorithm}).encode(), json.dumps(JWT_PAYLOAD).encode()).split(
            b"."
        )
        assert HMAC_VERIFIER.verify(head + b"." + payload + b".", NOW) is TokenFault.BAD
        assert JwtVerifier(RSA_PUBLIC, ["RS256"], "sse").verify(head + b"." + payload + b".", NOW) is TokenFault.BAD

    def test_the_public_key_does_not_pass_as_an_hmac_secret(self) -> None:
        confused = hmac_jwt(b'{"alg":"HS256","typ":"JWT"}', json.dumps(JWT_PAYLOAD).encode(), RSA_PUBLIC)
        assert JwtVerifier(RSA_PUBLIC, ["RS256"], "sse").verify(confused, NOW) is TokenFault.BAD

    def test_an_algorithm_that_is_not_pinned_is_bad_even_with_the_right_key(self) -> None:
        assert HMAC_VERIFIER.verify(encoded(algorithm="HS512"), NOW) is TokenFault.BAD

    @pytest.mark.parametrize(
        "changes",
        [
            *each("sub", None, "", 1, [], "a\x00", "\x1b[2J", "\ud800", "x" * (MAX_TEXT_CHARS + 1)),
            *each("tenant", "", 1, ["a"], "a/b", "a\n", "\udfff"),
            *each("topics", None, "clock", {"a": 1}, [1], [""], ["\x00"]),
            *each("exp", "1", True, [], float("nan"), float("inf"), 10**30, -1, None),
            *each("iat", "1", True, [], float("nan"), -1),
            *each("nbf", "1", True, {}, float("inf"), 10**400),
        ],
    )
    def test_a_claim_of_the_wrong_kind_is_bad(self, changes: dict[str, Any]) -> None:
        token = hmac_jwt(b'{"alg":"HS256"}', json.dumps({**JWT_PAYLOAD, **changes}).encode())
        assert HMAC_VERIFIER.verify(token, NOW) is TokenFault.BAD

    @pytest.mark.parametrize(
        "header",
        [
            *(b"", b"null", b"[]", b"{}", b'{"alg":[]}', b'{"alg":{}}', b'{"alg":null}', b'{"alg":1}', b"\xff", b"{"),
            *(b'{"alg":"HS256","crit":1}', b'{"alg":"HS256","b64":false,"crit":["b64"]}', b'{"alg":"HS256","kid":1}'),
            *(b"[" * 3000, b'{"alg":' * 700, b'{"alg":' + b"9" * 5000 + b"}"),
        ],
    )
    @pytest.mark.parametrize("payload", [json.dumps(JWT_PAYLOAD).encode(), b"", b"[]", b"\xff"])
    def test_a_header_that_is_nonsense_is_bad(self, header: bytes, payload: bytes) -> None:
        assert HMAC_VERIFIER.verify(hmac_jwt(header, payload), NOW) is TokenFault.BAD

    @pytest.mark.parametrize("payload", [b"", b"1", b"[]", b"{}", b"\xff", b"[" * 4000, b'{"a":' * 1000, b"9" * 5000])
    def test_a_signed_payload_that_is_nonsense_is_bad(self, payload: bytes) -> None:
        assert HMAC_VERIFIER.verify(hmac_jwt(b'{"alg":"HS256"}', payload), NOW) is TokenFault.BAD

    def test_a_token_longer_than_the_cap_is_bad(self) -> None:
        assert HMAC_VERIFIER.verify(encoded({"x": "y" * MAX_JWT_BYTES}), NOW) is TokenFault.BAD

    @given(st.text() | st.binary() | st.none() | st.integers())
    def test_no_input_raises(self, token: Any) -> None:
        assert HMAC_VERIFIER.verify(token, NOW) is TokenFault.BAD

    @given(
        json_values,
        st.dictionaries(st.sampled_from([*JWT_PAYLOAD, "iat", "nbf", "iss", "tier", "topics"]), json_values),
    )
    def test_no_signed_claims_and_no_header_raise(self, header: object, changes: dict[str, Any]) -> None:
        payload = json.dumps({**JWT_PAYLOAD, **changes}).encode()
        assert isinstance(HMAC_VERIFIER.verify(hmac_jwt(b'{"alg":"HS256"}', payload), NOW), Claims | TokenFault)
        assert isinstance(HMAC_VERIFIER.verify(hmac_jwt(json.dumps(header).encode(), payload), NOW), TokenFault)

    @given(st.integers(0, 400), st.characters(codec="ascii"))
    def test_a_token_with_its_signed_part_changed_is_bad(self, position: int, character: str) -> None:
        good = encoded()
        end = good.rindex(".")
        position %= end
        changed = good[:position] + character + good[position + 1 :]
        assert changed == good or HMAC_VERIFIER.verify(changed, NOW) is TokenFault.BAD


@given(key=st.binary(min_size=32, max_size=32), message=st.binary(max_size=300))
def test_the_prepared_hmac_is_the_standard_one(key: bytes, message: bytes) -> None:
    assert _hmac_sha256(key, message) == hmac.digest(key, message, "sha256")
