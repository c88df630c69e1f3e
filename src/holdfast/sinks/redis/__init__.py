"""The Redis sink."""
