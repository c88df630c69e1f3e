"""Shadows: what sinks should hold, computed from the sources, and sinks that are compared with it (design/0024)."""
