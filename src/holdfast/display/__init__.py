"""How a pipeline and a run look: in words, as tables, as a drawing, in a cell of a notebook."""
