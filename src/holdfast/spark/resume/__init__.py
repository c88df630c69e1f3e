"""A start on Spark: the steps of it, and what becomes of the Spark checkpoint directory."""
