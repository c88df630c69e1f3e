"""Windows and running aggregates of keys."""
