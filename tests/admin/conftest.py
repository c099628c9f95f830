"""Small tenants, and people who may do more or less in the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from sse_limits.models import Tenant, Tier, UserLimit
from tests.admin.pages import SignIn


@pytest.fixture
def pro(db: None) -> Tier:
    return Tier.objects.create(slug="pro", name="Pro", tenant_limit=200, user_limit=10, at_user_limit="evict")


@pytest.fixture
def acme(pro: Tier) -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme", tier=pro, tenant_limit=240)


@pytest.fixture
def runner(acme: Tenant) -> UserLimit:
    return UserLimit.objects.create(tenant=acme, user="ci-runner", user_limit=100)


@pytest.fixture
def sign_in(db: None) -> SignIn:
    """A client with only these permissions of the app, such as "view_tenant"."""

    def signed_in(*permissions: str) -> Client:
        user = User.objects.create_user("operator", is_staff=True)
        found = Permission.objects.filter(codename__in=permissions, content_type__app_label="sse_limits")
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return signed_in
