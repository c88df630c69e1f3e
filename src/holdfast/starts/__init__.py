"""How a start continues: what changed in the graph, where state, sources and sinks stand, and what is replayed."""
