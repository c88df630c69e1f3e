"""The controller of a pipeline's shards: their graphs, their runs, and who starts them again (design/0048)."""
