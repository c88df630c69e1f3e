"""Nexmark: events, queries, and what they should find (design/0057)."""
