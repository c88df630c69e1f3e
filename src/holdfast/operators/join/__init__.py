"""``join``: the rows of two streams in pairs, by key and within a range of event time."""
