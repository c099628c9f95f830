"""Where slots live: the stores, their keys and Lua scripts, the leases of this process. No Django."""
