"""The transaction coordinator: what becomes visible, where, and exactly once (design/0002)."""
