"""Benchmarks: Holdfast beside Spark as people use it, both sides measured in the same run on the same machine."""
