"""The other stateful kinds: as-of merges, deduplication, limits, and steps of the user."""
