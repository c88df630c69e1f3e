"""Metrics of a run, for Prometheus: one list of them, and the port that serves them (design/0049, section 4)."""
