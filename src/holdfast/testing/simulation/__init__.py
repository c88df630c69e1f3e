"""A world in which drivers die: simulated engine, drivers and seeds, without Spark."""
