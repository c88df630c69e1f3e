"""Sinks: where rows go, one system per file.  A spec is a frozen declaration; ``connect`` makes its runtime."""
