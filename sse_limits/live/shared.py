"""A value that many threads want and one makes: at most once a second, and a failure is shared for as long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from sse_limits.slots.base import StoreUnavailable

Value = TypeVar("Value")


class Shared(Generic[Value]):
    """What `make` returned, for `seconds`. Thread-safe; while one thread makes it, the others wait for that one."""

    def __init__(self, make: Callable[[], Value], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._value: Value | None = None
        self._fault: StoreUnavailable | None = None

    def get(self) -> Value:
        """The value, made now if it is too old. Raises `StoreUnavailable`."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._renew()
            if self._fault is not None:
                raise StoreUnavailable(str(self._fault)) from self._fault
            if self._value is None:
                raise RuntimeError("nothing was made")
            return self._value

    def _renew(self) -> None:
        try:
            self._value, self._fault = self._make(), None
        except StoreUnavailable as exc:
            self._fault = exc
        self._until = time.monotonic() + self._seconds
