"""What a node tells of the fleet: the API, the metrics and the live room of the admin, each read by itself."""

from __future__ import annotations

import re
from html import unescape

import httpx

from sse_limits.core.slots import Scope
from tests.servers.harness import ServerProcess

SECONDS = 10
IN_USE = re.compile(r"Streams in use (\d+) ")


async def told(node: ServerProcess, session: str) -> dict[str, int]:
    """How many streams there are, and how many nodes, by each of its ways."""
    cookies = {"sessionid": session}
    async with httpx.AsyncClient(base_url=node.url, cookies=cookies, trust_env=False, timeout=SECONDS) as client:
        overview = (await client.get("/api/overview/")).raise_for_status().json()
        room = (await client.get("/admin/sse_limits/liveroom/overview/now/")).raise_for_status().json()
        metrics = (await client.get("/metrics")).raise_for_status().text
        tenants = (await client.get("/metrics/tenants")).raise_for_status().text
        users = (await client.get("/api/holders/", params={"scope": Scope.USER})).raise_for_status().json()
    return {
        "api": overview["in_use"],
        "api nodes": overview["nodes"],
        "api users": sum(row["in_use"] for row in users["holders"]),
        "admin": int(IN_USE.search(words(room["parts"]["figures"]))[1]),
        "metrics": total(metrics, "sse_conns"),
        "metrics nodes": total(metrics, "sse_nodes"),
        "metrics tenants": total(tenants, "sse_tenant_conns"),
    }


def total(text: str, name: str) -> int:
    """The sum of a metric's samples."""
    return sum(int(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\d+)$", text, re.MULTILINE))


def words(html: str) -> str:
    """What a reader of a page reads."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())
