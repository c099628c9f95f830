"""Decision ids: what goes in comes out, for the right key only, and no text raises."""

from __future__ import annotations

import itertools
from base64 import b32decode, b32encode
from collections.abc import Iterator
from hashlib import blake2s

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.decisions import (
    CHARS,
    MAC_BYTES,
    NODE_BYTES,
    NONE,
    VERSION,
    Decision,
    DecisionMint,
    explain,
    node_name,
)
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.slots import Scope

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
NODE = node_name(b"\x00\x01\x7f\xfe\xff")
NOW = 1_800_000_000_123
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
SAMPLE = DecisionMint(KEY, NODE).mint(Reject(Reason.USER_LIMIT, Scope.USER, 5, 6), NOW, 7)

numbers = st.none() | st.integers(0, 100) | st.integers(0, 2**40)
rejects = st.builds(Reject, st.sampled_from(Reason), st.none() | st.sampled_from(Scope), numbers, numbers)
instants = st.integers(0, 2**48 - 1)


def capped(value: int | None) -> int | None:
    return None if value is None else min(value, NONE - 1)


class TestRoundTrip:
    @given(rejects, instants, st.integers(0, 2**32 - 1), st.binary(min_size=NODE_BYTES, max_size=NODE_BYTES))
    def test_an_id_says_all_that_was_decided(self, reject: Reject, at: int, version: int, random: bytes) -> None:
        mint = DecisionMint(KEY, node_name(random))
        assert explain(mint.mint(reject, at, version), KEY) == Decision(
            at=at,
            node=node_name(random),
            reason=reject.reason,
            scope=reject.scope,
            limit=capped(reject.limit),
            in_use=capped(reject.in_use),
            policy_version=version,
            number=1,
        )

    @pytest.mark.parametrize("reason", Reason)
    @pytest.mark.parametrize("scope", [None, *Scope])
    def test_every_reason_and_scope_comes_back(self, reason: Reason, scope: Scope | None) -> None:
        found = explain(DecisionMint(KEY, NODE).mint(Reject(reason, scope, 0, None), NOW, 0), KEY)
        assert found is not None
        assert (found.reason, found.scope, found.limit, found.in_use) == (reason, scope, 0, None)

    @pytest.mark.parametrize("huge", [NONE - 1, NONE, NONE + 1, 2**64])
    def test_a_number_beyond_four_bytes_is_capped_and_never_read_as_none(self, huge: int) -> None:
        found = explain(DecisionMint(KEY, NODE).mint(Reject(Reason.USER_LIMIT, Scope.USER, huge, huge), NOW, 0), KEY)
        assert found is not None
        assert (found.limit, found.in_use) == (NONE - 1, NONE - 1)

    def test_a_policy_version_beyond_four_bytes_keeps_its_low_ones(self) -> None:
        found = explain(DecisionMint(KEY, NODE).mint(Reject(Reason.STORE), NOW, 2**32 + 9), KEY)
        assert found is not None
        assert found.policy_version == 9

    def test_ids_are_numbered_so_that_two_of_one_millisecond_differ(self) -> None:
        mint = DecisionMint(KEY, NODE)
        ids = [mint.mint(Reject(Reason.STORE), NOW, 0) for _ in range(100)]
        assert len(set(ids)) == 100
        assert [found.number for text in ids if (found := explain(text, KEY))] == list(range(1, 101))
        assert mint.count == 100

    def test_the_counter_wraps_and_does_not_break(self) -> None:
        mint = DecisionMint(KEY, NODE)
        mint.count = 2**32 - 1
        found = explain(mint.mint(Reject(Reason.STORE), NOW, 0), KEY)
        assert found is not None
        assert found.number == 0

    @given(st.binary(min_size=NODE_BYTES, max_size=NODE_BYTES))
    def test_a_node_is_eight_characters_in_every_id(self, random: bytes) -> None:
        name = node_name(random)
        assert len(name) == 8
        assert set(name) <= set(ALPHABET)

    def test_an_id_is_56_lower_case_letters_and_digits(self) -> None:
        assert len(SAMPLE) == CHARS == 56
        assert set(SAMPLE) <= set(ALPHABET)

    def test_an_id_of_the_first_version_is_read_for_ever(self) -> None:
        """Ids stand in mails and logs: this one was minted by 0.1.0."""
        mint = DecisionMint(b"the key of 0.1.0", "abcdefgh")
        old = "agrrqxcqabcdefghaeaaaabkamaaaagibuaaaagipmaaaaabmarzfhya"
        assert mint.mint(Reject(Reason.TENANT_LIMIT, Scope.TENANT, 200, 200), NOW, 42) == old
        found = explain(old, b"the key of 0.1.0")
        assert found == Decision(NOW, "abcdefgh", Reason.TENANT_LIMIT, Scope.TENANT, 200, 200, 42, 1)

    def test_it_may_be_read_out_in_capitals(self) -> None:
        assert explain(SAMPLE.upper(), KEY) == explain(SAMPLE, KEY) is not None


