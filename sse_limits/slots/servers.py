"""Asynchronous connections to wherever a URL points: one server, the master behind Sentinel, or a Cluster."""

from __future__ import annotations

from typing import Protocol

from redis.asyncio import ConnectionPool

from .cluster_pipeline import Cluster, ClusterPipeline
from .pipeline import Pipeline
from .topology import Kind, Topology, parse

AnyPipeline = Pipeline | ClusterPipeline


class Servers(Protocol):
    """Where pipelines and subscriptions come from. Owned by one event loop."""

    def pipeline(self, timeout_seconds: float) -> AnyPipeline:
        """A connection of its own, over which the calls of one loop tick travel together."""

    def subscriber(self, key: str) -> ConnectionPool:
        """Connections for channels; `key` is what the publishing script writes to."""

    async def aclose(self) -> None:
        """Close what belongs to no pipeline."""


class OneServer:
    """A single server, or the master that the sentinels name each time that a connection is made."""

    def __init__(self, topology: Topology) -> None:
        self._pool = topology.pool()

    def pipeline(self, timeout_seconds: float) -> Pipeline:
        """A connection of its own."""
        return Pipeline(self._pool, timeout_seconds)

    def subscriber(self, key: str) -> ConnectionPool:
        """Connections for channels."""
        return self._pool

    async def aclose(self) -> None:
        """Close the connections to the sentinels."""
        await self._pool.aclose()
        sentinels = getattr(self._pool, "sentinel_manager", None)
        if sentinels is not None:
            await sentinels.aclose()


def connect(url: str) -> Servers:
    """Prepare connections; none is made before the first call."""
    topology = parse(url)
    return Cluster(topology) if topology.kind is Kind.CLUSTER else OneServer(topology)
