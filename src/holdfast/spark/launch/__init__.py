"""Processes: the JVM and its output, the session, and the Python processes that Spark starts."""
