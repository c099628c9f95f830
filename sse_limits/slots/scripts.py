"""The Lua scripts as Redis commands: each file of `lua/`, with `lib.lua` before it, and its SHA-1.

A pipelined EVALSHA is not reloaded by redis-py after SCRIPT FLUSH, a restart or a failover; the pipeline repeats such a
call as EVAL, which loads the script again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

_LUA = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source and the digest by which Redis knows it."""

    name: str
    source: str
    sha: str

    def evalsha(self, keys: Sequence[str], args: Sequence[str | int | bytes]) -> tuple[Any, ...]:
        """The command that runs the script where it is loaded."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def eval(self, evalsha: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same call as `evalsha`, with the source: it loads the script and runs it."""
        return ("EVAL", self.source, *evalsha[2:])


def load(name: str) -> Script:
    """Read a script from the package."""
    source = (_LUA / "lib.lua").read_text() + (_LUA / f"{name}.lua").read_text()
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
