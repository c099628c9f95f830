"""Limits as data: tiers, tenants, who belongs to them, exceptions by user and by address, and what was revoked."""

from __future__ import annotations

from .address_rules import AddressRule
from .limits import Overridable, Tenant, TenantMembership, Tier, UserLimit
from .revocations import Revocation
from .room import LiveRoom
from .versioned import PolicyModel, PolicyQuerySet, PolicyVersion

__all__ = [
    "AddressRule",
    "LiveRoom",
    "Overridable",
    "PolicyModel",
    "PolicyQuerySet",
    "PolicyVersion",
    "Revocation",
    "Tenant",
    "TenantMembership",
    "Tier",
    "UserLimit",
]
