"""The limits in Django's admin: lists, forms and actions that say which value is in force and where it comes from.

Ordinary `ModelAdmin`s with Django's own model permissions. The live room is not here (`dashboard/`).
"""

from __future__ import annotations

from . import address_rules, memberships, revocations, tenants, tiers, user_limits

__all__ = ["address_rules", "memberships", "revocations", "tenants", "tiers", "user_limits"]