class TestForgery:
    @pytest.mark.parametrize("position", range(CHARS))
    def test_any_one_character_changed_to_any_other_is_refused(self, position: int) -> None:
        """Also in the last two characters, whose low bits no byte of the MAC covers."""
        for character in ALPHABET.replace(SAMPLE[position], ""):
            changed = SAMPLE[:position] + character + SAMPLE[position + 1 :]
            assert explain(changed, KEY) is None, changed

    @given(st.integers(0, CHARS - 1), st.characters())
    def test_any_one_character_changed_to_any_of_unicode_is_refused(self, position: int, character: str) -> None:
        changed = SAMPLE[:position] + character + SAMPLE[position + 1 :]
        assert (changed.isascii() and changed.lower() == SAMPLE) or explain(changed, KEY) is None

    @pytest.mark.parametrize("look_alike", ["\u017f", "\u0131", "ß", "\ufb00"])
    def test_letters_that_only_become_ascii_in_capitals_are_refused(self, look_alike: str) -> None:
        plain = look_alike.upper().lower()
        for minted in itertools.islice(ids(), 200):
            if plain in minted:
                assert explain(minted.replace(plain, look_alike, 1), KEY) is None

    @given(st.integers(0, CHARS - 1))
    def test_a_character_left_out_or_said_twice_is_refused(self, position: int) -> None:
        assert explain(SAMPLE[:position] + SAMPLE[position + 1 :], KEY) is None
        assert explain(SAMPLE[:position] + SAMPLE[position] + SAMPLE[position:], KEY) is None

    @pytest.mark.parametrize("change", [" {}", "{} ", "{}\n", "{}=", "{}========", "{}a", "{}aaaaaaaa", "aaaaaaaa{}"])
    def test_nothing_may_stand_around_it(self, change: str) -> None:
        assert explain(change.format(SAMPLE), KEY) is None

    @given(rejects, instants)
    def test_another_deployment_s_id_is_refused(self, reject: Reject, at: int) -> None:
        assert explain(DecisionMint(OTHER_KEY, NODE).mint(reject, at, 0), KEY) is None

    @pytest.mark.parametrize(("position", "value"), [(10, VERSION + 1), (20, 0), (20, 255)])
    def test_one_of_a_later_version_or_reason_is_not_guessed_at_even_when_its_mac_is_right(
        self, position: int, value: int
    ) -> None:
        packed = bytearray(b32decode(SAMPLE.upper())[: -MAC_BYTES - 1])
        packed[position] = value
        mac = blake2s(packed, digest_size=MAC_BYTES, key=KEY).digest()
        assert explain(b32encode(bytes(packed) + mac + b"\0").decode().lower(), KEY) is None

    def test_the_mac_is_long_enough_for_guesses_to_be_pointless(self) -> None:
        assert MAC_BYTES >= 4


class TestAnyText:
    @given(st.text())
    def test_no_text_raises(self, text: str) -> None:
        assert explain(text, KEY) is None

    @given(st.text(ALPHABET, min_size=CHARS, max_size=CHARS))
    def test_no_well_formed_text_raises(self, text: str) -> None:
        assert explain(text, KEY) is None

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "=",
            "a",
            "\x00" * CHARS,
            "\ud800" * CHARS,
            "é" * CHARS,
            "ß" * 28,
            "1" * CHARS,
            "a" * 10_000_000,
            "=" * CHARS,
        ],
        ids=lambda text: ascii(text[:4]),
    )
    def test_what_is_no_id_is_none(self, text: str) -> None:
        assert explain(text, KEY) is None


def ids() -> Iterator[str]:
    mint = DecisionMint(KEY, NODE)
    for limit in itertools.count():
        yield mint.mint(Reject(Reason.USER_LIMIT, Scope.USER, limit, limit), NOW + limit, 7)
