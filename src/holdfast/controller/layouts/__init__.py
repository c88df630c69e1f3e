"""Which segments each shard has: its graph, its layouts, and how segments and state move between them (design/0048)."""
