"""Main and replica: who runs a pipeline, and who takes over (design/0028)."""
