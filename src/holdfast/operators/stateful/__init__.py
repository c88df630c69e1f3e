"""The other kinds with memory: as-of merges, deduplication, limits, and steps of the user."""
