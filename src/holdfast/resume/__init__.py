"""How a start goes on: what changed in the graph, where state, sources and sinks stand, and what is replayed."""
