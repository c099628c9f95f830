"""Prometheus' text format, read back by its own parser."""

from __future__ import annotations

import dataclasses

from prometheus_client.parser import text_string_to_metric_families as parse

from sse_limits.core.slots import Scope
from sse_limits.live import exposition
from sse_limits.live.journal import Journal
from sse_limits.live.rows import Holder, NodeRow

NODE = NodeRow(
    id='web-1:42:"abc"\\',
    name="abcdefgh",
    host="web-1",
    pid=42,
    server="uvicorn 0.54.0",
    started_at=1_000_000,
    seen_at=2_000_000,
    open=7,
    open_sse=5,
    budget=None,
    is_draining=True,
    policy_version=41,
    loop_lag_ms=3.0,
    memory_bytes=1 << 20,
    blocked=1,
    store="redis",
    store_ms=0.2,
)


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_every_node_tells_what_it_holds_under_its_own_label() -> None:
    other = dataclasses.replace(NODE, id="web-2:43:x", open=2, open_sse=2, is_draining=False)
    found = values(exposition.fleet([NODE, other]))
    assert found["sse_nodes", ()] == 2
    own = ("node", NODE.id)
    assert found["sse_conns", (own, ("transport", "sse"))] == 5
    assert found["sse_conns", (own, ("transport", "websocket"))] == 2
    assert found["sse_conns", (("node", other.id), ("transport", "sse"))] == 2
    assert found["sse_node_draining", (own,)] == 1
    assert found["sse_node_loop_lag_seconds", (own,)] == 0.003


def test_every_counter_of_a_node_is_told_and_has_its_line_of_help() -> None:
    journal = Journal()
    journal.admitted["free"] += 3
    journal.per_user.observe(2)
    journal.publish_to_write.observe(0.004)
    text = exposition.fleet([dataclasses.replace(NODE, counters=dict(journal.counters()))])
    found = values(text)
    assert found["sse_admitted_total", (("node", NODE.id), ("tier", "free"))] == 3
    told = {name for name, labels in found if ("node", NODE.id) in labels}
    assert {sample.partition("{")[0] for sample, _ in journal.counters()} <= told
    families = {family.name: family for family in parse(text)}
    assert families["sse_conns_per_user"].type == "histogram"
    assert all(family.documentation for family in families.values())


def test_whose_store_is_away_is_told_by_node() -> None:
    other = dataclasses.replace(NODE, id="web-2:43:x", store_away_since=7)
    found = values(exposition.fleet([NODE, other]))
    assert found["sse_store_away", (("node", NODE.id),)] == 0
    assert found["sse_store_away", (("node", other.id),)] == 1


def test_one_process_tells_of_its_own_nodes_and_not_how_many_there_are() -> None:
    found = values(exposition.part([NODE]))
    assert found["sse_store_away", (("node", NODE.id),)] == 1
    assert found["sse_conns", (("node", NODE.id), ("transport", "sse"))] == 5
    assert ("sse_nodes", ()) not in found


def test_what_a_node_of_a_later_version_tells_is_passed_over() -> None:
    odd = dataclasses.replace(NODE, counters={"sse_unheard_of_total": 1.0, "nonsense": 2.0})
    assert not any("unheard" in name or name == "nonsense" for name, _ in values(exposition.fleet([odd])))


def test_tenants_stand_on_a_path_of_their_own() -> None:
    found = values(exposition.tenants([Holder(Scope.TENANT, 'ac"me', 7)]))
    assert found == {("sse_tenant_conns", (("tenant", 'ac"me'),)): 7}
    assert not any(label == "tenant" for _, labels in values(exposition.fleet([NODE])) for label, _ in labels)


def test_without_a_node_every_metric_is_named_all_the_same() -> None:
    assert values(exposition.fleet([])) == {("sse_nodes", ()): 0}
