"""What happened and what is held: written by each node once a second, read by admin, API, metrics and command line."""
