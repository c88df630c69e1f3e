"""State on Spark: the host of steps, its store, its snapshots and its seeds."""
