"""Identity, the spelling and grouping of addresses, and who the client behind proxies is (B75, B77)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.identity import (
    MAX_FORWARDED_BYTES,
    MAX_HOPS,
    Identity,
    TrustedProxies,
    group_address,
    parse_address,
)

REAL = "203.0.113.7"
PROXIES = TrustedProxies(["10.0.0.0/8", "192.168.1.1", "2001:db8:ffff::/48", "unix"])

TRUSTED = TrustedProxies(["10.0.0.0/8", "::1"])
untrusted_addresses = (
    st.ip_addresses()
    .map(str)
    .filter(lambda text: parse_address(text) == text and not text.startswith("10.") and text != "::1")
)
header_values = st.lists(st.binary(max_size=200), max_size=6)


class TestIdentity:
    def test_users_of_the_same_name_in_two_tenants_are_two_subjects(self) -> None:
        assert Identity(user="u1", tenant="acme").subject == "acme/u1"
        assert Identity(user="u1", tenant="zeta").subject == "zeta/u1"

    def test_a_user_without_tenant_has_an_empty_tenant_in_the_subject(self) -> None:
        assert Identity(user="u1").subject == "/u1"

    @pytest.mark.parametrize("user", [None, ""])
    def test_nobody_has_no_subject_so_the_anonymous_share_no_bucket(self, user: str | None) -> None:
        identity = Identity(user=user, tenant="acme", address=REAL)
        assert identity.is_anonymous
        assert identity.subject is None

    def test_a_named_user_is_not_anonymous(self) -> None:
        assert not Identity(user="u1").is_anonymous

    @pytest.mark.parametrize(
        ("topics", "expected"), [(None, True), ((), False), (("clock", "news"), True), (("clocks", "CLOCK"), False)]
    )
    def test_a_topic_is_allowed_when_listed_exactly_or_when_there_is_no_list(
        self, topics: tuple[str, ...] | None, expected: bool
    ) -> None:
        assert Identity(topics=topics).allows_topic("clock") is expected

    def test_an_identity_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            Identity().user = "root"  # type: ignore[misc]


class TestParseAddress:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("1.2.3.4", "1.2.3.4"),
            (" \t1.2.3.4 ", "1.2.3.4"),
            ("1.2.3.4:55", "1.2.3.4"),
            ("1.2.3.4:0", "1.2.3.4"),
            ("1.2.3.4:65535", "1.2.3.4"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[::1]:80", "::1"),
            ("2001:DB8:0:0::0:1", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%25eth0]:443", "fe80::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::FFFF:102:304", "1.2.3.4"),
            ("[::ffff:1.2.3.4]:80", "1.2.3.4"),
            ("::ffff:1.2.3.4%eth0", "1.2.3.4"),
        ],
    )
    def test_each_spelling_of_an_address_becomes_the_one_spelling(self, text: str, expected: str) -> None:
        assert parse_address(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            *("unknown", "_hidden", "localhost", "unix:", "testclient", "1.2.3.4/8", "1.2.3.4%eth0", "fe80::1%"),
            *("1", "1.2.3", "1.2.3.4.5", "256.1.1.1", "01.2.3.4", "::1::", ":::", "12345::"),
            *("1.2.3.4:", "1.2.3.4:port", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:²", "[::1]:", "[::1]:99999"),
            *("[", "[]", "[::1", "::1]", "[::1]x", "[1.2.3.4]", "[[::1]]"),
            *("", " ", "1.2.3.4\n", "1.2.3.4\x00", "\ud800", "\uff11.2.3.4", "::1%" + "z" * 200, "1" * 5000),
        ],
    )
    def test_what_is_no_address_is_none(self, text: str) -> None:
        assert parse_address(text) is None

    @given(st.text())
    def test_no_text_raises(self, text: str) -> None:
        parse_address(text)

    @given(st.ip_addresses(), st.integers(0, 65535))
    def test_a_port_never_changes_the_address(
        self, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
    ) -> None:
        bracketed = f"[{address}]" if address.version == 6 else str(address)
        assert parse_address(f"{bracketed}:{port}") == parse_address(str(address)) is not None


class TestGroupAddress:
    @pytest.mark.parametrize(
        ("address", "prefix", "expected"),
        [
            ("1.2.3.4", 64, "1.2.3.4"),
            ("2001:db8::1", 64, "2001:db8::/64"),
            ("2001:db8:0:1:ffff::9", 64, "2001:db8:0:1::/64"),
            ("2001:db8:1:2::9", 48, "2001:db8:1::/48"),
            ("2001:db8::1", 128, "2001:db8::1/128"),
            ("2001:db8::1", 0, "::/0"),
            ("fe80::1%eth0", 64, "fe80::/64"),
            ("::ffff:1.2.3.4", 64, "1.2.3.4"),
        ],
    )
    def test_ipv6_is_grouped_by_prefix_and_ipv4_stands_for_itself(
        self, address: str, prefix: int, expected: str
    ) -> None:
        assert group_address(address, prefix) == expected

    def test_the_default_group_is_a_64(self) -> None:
        assert group_address("2001:db8::1") == group_address("2001:db8::ffff:1") == "2001:db8::/64"

    @pytest.mark.parametrize(("address", "prefix"), [("::x", 64), ("2001:db8::1", 129), ("2001:db8::1", -1)])
    def test_what_cannot_be_grouped_is_a_value_error(self, address: str, prefix: int) -> None:
        with pytest.raises(ValueError, match=r"."):
            group_address(address, prefix)


class TestTrustedProxiesSettings:
    @pytest.mark.parametrize(
        "entry", ["10.0.0.0/33", "localhost", "", "*", "UNIX", "1.2.3", "fe80::1%eth0/64", "a\ud800"]
    )
    def test_an_entry_that_is_no_proxy_is_named(self, entry: str) -> None:
        with pytest.raises(ValueError, match="is not usable") as caught:
            TrustedProxies(["127.0.0.1", entry])
        assert repr(entry) in str(caught.value)

    def test_host_bits_in_a_network_are_named_as_the_mistake(self) -> None:
        with pytest.raises(ValueError, match=r"'10\.0\.0\.1/8' is not usable: .*host bits"):
            TrustedProxies(["10.0.0.1/8"])

    @pytest.mark.parametrize("entry", [10, b"\x0a\x00\x00\x01", None])
    def test_an_entry_that_is_no_text_is_named(self, entry: object) -> None:
        with pytest.raises(ValueError, match="must be a string"):
            TrustedProxies([entry])  # type: ignore[list-item]

    def test_one_string_in_place_of_a_list_is_refused(self) -> None:
        with pytest.raises(ValueError, match="must be a list"):
            TrustedProxies("10.0.0.0/8")

    def test_blanks_around_an_entry_do_not_matter(self) -> None:
        assert TrustedProxies([" 10.0.0.1 ", "unix "]) == TrustedProxies(("10.0.0.1", "unix"))

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            PROXIES.entries = ()  # type: ignore[misc]


class TestClientAddress:
    @pytest.mark.parametrize("proxies", [TrustedProxies(), TrustedProxies(["10.0.0.0/8"]), TrustedProxies(["unix"])])
    def test_the_header_of_an_untrusted_peer_is_ignored(self, proxies: TrustedProxies) -> None:
        assert proxies.client_address(REAL, [b"6.6.6.6"]) == REAL
        assert proxies.client_address(REAL, []) == REAL

    @pytest.mark.parametrize(
        "peer", ["10.1.2.3", "::ffff:10.1.2.3", "192.168.1.1", "2001:db8:ffff::5", "10.1.2.3:5000"]
    )
    def test_the_header_of_a_trusted_peer_names_the_client(self, peer: str) -> None:
        assert PROXIES.client_address(peer, [REAL.encode()]) == REAL

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            # spoofed prefixes: in the same header, in an earlier one, malformed ones
            ([b"6.6.6.6, 203.0.113.7"], REAL),
            ([b"6.6.6.6", b"203.0.113.7"], REAL),
            ([b"10.0.0.9, 203.0.113.7"], REAL),
            ([b"unknown, , \xff\x00, 203.0.113.7"], REAL),
            # several trusted hops
            ([b"6.6.6.6, 203.0.113.7, 10.0.0.2, 192.168.1.1"], REAL),
            ([b"203.0.113.7, 10.0.0.2", b"2001:db8:ffff::1"], REAL),
            ([b"203.0.113.7, [2001:db8:ffff::1]:8080, 10.0.0.2:99"], REAL),
            # spellings
            ([b"203.0.113.7:4711"], REAL),
            ([b"\t203.0.113.7  "], REAL),
            ([b"::ffff:203.0.113.7"], REAL),
            ([b"[2001:db8::1]:443"], "2001:db8::1"),
            ([b"2001:db8::1"], "2001:db8::1"),
            # empty items at the ends
            ([b"203.0.113.7,"], REAL),
            ([b"203.0.113.7, ,\t, "], REAL),
            ([b"203.0.113.7", b"", b" "], REAL),
            ([b"", b"203.0.113.7"], REAL),
            # all trusted: the leftmost
            ([b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ([b", 10.0.0.2"], "10.0.0.2"),
        ],
    )
    def test_the_first_untrusted_hop_from_the_right_is_the_client(self, headers: list[bytes], expected: str) -> None:
        assert PROXIES.client_address("10.0.0.1", headers) == expected

    @pytest.mark.parametrize(
        "headers",
        [
            [b"203.0.113.7, unknown"],
            [b"203.0.113.7, unknown, 10.0.0.2"],
            [b"203.0.113.7, , 10.0.0.2"],
            [b"unknown, 10.0.0.2"],
            [b"203.0.113.7", b"\xff\xfe"],
            [b"203.0.113.7, 1.2.3.4.5"],
            [b"203.0.113.7, _secret"],
        ],
    )
    def test_a_hop_that_a_proxy_could_not_name_ends_in_no_address(self, headers: list[bytes]) -> None:
        assert PROXIES.client_address("10.0.0.1", headers) is None

    @pytest.mark.parametrize("headers", [[], [b""], [b" , ,"], [b"", b""]])
    def test_a_trusted_proxy_that_names_nobody_yields_no_address_rather_than_its_own(
        self, headers: list[bytes]
    ) -> None:
        assert PROXIES.client_address("10.0.0.1", headers) is None

    @pytest.mark.parametrize("peer", ["testclient", "unknown", "1.2.3", "\ud800"])
    def test_a_peer_that_is_no_address_is_neither_known_nor_trusted(self, peer: str) -> None:
        assert PROXIES.client_address(peer, [REAL.encode()]) is None

    def test_mapped_networks_are_ipv4_networks(self) -> None:
        proxies = TrustedProxies(["::ffff:10.0.0.0/104", "::ffff:172.16.0.1"])
        assert proxies.client_address("10.9.9.9", [REAL.encode()]) == REAL
        assert proxies.client_address("172.16.0.1", [REAL.encode()]) == REAL
        assert proxies.client_address("172.16.0.2", [REAL.encode()]) == "172.16.0.2"


class TestUnixSocket:
    @pytest.mark.parametrize("peer", [None, "", "/run/app.sock", "unix:"])
    def test_a_trusted_unix_peer_names_the_client_by_header(self, peer: str | None) -> None:
        assert PROXIES.client_address(peer, [b"6.6.6.6, 203.0.113.7"]) == REAL
        assert TrustedProxies(["unix"]).client_address(peer, [b"10.0.0.3, 203.0.113.7"]) == REAL

    @pytest.mark.parametrize("peer", [None, "", "/run/app.sock", "unix:"])
    def test_without_a_header_there_is_no_address_and_so_no_shared_bucket(self, peer: str | None) -> None:
        assert PROXIES.client_address(peer, []) is None

    @pytest.mark.parametrize("peer", [None, ""])
    @pytest.mark.parametrize("proxies", [TrustedProxies(), TrustedProxies(["0.0.0.0/0", "::/0"])])
    def test_an_untrusted_unix_peer_may_not_name_a_client(self, proxies: TrustedProxies, peer: str | None) -> None:
        assert proxies.client_address(peer, [REAL.encode()]) is None

    def test_a_unix_hop_between_two_proxies_is_walked_past_when_trusted(self) -> None:
        assert PROXIES.client_address(None, [b"203.0.113.7, unix:"]) == REAL
        assert TrustedProxies(["10.0.0.1"]).client_address("10.0.0.1", [b"203.0.113.7, unix:"]) is None


class TestHostileHeaders:
    @given(st.one_of(st.none(), st.text(), st.sampled_from(["10.0.0.1", REAL])), header_values)
    def test_no_header_and_no_peer_raises(self, peer: str | None, headers: list[bytes]) -> None:
        address = PROXIES.client_address(peer, headers)
        assert address is None or parse_address(address) == address

    @given(header_values, st.binary(max_size=300), untrusted_addresses)
    def test_a_spoofed_prefix_never_changes_the_address(
        self, headers: list[bytes], prefix: bytes, address: str
    ) -> None:
        client = address.encode()
        assert TRUSTED.client_address("10.0.0.1", [*headers, prefix + b", " + client]) == address
        assert TRUSTED.client_address("10.0.0.1", [*headers, prefix, client + b", ::1"]) == address

    @pytest.mark.parametrize("junk", [b"6.6.6.6, ", b"x", b",", b" ", b"10.0.0.9,", b"\xff"])
    def test_fifty_connects_with_8_kb_of_junk_all_count_under_the_one_real_address(self, junk: bytes) -> None:
        prefixes = [junk * (8192 // len(junk)) + b"%d" % number for number in range(50)]
        seen = {PROXIES.client_address("10.0.0.1", [prefix + b", 203.0.113.7"]) for prefix in prefixes}
        assert seen == {REAL}

    def test_no_more_than_the_last_32_hops_count(self) -> None:
        hops = [b"10.0.1.%d" % number for number in range(MAX_HOPS)]
        assert PROXIES.client_address("10.0.0.1", [b",".join([b"6.6.6.6", *hops])]) == "10.0.1.0"
        assert PROXIES.client_address("10.0.0.1", [b",".join([b"6.6.6.6", *hops[1:]])]) == "6.6.6.6"

    def test_an_item_that_the_cut_goes_through_is_not_read_as_an_address(self) -> None:
        tail = b",10.0.0.2"
        padding = b" " * (MAX_FORWARDED_BYTES - len(b"6.6.6.6") - len(tail))
        whole = b"x,6.6.6.6" + padding + tail
        assert PROXIES.client_address("10.0.0.1", [whole]) == "6.6.6.6"
        assert PROXIES.client_address("10.0.0.1", [b"6" + whole.removeprefix(b"x,")]) == "10.0.0.2"

    def test_a_header_of_one_endless_item_names_nobody(self) -> None:
        assert PROXIES.client_address("10.0.0.1", [b"1" * 8192]) is None
