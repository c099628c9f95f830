"""Pages as a test reads them."""

from __future__ import annotations

import re
from html import unescape

from django.test import Client


def text_of(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def words(html: str) -> str:
    """What a reader of the page reads."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())
