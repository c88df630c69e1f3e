"""The physical plan, pure: programs, stages, chunks, bounds and back-pressure, tested without a JVM."""
