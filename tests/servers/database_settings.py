"""The settings of the tests' servers with limits from the database."""

from __future__ import annotations

from tests.servers.settings import *  # noqa: F403
from tests.servers.settings import SSE_LIMITS as ELSEWHERE

SSE_LIMITS = {key: value for key, value in ELSEWHERE.items() if key != "POLICY"}
