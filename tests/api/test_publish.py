"""`POST /api/publish/`: staff publish, others do not, and what cannot be sent is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings

from sse_limits.publishing import memory_topics


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    with override_settings(SSE_LIMITS={"STORE": "memory"}):
        yield


def post(client: Client, **fields: Any) -> Any:
    return client.post("/api/publish/", fields, content_type="application/json")


@pytest.mark.django_db
class TestPublish:
    def test_staff_publish_and_learn_the_events_id(self, admin_client: Client) -> None:
        answer = post(admin_client, topic="news", data={"a": 1}, event="greet", tenant="acme")
        [logged] = memory_topics().entries("acme/news")
        assert (answer.status_code, answer.json()) == (201, {"id": logged.id})
        assert logged.frame == b'event: greet\ndata: {"a": 1}\n\n'

    def test_others_may_not(self, client: Client) -> None:
        assert post(client, topic="news", data="x").status_code == 403
        client.force_login(User.objects.create_user("u1"))
        assert post(client, topic="news", data="x").status_code == 403
        assert memory_topics().entries("news") == []

    @pytest.mark.parametrize("fields", [{"data": "x"}, {"topic": "news"}, {"topic": "n", "data": "x", "event": "a\nb"}])
    def test_what_cannot_be_sent_is_a_400(self, admin_client: Client, fields: dict[str, str]) -> None:
        assert post(admin_client, **fields).status_code == 400

    def test_a_store_that_is_away_is_a_503(self, admin_client: Client) -> None:
        with override_settings(SSE_LIMITS={"REDIS_URL": "unix:///nowhere/at/all"}):
            answer = post(admin_client, topic="news", data="x")
        assert (answer.status_code, answer.json()["error"]) == (503, "store_unavailable")
