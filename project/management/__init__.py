"""The demo's management commands."""
