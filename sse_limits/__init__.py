"""Concurrency and rate limits for Server-Sent Events and WebSockets in Django and Channels.

The layers of this package and the way imports go between them are in `pyproject.toml` under import-linter.
"""

from __future__ import annotations

__version__ = "0.1.0"
