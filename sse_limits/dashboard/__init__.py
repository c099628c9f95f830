"""The live room: what is held, by whom, what was rejected and why, inside Django's admin."""
