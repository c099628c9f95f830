"""JWTs of other issuers: what is signed and meant for us is read, everything else is refused and never raises."""

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

from sse_limits.streams.jwt_tokens import MAX_JWT_BYTES, JwtVerifier
from sse_limits.streams.tokens import MAX_TEXT_CHARS, Claims, TokenFault

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_800_000_000_000
NOW_SECONDS = NOW // 1000

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)


def each(field: str, *values: object) -> list[dict[str, object]]:
    return [{field: value} for value in values]


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
        program = "import sys, sse_limits.streams.jwt_tokens; print('jwt' in sys.modules)"
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
