"""The graph: frozen nodes, their names, checks of the whole, and how a graph is shown and compared."""
