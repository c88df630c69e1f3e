"""Look-ups in a run: what a worker does for a batch, and which version of a table an epoch sees (design/0030)."""
