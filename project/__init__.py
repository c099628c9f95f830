"""The demo project: settings, streams and simulated clients. Not part of the package."""
