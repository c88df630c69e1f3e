"""``flow``: a graph of calculators for each key."""
