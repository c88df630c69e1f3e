"""The engine: the only room of the house that knows PySpark."""
