"""Spark SQL expressions: what they read, and the subset that Arrow evaluates exactly as Spark does."""
