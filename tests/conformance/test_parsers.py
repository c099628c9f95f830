"""Parsers that others wrote, over one stream of generated events cut into pieces anywhere."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from httpx_sse import EventSource

from sse_limits.core.frames import KEEPALIVE, event, with_id

from .generated import generate

SEED = 20
EVENTS = 50_000
PACKAGE = "eventsource-parser@3"
READ = """
import { createReadStream, writeFileSync } from 'node:fs';
import { createParser } from 'eventsource-parser';
const found = [];
const parser = createParser({
  onEvent: event => found.push([event.id ?? '', event.data]),
  onError: error => { throw error },
});
const decoder = new TextDecoder();
for await (const piece of createReadStream(process.argv[2], { highWaterMark: 4099 })) {
  parser.feed(decoder.decode(piece, { stream: true }));
}
writeFileSync(process.argv[3], JSON.stringify(found));
"""

Events = list[tuple[str, str]]


@pytest.fixture(scope="module")
def published() -> tuple[bytes, Events]:
    """The stream, with keepalives here and there, and what every parser has to make of it."""
    frames, expected = [], []
    for number, (text, arrives_as) in enumerate(generate(SEED, EVENTS)):
        frames.append(with_id(f"{number}-0".encode(), event(text)))
        expected.append((f"{number}-0", arrives_as))
        if number % 7 == 0:
            frames.append(KEEPALIVE)
    return b"".join(frames), expected


@pytest.fixture(scope="module")
def parser_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eventsource-parser in it, from npm."""
    folder = tmp_path_factory.mktemp("npm")
    npm = shutil.which("npm")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", "--fetch-retries=0"]
    done = npm and subprocess.run(
        [npm, "install", "--prefix", folder, *options, PACKAGE], capture_output=True, timeout=60, check=False
    )
    if not done or done.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"no {PACKAGE}, and CI is set")
        pytest.skip(f"not run: npm has no {PACKAGE}")
    (folder / "read.mjs").write_text(READ)
    return folder


def test_httpx_sse_reads_every_event(published: tuple[bytes, Events]) -> None:
    stream, expected = published
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=pieces(stream))
    assert_same([(found.id, found.data) for found in EventSource(response).iter_sse()], expected)


def test_eventsource_parser_reads_every_event(
    published: tuple[bytes, Events], parser_folder: Path, tmp_path: Path
) -> None:
    stream, expected = published
    (tmp_path / "stream").write_bytes(stream)
    command = ["node", parser_folder / "read.mjs", tmp_path / "stream", tmp_path / "found"]
    subprocess.run(command, check=True, timeout=60)
    found = json.loads((tmp_path / "found").read_bytes())
    assert_same([(event_id, data) for event_id, data in found], expected)


def pieces(stream: bytes) -> Iterator[bytes]:
    source, at = random.Random(SEED), 0
    while at < len(stream):
        size = source.choice((1, 7, 100, 4096, 65536))
        yield stream[at : at + size]
        at += size


def assert_same(found: Events, expected: Events) -> None:
    """Compare without printing megabytes."""
    wrong = [(got, wanted) for got, wanted in zip(found, expected, strict=False) if got != wanted]
    assert not wrong, f"{len(wrong)} differ; the first: {wrong[0][0]!r:.300} instead of {wrong[0][1]!r:.300}"
    assert len(found) == len(expected)
