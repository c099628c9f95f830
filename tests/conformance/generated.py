"""Events that try everything a Python string can hold; the same ones for the same seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

SOUP = "\r\n\0\u2028\u2029\x85\x0b\x0c\x1c :\ufeff\ud800\udc00a"
HUGE = 200_000
HUGE_EVERY = 500


class Generated(NamedTuple):
    """What is published, and what has to arrive."""

    text: str
    expected: str


def generate(seed: int, count: int) -> Iterator[Generated]:
    """Any code points, line ends and other separators, fields in disguise, and now and then something huge."""
    source = random.Random(seed)
    for number in range(count):
        text = huge(source) if number % HUGE_EVERY == HUGE_EVERY - 1 else small(source)
        yield Generated(text, arrives_as(text))


def small(source: random.Random) -> str:
    match source.randrange(5):
        case 0:
            return "".join(map(chr, source.choices(range(0x110000), k=source.randrange(60))))
        case 1:
            return "".join(source.choices(SOUP, k=source.randrange(30)))
        case 2:
            return "".join(map(chr, source.choices(range(0x100), k=source.randrange(60))))
        case 3:
            fields = ("data: ", "event: x", "id: 1", "retry: 1", ": ", "", "\ufeff", "data", "é\U0001f600")
            return "".join(source.choice(fields) + source.choice(("\r\n", "\r", "\n", "\n\n")) for _ in range(5))
    return source.choice(("", " ", "\n", "\r", "\r\n", "\n\r", "\0", "\ufeff", "\ud800", "\udc00\ud800", ":", "\u2028"))


def huge(source: random.Random) -> str:
    return small(source) + chr(source.randrange(0x110000)) * source.randrange(HUGE // 2, HUGE) + small(source)


def arrives_as(text: str) -> str:
    """What the format can carry: line ends are LF, and UTF-8 has no surrogates."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
