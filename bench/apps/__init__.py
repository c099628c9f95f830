"""The ASGI apps under measurement. `bare` imports neither Django nor sse_limits: it is the floor."""
