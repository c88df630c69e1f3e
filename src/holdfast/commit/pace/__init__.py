"""Sinks at a pace of their own: what the others have and they do not yet is decided, and waits (design/0019)."""
