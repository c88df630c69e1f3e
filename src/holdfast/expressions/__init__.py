"""Spark SQL expressions: what they read, and the subset that Arrow evaluates to the letter as Spark does."""
