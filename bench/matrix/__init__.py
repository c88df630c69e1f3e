"""The matrix: kills at every point for every sink, and what is twice, lost and late after them; beside others."""
