"""`python -m bench [--quick] [name ...]`: run benchmarks and print one table."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module

from .figures import Figure, table
from .machine import CLIENT_CORE, describe, pin

NAMES = (
    "slots",
    "cluster",
    "exactness",
    "ends",
    "rejection",
    "memory",
    "publishing",
    "room",
    "stalled",
    "stopping",
    "faults",
    "freed",
)


def main() -> int:
    """Run what is asked for; the exit status is 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; without any: all")
    parser.add_argument("--quick", action="store_true", help="small sizes: a look, not a measurement")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(NAMES)):
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    pin(0, CLIENT_CORE)
    print(describe(), flush=True)
    figures: list[Figure] = []
    try:
        for name in asked.names or NAMES:
            started = time.monotonic()
            print(f"{name} ...", end=" ", flush=True)
            figures += import_module(f"bench.{name}").run(quick=asked.quick)
            print(f"{time.monotonic() - started:.0f} s", flush=True)
    finally:  # what was measured before a fault is worth reading too
        print(f"\n{table(figures)}")
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
