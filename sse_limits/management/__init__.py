"""Management commands that ship with the app."""
