"""The read API: what the board says, with limits, for who may see it; and the one action."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Scene

pytestmark = [pytest.mark.django_db, pytest.mark.redis]

PATHS = ("overview", "nodes", "holders", "tenants", "tiers", "streams", "rejections", "decisions")
ROOT = Path(__file__).resolve().parents[2]


def user(*permissions: str) -> Client:
    found = User.objects.create_user("operator")
    found.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(found)
    return client


@pytest.fixture
def operator() -> Client:
    return user("view_live")


def get(client: Client, path: str, status: int = 200, **query: Any) -> Any:
    answer = client.get(f"/api/{path}", query)
    assert answer.status_code == status, answer.content
    return answer.json()


class TestWhoMaySee:
    @pytest.mark.parametrize("path", PATHS)
    def test_only_who_may_see_the_live_room(self, path: str) -> None:
        assert Client().get(f"/api/{path}/").status_code == 403
        assert user("revoke_stream").get(f"/api/{path}/").status_code == 403

    def test_seeing_is_not_ending(self, operator: Client) -> None:
        assert operator.post("/api/streams/revoke/", {"streams": ["a-1"]}).status_code == 403


class TestReading:
    def test_the_overview_counts_the_fleet(self, operator: Client, scene: Scene) -> None:
        found = get(operator, "overview/")
        assert (found["in_use"], found["limit"], found["nodes"], found["draining"]) == (4, None, 2, 0)
        assert found["rejected"] == [{"layer": "slots", "reason": "user_limit", "mode": "enforce", "count": 1}]

    def test_nodes_say_what_they_hold(self, operator: Client, scene: Scene) -> None:
        nodes = get(operator, "nodes/")["nodes"]
        assert sorted((node["id"], node["open"]) for node in nodes) == [
            (scene.stations[0].id, 3),
            (scene.stations[1].id, 1),
        ]

    @pytest.mark.parametrize(
        ("scope", "first"),
        [
            ("user", {"subject": "globex/gina", "in_use": 3, "limit": 3, "limit_source": "tenant globex"}),
            ("tenant", {"subject": "globex", "in_use": 3, "limit": 50, "limit_source": "tier free"}),
            ("address", {"subject": "192.0.2.1", "in_use": 4, "limit": 20, "limit_source": "tier anonymous"}),
        ],
    )
    def test_holders_stand_with_their_limit_and_where_it_comes_from(
        self, operator: Client, scene: Scene, scope: str, first: dict[str, Any]
    ) -> None:
        assert get(operator, "holders/", scope=scope)["holders"][0] == {"scope": scope, **first}

    def test_tenants_and_tiers_are_all_there(self, operator: Client, scene: Scene) -> None:
        tenants = get(operator, "tenants/")["tenants"]
        assert [(row["slug"], row["in_use"], row["limit"]) for row in tenants] == [("acme", 1, None), ("globex", 3, 50)]
        assert [row["slug"] for row in get(operator, "tiers/")["tiers"]] == ["anonymous", "free", "pro"]

    def test_a_holder_s_streams_come_in_pages(self, operator: Client, scene: Scene) -> None:
        asked = {"scope": "user", "subject": "globex/gina"}
        first = get(operator, "streams/", **asked, count=2)
        rest = get(operator, "streams/", **asked, count=2, offset=2)
        assert (first["count"], rest["count"]) == (3, 3)
        assert [row["id"] for row in first["streams"] + rest["streams"]] == scene.streams[:3]
        assert get(operator, "streams/")["count"] == 4
        assert get(operator, f"streams/{scene.streams[3]}/")["user"] == "alice"
        get(operator, "streams/nobody-1/", status=404)

    def test_rejections_over_time_and_by_tenant(self, operator: Client, scene: Scene) -> None:
        found = get(operator, "rejections/", minutes=5)
        assert sum(each["count"] for span in found["spans"] for each in span["counts"]) == 1
        assert [(row["tenant"], row["reason"], row["count"]) for row in found["tenants"]] == [
            ("globex", "user_limit", 1)
        ]

    def test_a_decision_is_explained_by_its_id(self, operator: Client, scene: Scene) -> None:
        found = get(operator, f"decisions/{scene.refused.id.upper()}/")
        assert (found["reason"], found["limit"], found["in_use"], found["user"]) == ("user_limit", 3, 3, "gina")
        assert found["details_kept"]
        assert [row["id"] for row in get(operator, "decisions/")["decisions"]] == [scene.refused.id]
        get(operator, "decisions/nonsense/", status=404)

    @pytest.mark.parametrize(
        ("path", "query", "field"),
        [
            ("holders/", {"scope": "planet"}, "scope"),
            ("streams/", {"scope": "user"}, "subject"),
            ("streams/", {"subject": "globex/gina"}, "subject"),
            ("streams/", {"count": "-1"}, "count"),
            ("rejections/", {"minutes": "ten"}, "minutes"),
            ("decisions/", {"before": "٣"}, "before"),
        ],
    )
    def test_a_mistake_is_named(self, operator: Client, path: str, query: dict[str, str], field: str) -> None:
        assert field in get(operator, path, status=400, **query)

    def test_without_the_store_nobody_knows(self, operator: Client, settings: Any) -> None:
        settings.SSE_LIMITS = {"REDIS_URL": "redis://127.0.0.1:1", "POLICY": {}}
        assert "does not answer" in get(operator, "overview/", status=503)["detail"]
        assert Client().get("/metrics").status_code == 503


class TestRevoking:
    def test_streams_are_ordered_to_end_and_it_is_kept_who_did_it(self, scene: Scene) -> None:
        client = user("view_live", "revoke_stream")
        answer = client.post(
            "/api/streams/revoke/", {"streams": scene.streams[:2], "note": "Idle tabs"}, "application/json"
        )
        assert (answer.status_code, answer.json()) == (202, {"ordered": 2})
        entry = LogEntry.objects.get()
        assert entry.user.username == "operator"
        assert (entry.change_message, scene.streams[0] in entry.object_repr) == ("Idle tabs", True)

    def test_nothing_is_a_mistake(self, scene: Scene) -> None:
        answer = user("revoke_stream").post("/api/streams/revoke/", {"streams": []}, "application/json")
        assert answer.status_code == 400


WITHOUT_ADMIN = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "sse_limits"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    SECRET_KEY="x" * 50,
)
django.setup()
import sse_limits.api.urls
from sse_limits.models import LiveRoom
LiveRoom.log(1, "somebody", "kept nowhere")
"""


def test_a_project_without_the_admin_has_the_api_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_ADMIN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class TestMetrics:
    def test_any_worker_answers_for_the_whole_fleet(self, scene: Scene) -> None:
        text = Client().get("/metrics").content.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        conns = families["sse_conns"].samples
        assert {sample.labels["node"] for sample in conns} == {station.id for station in scene.stations}
        assert sum(sample.value for sample in conns) == 4
        assert sum(sample.value for sample in families["sse_rejected"].samples) == 1
        assert "gina" not in text
        assert "192.0.2.1" not in text

    def test_tenants_have_a_path_of_their_own(self, scene: Scene) -> None:
        assert 'sse_tenant_conns{tenant="globex"} 3' in Client().get("/metrics/tenants").content.decode()


def test_the_schema_in_the_docs_is_the_code_s(tmp_path: Path) -> None:
    """`manage.py spectacular --file docs/openapi.yaml` writes it anew."""
    call_command("spectacular", "--validate", "--file", str(tmp_path / "schema.yaml"))
    made = yaml.safe_load((tmp_path / "schema.yaml").read_text())
    assert made == yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
    assert {"/api/overview/", "/api/streams/revoke/", "/api/token/", "/api/publish/"} <= set(made["paths"])
