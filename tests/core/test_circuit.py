"""The circuit breaker, without a clock."""

from __future__ import annotations

from sse_limits.core.circuit import FIRST_PROBE_SECONDS, LONGEST_PAUSE_SECONDS, Circuit


def test_the_first_failure_opens_it_and_the_others_do_not_move_the_instant() -> None:
    circuit = Circuit()
    assert not circuit.is_open
    assert circuit.fail(1000)
    assert not circuit.fail(2000)
    assert (circuit.is_open, circuit.since_ms) == (True, 1000)


def test_probes_become_rarer_up_to_a_bound_and_begin_anew() -> None:
    circuit = Circuit()
    circuit.fail(1000)
    pauses = []
    for _ in range(6):
        pauses.append(circuit.pause_seconds)
        circuit.probe_failed()
    assert pauses[0] == FIRST_PROBE_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    circuit.close()
    assert circuit.since_ms is None
    circuit.fail(5000)
    assert circuit.pause_seconds == FIRST_PROBE_SECONDS
