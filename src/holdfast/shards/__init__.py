"""What shards are: their names, which segments each reads, and the durable records of it (design/0048)."""
