"""The ASGI edge: the guard, the consumers, this process as a node. Never the ORM."""
