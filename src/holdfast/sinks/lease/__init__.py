"""Where sinks keep the lease of a pipeline: a row of a database, or objects of a directory (design/0028)."""
